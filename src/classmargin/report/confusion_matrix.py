"""Which classes are confused: one matrix of up to 150 classes, otherwise at most 40 blocks of neighbouring classes to look into.

Neighbours are classes that are mistaken for one another: counts ``[K, K]`` -> share of each class's samples -> symmetric similarity ->
average linkage with optimal leaf ordering (scipy) -> order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from classmargin._printable import printable
from classmargin.evaluation.input_checks import FloatArray, IntArray
from classmargin.report.figures import MOST_NAMED_CLASSES, Figure, axis_labels, empty_figure, titled_axis

MOST_CLASSES_IN_ONE_MATRIX = 150
MOST_CELLS = 100_000
LABEL_LENGTH = 18
# From invisible to full strength, so that "nothing" is the page itself, light or dark.
HEAT_SCALE = [
    [share, f"rgba(217,65,88,{opacity})"]
    for share, opacity in ((0.0, 0.0), (0.02, 0.12), (0.2, 0.45), (0.6, 0.8), (1.0, 1.0))
]


@dataclass(frozen=True)
class ConfusionView:
    """What the page shows about confusions."""

    figures: dict[str, Figure] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)  # words for each block; empty where one matrix is enough
    first_block: int = 0  # the block that is shown first, the one with most errors inside
    cells: dict[str, Any] | None = None
    left_out: int = 0  # kinds of error that are too many to be put in the file, rarest first


def confusion_view(counts: IntArray, names: Sequence[str]) -> ConfusionView:
    """Return the view of a confusion matrix; an empty one where there is no error to show."""
    if counts.sum() == np.trace(counts):
        return ConfusionView()
    order = confusable_order(counts)
    if len(names) > MOST_CLASSES_IN_ONE_MATRIX:
        return _blocks(counts, names, order)
    shares = confusion_shares(counts)[np.ix_(order, order)]
    np.fill_diagonal(shares, np.nan)
    figure = heat_figure(shares, axis_labels([names[cls] for cls in order], longest=LABEL_LENGTH))
    figure.update_layout(meta={"classes": order.tolist()})  # which class a cell that is clicked belongs to
    return ConfusionView(figures={"confusion": figure})


def _blocks(counts: IntArray, names: Sequence[str], order: IntArray) -> ConfusionView:
    starts = block_starts(len(names))
    shares = block_shares(counts, order, starts)
    members = np.split(order, starts[1:])
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    rows, columns = np.nonzero(errors)
    values = errors[rows, columns]
    kept = np.sort(np.argsort(-values, kind="stable")[:MOST_CELLS])
    words = []
    for number, group in enumerate(members, start=1):
        first = ", ".join(printable(names[cls])[:LABEL_LENGTH] for cls in group[:4])
        words.append(f"{number}: {first} … ({len(group)} classes)")
    block = heat_figure(np.zeros((1, 1)), ["-"])
    block.data[0].update(hovertemplate="%{text}<extra></extra>")
    whole = heat_figure(shares, [f"block {number}" for number in range(1, len(starts) + 1)])
    cells = {
        "labels": axis_labels(names, longest=LABEL_LENGTH),
        "n": counts.sum(axis=1),
        "order": order,
        "starts": starts,
    }
    cells["cells"] = np.column_stack([rows[kept], columns[kept], values[kept]])
    worst = int(np.argmax(np.diag(shares)))
    return ConfusionView({"confusion": whole, "block": block}, words, worst, cells, len(values) - len(kept))


def heat_figure(shares: FloatArray, labels: Sequence[str]) -> Figure:
    """Return shares of errors ``[n, n]`` as a heat map of categories, true classes down, predictions across; zooming in shows more."""
    few = len(labels) <= MOST_NAMED_CLASSES
    figure = empty_figure(min(960 if few else 760, max(340, 150 + 24 * len(labels))))
    figure.add_heatmap(
        z=np.round(shares, 4),
        x=list(labels),
        y=list(labels),
        colorscale=HEAT_SCALE,
        zmin=0,
        xgap=int(few),
        ygap=int(few),
        colorbar={"tickformat": ".0%", "thickness": 10, "outlinewidth": 0, "len": 0.6},
        hovertemplate="true <b>%{y}</b><br>taken for <b>%{x}</b><br>%{z:.1%}<extra></extra>",
        hoverongaps=False,
    )
    category: dict[str, Any] = {"type": "category", "tickfont": {"size": 10}, "showgrid": False}
    if few:  # every name; left to itself plotly leaves out what it finds crowded
        category |= {"tickmode": "linear", "tick0": 0, "dtick": 1}
    figure.update_xaxes(titled_axis("predicted", tickangle=-60, **category))
    figure.update_yaxes(titled_axis("true", autorange="reversed", **category))
    return figure


# Turning the branches of the tree the best way costs K cubed: 4 s at 1000 classes, half a minute at 2000.
# Blocks are blocks without it; only their neighbourhood is less telling.
MOST_CLASSES_FOR_OPTIMAL_ORDER = 1500


def confusion_shares(counts: IntArray) -> FloatArray:
    """Return which share of each true class went to each prediction, rows of absent classes being zero."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def confusable_order(counts: IntArray) -> IntArray:
    """Return the classes in an order that puts those together that send a large share of their samples to one another ``[K]``."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares, num_classes = confusion_shares(counts), len(counts)
    if num_classes < 3:
        return np.arange(num_classes, dtype=np.int64)
    distance = 1.0 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0.0)
    best_flips = num_classes <= MOST_CLASSES_FOR_OPTIMAL_ORDER
    tree = linkage(squareform(distance, checks=False), method="average", optimal_ordering=best_flips)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def block_starts(num_classes: int, *, most_blocks: int = 40) -> IntArray:
    """Return where at most ``most_blocks`` blocks of nearly equal size start."""
    size = -(-num_classes // most_blocks)
    return np.arange(0, num_classes, size, dtype=np.int64)


def block_shares(confusion: IntArray, order: IntArray, starts: IntArray) -> FloatArray:
    """Return the errors between blocks of classes (the diagonal: within a block) as a share of the samples of the row's block."""
    counts = np.asarray(confusion, dtype=np.float64)[np.ix_(order, order)]
    samples = np.add.reduceat(counts.sum(axis=1), starts)
    np.fill_diagonal(counts, 0.0)
    errors = np.add.reduceat(np.add.reduceat(counts, starts, axis=0), starts, axis=1)
    return errors / np.maximum(samples[:, None], 1)
