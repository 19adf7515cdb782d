"""The figures about classes, as plotly figures made from arrays, and what all figures share: colours, axes, escaped names.

A figure carries no theme: backgrounds are transparent and text colours are set in the browser, which knows whether the reader wants
light or dark. Trace colours are chosen to be read on both. Plotly reads some HTML in every text it shows, so all names pass
:func:`plotly_text` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._printable import printable
from classmargin.evaluation.comparison import Comparison
from classmargin.report.tables import format_value

Figure = Any  # plotly.graph_objects.Figure; plotly is an optional dependency and imported late
TIER_COLOURS = {"easy": "#2a9d8f", "medium": "#d99a1c", "hard": "#d1495b"}
NEUTRAL = "#8a93a3"
ACCENT = "#4c78c8"
SERIES_COLOURS = (
    "#d1495b",
    ACCENT,
    "#d99a1c",
    "#2a9d8f",
    "#9b5fc0",
    "#e377a8",
    "#8c6d46",
    "#17a2c4",
    "#7f9c1f",
    "#e8743b",
)


def plotly_text(text: str, *, longest: int | None = None) -> str:
    """Return ``text`` such that plotly shows exactly its characters, cut in the middle where it is too long.

    Example:
        >>> plotly_text("<b>R&D</b>")
        '&lt;b&gt;R&amp;D&lt;/b&gt;'
        >>> plotly_text("american pit bull terrier", longest=12)
        'americ…rrier'
    """
    text = printable(text)
    if longest is not None and len(text) > longest:
        # Cut in the middle: names of related classes often differ only at the end.
        tail = (longest - 1) // 2
        text = f"{text[: longest - 1 - tail]}…{text[-tail:]}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis_labels(names: Sequence[str], *, longest: int = 20) -> list[str]:
    """Return short labels, all different, because plotly merges equal categories of an axis.

    Example:
        >>> axis_labels(["cat", "cat", "dog"])
        ['cat', 'cat (1)', 'dog']
    """
    seen: set[str] = set()
    labels = []
    for index, name in enumerate(names):
        label = plotly_text(name, longest=longest)
        if label in seen:
            label = f"{label} ({index})"
        seen.add(label)
        labels.append(label)
    return labels


def empty_figure(height: int, **layout: Any) -> Figure:
    """Return a figure without traces and without a theme."""
    from classmargin._checks import require_extra

    graph_objects = require_extra("plotly.graph_objects", "report", "an HTML report")
    figure = graph_objects.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 16, "r": 12, "t": 12, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
        **layout,
    )
    return figure


def titled_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis whose title keeps clear of its numbers."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of fractions that shows percent."""
    return titled_axis(title, tickformat=".0%", **more)


MOST_NAMED_CLASSES = 60
MOST_SEPARATE_INTERVALS = 120
OUTCOMES = {
    "gained": ("gained", TIER_COLOURS["easy"]),
    "lost": ("lost", TIER_COLOURS["hard"]),
    "noise": ("may be noise", NEUTRAL),
}
# Named values, each with the two ends of its interval.
Estimates = Mapping[str, tuple[float, float, float]]


def thirds_figure(series: Mapping[str, Estimates]) -> Figure:
    """Return the accuracy of each group of classes with its interval, one row per group.

    Args:
        series: For each model, the groups (``"easy"``, ``"hard"`` …) with (value, low, high) in [0, 1].
    """
    texts = {
        model: [
            f"{group}: {format_value(value, 'percent')} ({format_value((low, high), 'interval')})"
            for group, (value, low, high) in groups.items()
        ]
        for model, groups in series.items()
    }
    return _interval_rows(series, texts, percent_axis("accuracy", range=[-0.02, 1.02]))


