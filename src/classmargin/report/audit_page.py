"""Contents of the audit's HTML page: an audit in, figures and tables out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._printable import printable
from classmargin._progress import progress
from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import Comparison
from classmargin.report import audit_view, plots
from classmargin.report.comparison_view import pair_summary_table
from classmargin.report.confusion_view import ConfusionView, confusion_view
from classmargin.report.feature_map import feature_map, feature_map_figure
from classmargin.report.figure_parts import Figure
from classmargin.report.tables import format_value

MOST_ERRORS = 50
MOST_WORST = 10
MOST_HIGHLIGHTED = 8
FEWEST_POINTS_IN_COLOUR = 4

CARD_LABELS = {
    "overall": "All samples",
    "easy": "Easy third",
    "medium": "Medium third",
    "hard": "Hard third",
    "worst": "Worst class",
    "gap": "Gap, easy − hard",
}

BOUNDS_STATEMENT = (
    "Bounds of this kind are usually vacuous: a value above 1 says nothing about the risk itself. Their "
    "ordering is what tells: it names the classes whose features vary most for the margin they have, which "
    "are the classes to expect trouble from and the ones that class margins help."
)


def audit_page(
    audit: Audit, *, title: str, comparison: Comparison | None, baseline: Audit | None, with_map: bool
) -> dict[str, Any]:
    """Return everything the template ``audit.html.j2`` shows."""
    hardest = _hardest(audit)
    figures, confusion = _draw(audit, comparison, baseline)
    if with_map:  # shows a progress bar of its own
        figures["map"] = _map(audit, hardest)
    content = {
        "title": title,
        "verdict": printable(audit_view.audit_verdict(audit)),
        "facts": _facts(audit),
        "cards": _cards(audit),
        "level": f"{100 * audit.confidence:g}%",
        "comparison": comparison,
        "summary": None if comparison is None else pair_summary_table(comparison),
        "tiers": audit_view.tier_table(audit),
        "worst": audit_view.worst_table(audit, _number_of_worst(audit)),
        "classes": audit_view.class_table(audit),
        "correlations": audit_view.correlation_table(audit),
        "errors": audit_view.confusion_table(audit, MOST_ERRORS),
        "confusion": confusion,
        "disparity": audit_view.disparity_table(audit),
        "geometry": audit_view.geometry_table(audit),
        "bounds": audit_view.bound_tables(audit),
        "bounds_statement": (audit.bounds or {}).get("statement") or BOUNDS_STATEMENT,
        "notes": audit.notes,
        "map_caption": _map_caption(audit, hardest),
        "figures": {name: figure for name, figure in figures.items() if figure is not None},
        "cells": confusion.cells,
    }
    return content | {"sections": _sections(content)}


def _draw(
    audit: Audit, comparison: Comparison | None, baseline: Audit | None
) -> tuple[dict[str, Figure | None], ConfusionView]:
    """Make all figures but the map; with a thousand classes that takes seconds."""
    makers: dict[str, Callable[[], Any]] = {
        "gains": lambda: None if comparison is None else comparison_figure(comparison),
        "thirds": lambda: _thirds(audit, baseline, comparison),
        "accuracy": lambda: _accuracy(audit),
        "spread": lambda: _spread(audit),
        "confusion": lambda: confusion_view(audit.confusion, audit.class_names),
    }
    made = {name: make() for name, make in progress(makers.items(), "drawing figures", total=len(makers))}
    confusion: ConfusionView = made.pop("confusion")
    return {**made, **confusion.figures}, confusion


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the change of accuracy of every class."""
    frame = comparison.by_class
    return plots.gains_figure(
        comparison.class_names,
        _floats(frame["difference"]),
        _floats(frame["q_value"]),
        list(frame["outcome"]),
    )


def _floats(column: Any) -> NDArray[np.float64]:
    return np.asarray(column, dtype=np.float64)


def _facts(audit: Audit) -> str:
    absent = int((audit.by_class["n"] == 0).sum())
    words = f"{audit.num_samples:,} samples, {audit.num_classes:,} classes"
    if absent:
        words += f" ({absent} without samples)"
    return f"{words}; thirds by the rule “{audit.ranking}”; intervals at {100 * audit.confidence:g}%."


