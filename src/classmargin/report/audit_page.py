"""What the page of an audit shows: failing classes and their samples first, then figures, tables and notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._printable import printable
from classmargin._progress import progress
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_reasons import STEPS
from classmargin.evaluation.comparison import Comparison
from classmargin.report import audit_tables
from classmargin.report.audit_words import RANKING_WORDS, audit_verdict
from classmargin.report.comparison_tables import pair_summary_table
from classmargin.report.confusion_matrix import ConfusionView, confusion_view
from classmargin.report.feature_map import feature_map, feature_map_figure
from classmargin.report.figures import (
    Figure,
    class_accuracy_figure,
    class_scatter_figure,
    comparison_figure,
    thirds_figure,
)
from classmargin.report.sample_view import sample_view
from classmargin.report.tables import Table, format_value

MOST_ERRORS = 50
MOST_FAILING = 25
MARK = "▾ "
MOST_HIGHLIGHTED = 8
FEWEST_POINTS_IN_COLOUR = 4
CARD_LABELS = {
    "overall": "All samples",
    "easy": "Easy third",
    "medium": "Medium third",
    "hard": "Hard third",
    "worst": "Lowest accuracy",
    "gap": "Gap, easy − hard",
}
BOUNDS_STATEMENT = (
    "Bounds of this kind are usually vacuous: a value above 1 says nothing about the risk itself. Their "
    "ordering is what tells: it names the classes whose features vary most for the margin they have, which "
    "are the classes to expect trouble from and the ones that class margins help."
)


def audit_page(
    audit: Audit,
    *,
    title: str,
    comparison: Comparison | None,
    baseline: Audit | None,
    with_map: bool,
    images: Any = None,
    texts: Sequence[str] | None = None,
    tables: Sequence[Table] = (),
) -> dict[str, Any]:
    """Return everything the template ``audit.html.j2`` shows."""
    hardest = _hardest(audit)
    failing = audit_tables.failing_table(audit, MOST_FAILING)
    samples = sample_view(audit, images=images, texts=texts) if len(audit.samples) else None
    figures, confusion = _draw(audit, comparison, baseline)
    if with_map:  # shows a progress bar of its own
        figures["map"] = _map(audit, hardest)
    content = {
        "title": title,
        "verdict": printable(audit_verdict(audit)),
        "facts": _audit_facts(audit),
        "cards": _cards(audit),
        "level": f"{100 * audit.confidence:g}%",
        "comparison": comparison,
        "summary": None if comparison is None else pair_summary_table(comparison),
        "tiers": audit_tables.tier_table(audit),
        "failing": failing,
        "tables": list(tables),
        "steps": {reason: STEPS[reason] for reason in _reasons(audit)},
        "number": {name: k for k, name in enumerate(audit.class_names)},
        "samples": samples,
        "sample_words": "" if samples is None else samples["words"],
        "classes": audit_tables.class_table(audit),
        "correlations": audit_tables.correlation_table(audit),
        "errors": audit_tables.confusion_table(audit, MOST_ERRORS),
        "confusion": confusion,
        "disparity": audit_tables.disparity_table(audit),
        "geometry": audit_tables.geometry_table(audit),
        "bounds": audit_tables.bound_tables(audit),
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
        "confusion": lambda: confusion_view(audit.confusion, _marked_names(audit)),
    }
    made = {name: make() for name, make in progress(makers.items(), "drawing figures", total=len(makers))}
    confusion: ConfusionView = made.pop("confusion")
    return {**made, **confusion.figures}, confusion


def _floats(column: Any) -> NDArray[np.float64]:
    return np.asarray(column, dtype=np.float64)


def _audit_facts(audit: Audit) -> str:
    absent = int((audit.by_class["n"] == 0).sum())
    words = f"{audit.num_samples:,} samples, {audit.num_classes:,} classes"
    if absent:
        words += f" ({absent} without samples)"
    return f"{words}; {RANKING_WORDS[audit.ranking]}; intervals at {100 * audit.confidence:g}%."


def _reasons(audit: Audit) -> list[str]:
    """Return the reasons that lead to a next step somewhere, in the order of the list of steps."""
    found = set(audit.by_class["reason"][audit.by_class["next_step"] != ""])
    return [reason for reason in STEPS if reason in found]


def _marked_names(audit: Audit) -> tuple[str, ...]:
    """Return the class names with a mark before those that lag, for the figures."""
    lags = audit.by_class["lags"].tolist()
    return tuple(
        f"{MARK}{name}" if behind else name for name, behind in zip(audit.class_names, lags, strict=True)
    )


def _cards(audit: Audit) -> list[dict[str, str]]:
    labels = CARD_LABELS | {"worst": audit_tables.LOWEST[audit.ranking == "corrected"].capitalize()}
    return [
        {
            "key": key,
            "label": label,
            "value": format_value(getattr(audit, key), "percent"),
            "range": format_value(audit.interval(key), "interval"),
        }
        for key, label in labels.items()
    ]


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
    return thirds_figure(series)


def _accuracy(audit: Audit) -> Figure:
    frame = audit.by_class
    columns = ("accuracy", "low", "high")
    if audit.ranking == "corrected":
        columns = ("estimate", "estimate_low", "estimate_high")
    accuracy, low, high = (_floats(frame[key]) for key in columns)
    count = np.asarray(frame["n"], dtype=np.int64)
    return class_accuracy_figure(_marked_names(audit), accuracy, low, high, count, list(frame["tier"]))


def _spread(audit: Audit) -> Figure | None:
    frame = audit.by_class
    spread = _floats(frame["spread"])
    if not np.isfinite(spread).any():
        return None
    return class_scatter_figure(
        _marked_names(audit),
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
    return feature_map_figure(placed, correct, _marked_names(audit), highlighted)


def _map_caption(audit: Audit, highlighted: NDArray[np.int64]) -> str:
    words = "Features of a subsample of the test set, placed by t-SNE; crosses are classified wrong. "
    if len(highlighted) < int((audit.by_class["n"] > 0).sum()):
        words += "In colour: the hardest classes of which it holds enough samples. "
    return words + "Neighbourhoods mean something in such a map, distances between groups do not."


def _sections(content: dict[str, Any]) -> list[tuple[str, str]]:
    figures = content["figures"]
    lagging = content["failing"].title.startswith("Classes that lag")
    sections = {
        "failing": ("Lagging classes" if lagging else "Worst classes", True),
        "samples": ("Samples", content["samples"] is not None),
        **{f"table-{place}": (table.title, True) for place, table in enumerate(content["tables"], start=1)},
        "comparison": ("Against the baseline", content["comparison"] is not None),
        "thirds": ("Thirds", True),
        "accuracy": ("Every class", True),
        "classes": ("All numbers", True),
        "spread": ("Spread", "spread" in figures or bool(content["correlations"].rows)),
        "confusion": ("Confusion", True),
        "map": ("Map", "map" in figures),
        "disparity": ("Disparity", True),
        "geometry": ("Geometry", bool(content["geometry"].rows)),
        "bounds": ("Bounds", bool(content["bounds"])),
        "steps": ("What to do", bool(content["steps"])),
        "notes": ("How to read this", True),
    }
    return [(key, words) for key, (words, shown) in sections.items() if shown]