def changes_figure(changes: Mapping[str, Estimates]) -> Figure:
    """Return the change of each headline value with its interval, one row per value.

    Args:
        changes: For each model, the values (``"overall"`` …) with (difference, low, high) as fractions.
    """
    texts = {
        model: [
            f"{name}: {format_value(value, 'points')} ({format_value((low, high), 'points_interval')}) points"
            for name, (value, low, high) in values.items()
        ]
        for model, values in changes.items()
    }
    points = {
        model: {name: (100 * value, 100 * low, 100 * high) for name, (value, low, high) in values.items()}
        for model, values in changes.items()
    }
    return _interval_rows(points, texts, _points_axis(zeroline=True))


def _points_axis(**more: Any) -> dict[str, Any]:
    return titled_axis("change in percentage points", tickformat="+~r", **more)


def _interval_rows(
    series: Mapping[str, Estimates], texts: Mapping[str, list[str]], xaxis: dict[str, Any]
) -> Figure:
    rows = list(dict.fromkeys(group for groups in series.values() for group in groups))
    step = 0.2 if len(series) < 4 else 0.7 / len(series)
    figure = empty_figure(90 + (30 + 14 * len(series)) * len(rows), xaxis=xaxis, showlegend=len(series) > 1)
    colours = (NEUTRAL, ACCENT, *SERIES_COLOURS[2:])
    for position, (model, groups) in enumerate(series.items()):
        values = np.array(list(groups.values()), dtype=float)
        colour = colours[position % len(colours)]
        points: Any = colour if len(series) > 1 else [TIER_COLOURS.get(group, NEUTRAL) for group in groups]
        figure.add_scatter(
            x=values[:, 0],
            # Offset the models a little, so that their intervals do not lie on one another.
            y=np.array([rows.index(group) for group in groups]) + step * (position - (len(series) - 1) / 2),
            error_x=_error_bar(*values.T, color=colour, thickness=3),
            mode="markers",
            name=plotly_text(model, longest=40),
            marker={"size": 12, "color": points},
            text=texts[model],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_yaxes(**_named_rows(rows, first=0))
    return figure


def _error_bar(value: NDArray[Any], low: NDArray[Any], high: NDArray[Any], **style: Any) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": high - value,
        "arrayminus": value - low,
        "width": 0,
        **style,
    }


def _named_rows(labels: Sequence[str], *, first: int) -> dict[str, Any]:
    """Return a vertical axis with one name per row, the first on top."""
    rows = list(range(first, first + len(labels)))
    span = [first + len(labels) - 0.5, first - 0.5]
    return {"tickvals": rows, "ticktext": list(labels), "range": span, "automargin": True, "zeroline": False}