def _cards(audit: Audit) -> list[dict[str, str]]:
    cards = []
    for key, label in CARD_LABELS.items():
        name = f": {printable(str(audit.disparity['worst_class']))}" if key == "worst" else ""
        value = format_value(getattr(audit, key), "percent")
        interval = format_value(audit.interval(key), "interval")
        cards.append({"key": key, "label": label + name, "value": value, "range": interval})
    return cards


def _number_of_worst(audit: Audit) -> int:
    """Return how many classes to call worst: never more than the hard third."""
    return min(MOST_WORST, max(1, int((audit.by_class["tier"] == "hard").sum())))


def _thirds(audit: Audit, baseline: Audit | None, comparison: Comparison | None) -> Figure:
    names = (
        ("baseline", "this model")
        if comparison is None
        else (comparison.baseline_name, comparison.candidate_name)
    )
    models = {names[1]: audit} if baseline is None else {names[0]: baseline, names[1]: audit}
    series = {
        name: {
            group: (getattr(model, group), *model.interval(group))
            for group in ("easy", "medium", "hard", "worst", "overall")
        }
        for name, model in models.items()
    }
    return plots.thirds_figure(series)


def _accuracy(audit: Audit) -> Figure:
    frame = audit.by_class
    accuracy, low, high = (_floats(frame[key]) for key in ("accuracy", "low", "high"))
    count = np.asarray(frame["n"], dtype=np.int64)
    return plots.class_accuracy_figure(audit.class_names, accuracy, low, high, count, list(frame["tier"]))


def _spread(audit: Audit) -> Figure | None:
    frame = audit.by_class
    spread = _floats(frame["spread"])
    if not np.isfinite(spread).any():
        return None
    return plots.class_scatter_figure(
        audit.class_names,
        spread,
        _floats(frame["accuracy"]),
        list(frame["tier"]),
        x_title="class spread ‖ŝ‖²",
    )


def _hardest(audit: Audit) -> NDArray[np.int64]:
    """Return the classes that the map shows in colour: all of ten or fewer, otherwise the hardest.

    With very many classes the subsample of features holds few points of each; a class that is to be seen needs
    some.
    """
    if audit.feature_sample is None:
        return np.empty(0, dtype=np.int64)
    points = np.bincount(audit.feature_sample.labels, minlength=audit.num_classes)
    order = np.argsort(_floats(audit.by_class["accuracy"]), kind="stable")
    seen = order[points[order] >= min(FEWEST_POINTS_IN_COLOUR, points.max())]
    return np.asarray(seen if len(seen) <= 10 else seen[:MOST_HIGHLIGHTED], dtype=np.int64)


def _map(audit: Audit, highlighted: NDArray[np.int64]) -> Figure | None:
    sample = audit.feature_sample
    placed = None if sample is None else feature_map(sample.features, sample.labels, highlighted)
    if sample is None or placed is None:
        return None
    correct = np.asarray(sample.correct, dtype=bool)[placed.sample]
    return feature_map_figure(placed, correct, audit.class_names, highlighted)


def _map_caption(audit: Audit, highlighted: NDArray[np.int64]) -> str:
    words = "Features of a subsample of the test set, placed by t-SNE; crosses are classified wrong. "
    if len(highlighted) < int((audit.by_class["n"] > 0).sum()):
        words += "In colour: the hardest classes of which it holds enough samples. "
    return words + "Neighbourhoods mean something in such a map, distances between groups do not."


def _sections(content: dict[str, Any]) -> list[tuple[str, str]]:
    figures = content["figures"]
    sections = {
        "comparison": ("Against the baseline", content["comparison"] is not None),
        "thirds": ("Thirds", True),
        "worst": ("Worst classes", True),
        "accuracy": ("Every class", True),
        "classes": ("Why", True),
        "spread": ("Spread", "spread" in figures or bool(content["correlations"].rows)),
        "confusion": ("Confusion", True),
        "map": ("Map", "map" in figures),
        "disparity": ("Disparity", True),
        "geometry": ("Geometry", bool(content["geometry"].rows)),
        "bounds": ("Bounds", bool(content["bounds"])),
        "notes": ("How to read this", True),
    }
    return [(key, words) for key, (words, shown) in sections.items() if shown]
