"""Which classes are confused: one matrix where that is readable, otherwise blocks of classes to look into.

Up to 150 classes fit in one zoomable matrix. More are put in at most 40 blocks of neighbouring classes (see
``class_order``); the page shows errors between blocks, and the classes of one block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._printable import printable
from classmargin.report.class_order import block_shares, block_starts, confusable_order, confusion_shares
from classmargin.report.figure_parts import Figure, axis_labels, empty_figure, titled_axis

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
    """What the page shows about confusions.

    Attributes:
        figures: ``"confusion"``, and where there are blocks ``"block"``, an empty figure that the page fills.
        blocks: Words for each block; empty where one matrix is enough.
        first_block: The block that is shown first, the one with most errors inside.
        cells: What the page needs to draw a block: labels, samples, order and starts of blocks, and errors as
            (true class, predicted class, count).
        left_out: Kinds of error that are too many to be put in the file, rarest first.
    """

    figures: dict[str, Figure] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    first_block: int = 0
    cells: dict[str, Any] | None = None
    left_out: int = 0


def confusion_view(confusion: NDArray[Any], names: Sequence[str]) -> ConfusionView:
    """Return the view of a confusion matrix; an empty one where there is no error to show.

    Args:
        confusion: Counts ``[K, K]``, true class by predicted class.
        names: Name of every class.
    """
    counts = np.asarray(confusion, dtype=np.int64)
    if counts.sum() == np.trace(counts):
        return ConfusionView()
    order = confusable_order(counts)
    if len(names) > MOST_CLASSES_IN_ONE_MATRIX:
        return _blocks(counts, names, order)
    shares = confusion_shares(counts)[np.ix_(order, order)]
    np.fill_diagonal(shares, np.nan)
    labels = axis_labels([names[cls] for cls in order], longest=LABEL_LENGTH)
    return ConfusionView(figures={"confusion": heat_figure(shares, labels)})


def _blocks(counts: NDArray[np.int64], names: Sequence[str], order: NDArray[np.int64]) -> ConfusionView:
    starts = block_starts(len(names))
    shares = block_shares(counts, order, starts)
    members = np.split(order, starts[1:])
    cells, left_out = _cells(counts)
    titles = [f"block {number}" for number in range(1, len(starts) + 1)]
    block = heat_figure(np.zeros((1, 1)), ["-"])
    block.data[0].update(hovertemplate="%{text}<extra></extra>")
    return ConfusionView(
        figures={"confusion": heat_figure(shares, titles), "block": block},
        blocks=[
            _block_words(number, [names[cls] for cls in group])
            for number, group in enumerate(members, start=1)
        ],
        first_block=int(np.argmax(np.diag(shares))),
        cells={
            "labels": axis_labels(names, longest=LABEL_LENGTH),
            "n": counts.sum(axis=1),
            "order": order,
            "starts": starts,
            "cells": cells,
        },
        left_out=left_out,
    )


def _block_words(number: int, names: Sequence[str]) -> str:
    first = ", ".join(printable(name)[:LABEL_LENGTH] for name in names[:4])
    return f"{number}: {first} … ({len(names)} classes)"


def _cells(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    rows, columns = np.nonzero(errors)
    values = errors[rows, columns]
    kept = np.sort(np.argsort(-values, kind="stable")[:MOST_CELLS])
    return np.column_stack([rows[kept], columns[kept], values[kept]]), len(values) - len(kept)


def heat_figure(shares: NDArray[np.float64], labels: Sequence[str]) -> Figure:
    """Return shares of errors ``[n, n]`` as a heat map, true classes down, predictions across.

    Labels are used as they are (see ``axis_labels``); axes are categories, so that zooming in shows more of
    them.
    """
    gap = 1 if len(labels) <= 60 else 0
    figure = empty_figure(min(760, max(340, 150 + 24 * len(labels))))
    figure.add_heatmap(
        z=np.round(shares, 4),
        x=list(labels),
        y=list(labels),
        colorscale=HEAT_SCALE,
        zmin=0,
        xgap=gap,
        ygap=gap,
        colorbar={"tickformat": ".0%", "thickness": 10, "outlinewidth": 0, "len": 0.6},
        hovertemplate="true <b>%{y}</b><br>taken for <b>%{x}</b><br>%{z:.1%}<extra></extra>",
        hoverongaps=False,
    )
    category = {"type": "category", "tickfont": {"size": 10}, "showgrid": False}
    figure.update_xaxes(titled_axis("predicted", tickangle=-60, **category))
    figure.update_yaxes(titled_axis("true", autorange="reversed", **category))
    return figure