def _tier_members(tier: Sequence[str], classes: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
    """Return the classes of each third, in order; one group without a name where there are no thirds."""
    names = np.asarray(tier, dtype=object)[classes]
    groups = {name: classes[names == name] for name in TIER_COLOURS}
    return {name: members for name, members in groups.items() if len(members)} or {"": classes}


def class_accuracy_figure(
    names: Sequence[str],
    accuracy: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    count: NDArray[np.int64],
    tier: Sequence[str],
) -> Figure:
    """Return the accuracy of every class with its interval, classes sorted (the paper's Fig. 1a).

    Few classes are named on the axis; many are shown by rank, and named where the pointer is.
    """
    present = np.flatnonzero(np.isfinite(accuracy))
    order = present[np.argsort(-accuracy[present], kind="stable")]
    rank = np.empty(len(accuracy), dtype=np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    named = len(order) <= MOST_NAMED_CLASSES
    figure = empty_figure(120 + 22 * len(order) if named else 420)
    for group, members in _tier_members(tier, order).items():
        colour = TIER_COLOURS.get(group, ACCENT)
        value = accuracy[members]
        # Many intervals overlap: they become a pale band, so that the classes themselves stay visible.
        faint = colour if len(order) <= MOST_SEPARATE_INTERVALS else f"{colour}40"
        bar = _error_bar(value, low[members], high[members], color=faint, thickness=1.2)
        along, across = ("x", "y") if named else ("y", "x")
        figure.add_scatter(
            **{along: value, across: rank[members], f"error_{along}": bar},
            mode="markers",
            name=group or "classes",
            marker={"size": 9 if named else max(4, 8 - len(order) // 150), "color": colour},
            text=[
                f"<b>{plotly_text(names[cls], longest=60)}</b><br>"
                f"{format_value(accuracy[cls], 'percent')} "
                f"({format_value((low[cls], high[cls]), 'interval')})<br>"
                f"n = {int(count[cls])}, rank {rank[cls]}"
                for cls in members
            ],
            customdata=members.tolist(),  # which class a point that is clicked belongs to
            hovertemplate="%{text}<extra></extra>",
        )
    shares = percent_axis("accuracy", range=[-0.02, 1.02])
    if named:
        labels = axis_labels([names[cls] for cls in order], longest=22)
        return figure.update_layout(xaxis=shares, yaxis=_named_rows(labels, first=1))
    return figure.update_layout(
        yaxis=shares, xaxis=titled_axis("classes, best first", range=[0, len(order) + 1])
    )


def class_scatter_figure(
    names: Sequence[str],
    x: NDArray[np.float64],
    accuracy: NDArray[np.float64],
    tier: Sequence[str],
    *,
    x_title: str,
) -> Figure:
    """Return accuracy against a property of the class, such as its spread (the paper's Fig. 1b)."""
    figure = empty_figure(400, xaxis=titled_axis(x_title), yaxis=percent_axis("accuracy"))
    usable = np.flatnonzero(np.isfinite(x) & np.isfinite(accuracy))
    for group, members in _tier_members(tier, usable).items():
        figure.add_scatter(
            x=x[members],
            y=accuracy[members],
            mode="markers",
            name=group or "classes",
            marker={
                "size": 8 if len(names) <= 200 else 5,
                "opacity": 0.85,
                "color": TIER_COLOURS.get(group, ACCENT),
            },
            text=[plotly_text(names[cls], longest=60) for cls in members],
            customdata=members.tolist(),
            hovertemplate="<b>%{text}</b><br>" + x_title + " %{x:.3g}<br>accuracy %{y:.1%}<extra></extra>",
        )
    return figure


def gains_figure(
    names: Sequence[str],
    difference: NDArray[np.float64],
    q_value: NDArray[np.float64],
    outcome: Sequence[str],
) -> Figure:
    """Return the change of accuracy of every class, greatest gain first; changes that may be noise are grey.

    Args:
        names: Name of every class.
        difference: Change of accuracy as a fraction ``[K]``, NaN where a class is absent.
        q_value: False discovery rate of each change ``[K]``.
        outcome: ``"gained"``, ``"lost"``, ``"noise"`` or ``"absent"`` for each class.
    """
    present = np.flatnonzero(np.isfinite(difference))
    order = present[np.argsort(-difference[present], kind="stable")]
    found = np.asarray(outcome, dtype=object)[order]
    figure = empty_figure(
        380, bargap=0.15, xaxis=titled_axis("classes, greatest gain first"), yaxis=_points_axis()
    )
    for key, (label, colour) in OUTCOMES.items():
        places = np.flatnonzero(found == key)
        members = order[places]
        figure.add_bar(
            x=places + 1,
            y=100 * difference[members],
            name=f"{label} ({len(members)})",
            marker={"color": colour},
            text=[
                f"<b>{plotly_text(names[cls], longest=60)}</b><br>"
                f"{format_value(difference[cls], 'points')} points<br>"
                f"q = {plotly_text(format_value(q_value[cls], 'p_value'))}"
                for cls in members
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    return figure


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the change of accuracy of every class."""
    frame = comparison.by_class
    return gains_figure(
        comparison.class_names,
        np.asarray(frame["difference"], dtype=np.float64),
        np.asarray(frame["q_value"], dtype=np.float64),
        list(frame["outcome"]),
    )
