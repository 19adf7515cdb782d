"""Contents of the audit's HTML page: an audit in, figures and tables out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import Comparison
from classmargin.report import audit_view, plots
from classmargin.report.class_order import block_shares, block_starts, confusable_order, confusion_shares
from classmargin.report.comparison_view import pair_summary_table
from classmargin.report.feature_map import feature_map
from classmargin.report.tables import format_value, printable

MOST_CLASSES_IN_ONE_MATRIX = 150
MOST_CELLS = 100_000
MOST_ERRORS = 50
MOST_HIGHLIGHTED = 8

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
    figures = {
        "thirds": _thirds(audit, baseline, comparison),
        "accuracy": _accuracy(audit),
    }
    _add(figures, "spread", _spread(audit))
    confusion = _confusion(audit)
    figures |= confusion.pop("figures")
    if comparison is not None:
        frame = comparison.by_class
        figures["gains"] = plots.gains_figure(
            comparison.class_names,
            _floats(frame["difference"]),
            _floats(frame["q_value"]),
            alpha=comparison.alpha,
        )
    highlighted = _hardest(audit)
    _add(figures, "map", _map(audit, highlighted) if with_map else None)
    content = {
        "title": title,
        "verdict": printable(audit_view.audit_verdict(audit)),
        "facts": _facts(audit),
        "cards": _cards(audit),
        "level": f"{100 * audit.confidence:g}%",
        "tiers": audit_view.tier_table(audit),
        "worst": audit_view.worst_table(
            audit, min(10, max(1, int((audit.by_class["tier"] == "hard").sum())))
        ),
        "classes": audit_view.class_table(audit),
        "correlations": audit_view.correlation_table(audit),
        "errors": audit_view.confusion_table(audit, MOST_ERRORS),
        "disparity": audit_view.disparity_table(audit),
        "geometry": audit_view.geometry_table(audit),
        "bounds": audit_view.bound_tables(audit),
        "bounds_statement": (audit.bounds or {}).get("statement") or BOUNDS_STATEMENT,
        "notes": audit.notes,
        "map_caption": _map_caption(audit, highlighted),
        "comparison": None if comparison is None else _comparison_part(comparison),
        "figures": figures,
        **confusion,
    }
    return content | {"sections": _sections(content)}


def _add(figures: dict[str, plots.Figure], name: str, figure: plots.Figure | None) -> None:
    if figure is not None:
        figures[name] = figure


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
        value = format_value(getattr(audit, key), "percent")
        if key == "worst":
            label = f"{label}: {printable(str(audit.disparity.get('worst_class', '')))}"
        cards.append(
            {
                "key": key,
                "label": label,
                "value": value,
                "range": format_value(audit.interval(key), "interval"),
            }
        )
    return cards


def _thirds(audit: Audit, baseline: Audit | None, comparison: Comparison | None) -> plots.Figure:
    groups = ("easy", "medium", "hard", "worst", "overall")
    models = {"this model": audit}
    if baseline is not None:
        name = "baseline" if comparison is None else comparison.baseline_name
        models = {name: baseline, ("this model" if comparison is None else comparison.candidate_name): audit}
    series = {
        name: {group: (getattr(model, group), *model.interval(group)) for group in groups}
        for name, model in models.items()
    }
    return plots.thirds_figure(series)


def _accuracy(audit: Audit) -> plots.Figure:
    frame = audit.by_class
    return plots.class_accuracy_figure(
        audit.class_names,
        _floats(frame["accuracy"]),
        _floats(frame["low"]),
        _floats(frame["high"]),
        np.asarray(frame["n"], dtype=np.int64),
        [str(tier) for tier in frame["tier"]],
    )


def _spread(audit: Audit) -> plots.Figure | None:
    spread = _floats(audit.by_class["spread"])
    if not np.isfinite(spread).any():
        return None
    tier = [str(tier) for tier in audit.by_class["tier"]]
    accuracy = _floats(audit.by_class["accuracy"])
    return plots.class_scatter_figure(audit.class_names, spread, accuracy, tier, x_title="class spread ‖ŝ‖²")


def _hardest(audit: Audit) -> NDArray[np.int64]:
    accuracy = _floats(audit.by_class["accuracy"])
    order = np.argsort(accuracy, kind="stable")
    present = order[np.isfinite(accuracy[order])]
    return np.asarray(present[:10] if len(present) <= 10 else present[:MOST_HIGHLIGHTED], dtype=np.int64)


def _map(audit: Audit, highlighted: NDArray[np.int64]) -> plots.Figure | None:
    sample = audit.feature_sample
    if sample is None:
        return None
    placed = feature_map(sample.features, sample.labels, highlighted)
    if placed is None:
        return None
    correct = np.asarray(sample.correct, dtype=bool)[placed.sample]
    return plots.feature_map_figure(
        placed.points, placed.labels, correct, audit.class_names, [int(c) for c in highlighted]
    )


def _map_caption(audit: Audit, highlighted: NDArray[np.int64]) -> str:
    words = "Features of a subsample of the test set, placed by t-SNE; crosses are classified wrong. "
    if len(highlighted) < audit.num_classes:
        words += f"The {len(highlighted)} hardest classes are in colour. "
    return words + "Neighbourhoods mean something in such a map, distances between groups do not."


def _comparison_part(comparison: Comparison) -> dict[str, Any]:
    return {
        "verdict": printable(comparison.verdict),
        "summary": pair_summary_table(comparison),
        "baseline_name": comparison.baseline_name,
        "alpha": comparison.alpha,
        "notes": comparison.notes,
    }


def _confusion(audit: Audit) -> dict[str, Any]:
    """Return one matrix where that is readable, otherwise blocks of classes and the cells to look into."""
    counts = np.asarray(audit.confusion, dtype=np.int64)
    if audit.num_classes < 2 or counts.sum() == np.trace(counts):
        return {"figures": {}, "blocks": [], "first_block": 0, "cells_note": "", "confusion": None}
    order = confusable_order(counts)
    if audit.num_classes <= MOST_CLASSES_IN_ONE_MATRIX:
        figure = _matrix(audit, counts, order)
        return {
            "figures": {"confusion": figure},
            "blocks": [],
            "first_block": 0,
            "cells_note": "",
            "confusion": None,
        }
    return _blocks(audit, counts, order)


def _matrix(audit: Audit, counts: NDArray[np.int64], order: NDArray[np.int64]) -> plots.Figure:
    shares = confusion_shares(counts)[np.ix_(order, order)]
    np.fill_diagonal(shares, np.nan)
    labels = plots.axis_labels([audit.class_names[int(cls)] for cls in order], longest=18)
    return plots.heat_figure(shares, labels, labels)


def _blocks(audit: Audit, counts: NDArray[np.int64], order: NDArray[np.int64]) -> dict[str, Any]:
    starts = block_starts(audit.num_classes)
    shares = block_shares(counts, order, starts)
    ends = [*starts[1:], audit.num_classes]
    titles = [f"block {position + 1}" for position in range(len(starts))]
    blocks = [
        _block_label(position, [audit.class_names[int(cls)] for cls in order[start:end]])
        for position, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
    ]
    cells, left_out = _cells(counts)
    return {
        "figures": {
            "confusion": plots.heat_figure(shares, titles, titles),
            # An empty figure that the page fills when a block is chosen.
            "block": plots.heat_figure(np.zeros((1, 1)), ["-"], ["-"], hover=[[""]]),
        },
        "blocks": blocks,
        "first_block": int(np.argmax(np.diag(shares))),
        "cells_note": f" The {left_out} rarest kinds of error are left out of this view." if left_out else "",
        "confusion": {
            "labels": plots.axis_labels(audit.class_names, longest=18),
            "n": counts.sum(axis=1),
            "order": order,
            "starts": starts,
            "cells": cells,
        },
    }


def _block_label(position: int, names: list[str]) -> str:
    first = ", ".join(printable(name)[:18] for name in names[:4])
    return f"{position}: {first} … ({len(names)} classes)"


def _cells(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    rows, columns = np.nonzero(errors)
    values = errors[rows, columns]
    kept = np.sort(np.argsort(-values, kind="stable")[:MOST_CELLS])
    return np.column_stack([rows[kept], columns[kept], values[kept]]), len(values) - len(kept)


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
