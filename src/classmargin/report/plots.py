"""The figures of the reports, as plotly figures made from plain arrays.

A figure carries no theme: backgrounds are transparent and text colours are set in the browser, which knows
whether the reader wants light or dark. Trace colours are chosen to be read on both.

Plotly reads some HTML in every text it shows. All names therefore pass :func:`plotly_text` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from classmargin.report.tables import Kind, format_value, printable

Figure = Any  # plotly.graph_objects.Figure; plotly is an optional dependency and imported late

TIER_COLOURS = {"easy": "#2a9d8f", "medium": "#d99a1c", "hard": "#d1495b"}
MODEL_COLOURS = ("#8a93a3", "#4c78c8", "#9b5fc0", "#d99a1c", "#2a9d8f", "#d1495b")
GAIN, LOSS, NOISE = "#2a9d8f", "#d1495b", "#8a93a3"
ACCENT = "#4c78c8"
CLASS_COLOURS = (
    "#d1495b",
    "#4c78c8",
    "#d99a1c",
    "#2a9d8f",
    "#9b5fc0",
    "#e377a8",
    "#8c6d46",
    "#17a2c4",
    "#7f9c1f",
    "#e8743b",
)

# From invisible to full strength, so that "nothing" is the page itself, light or dark.
HEAT_SCALE = [
    [0.0, "rgba(217,65,88,0)"],
    [0.2, "rgba(217,65,88,0.4)"],
    [0.6, "rgba(217,65,88,0.8)"],
    [1.0, "rgba(217,65,88,1)"],
]

MOST_NAMED_CLASSES = 30
MOST_SEPARATE_INTERVALS = 120


def plotly_text(text: str, *, longest: int | None = None) -> str:
    """Return ``text`` such that plotly shows exactly its characters, cut in the middle where it is too long.

    Example:
        >>> plotly_text("american pit bull terrier", longest=12)
        'americ…rrier'
        >>> plotly_text("<b>R&D</b>")
        '&lt;b&gt;R&amp;D&lt;/b&gt;'
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


def _figure(height: int, **layout: Any) -> Figure:
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


def _percent_axis(title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8},
        "tickformat": ".0%",
        "zeroline": False,
        "automargin": True,
        **more,
    }


def _error_bar(value: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": high - value,
        "arrayminus": value - low,
        "thickness": 1.2,
        "width": 0,
    }


def thirds_figure(series: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> Figure:
    """Return the accuracy of each group of classes with its interval, one row a group.

    Args:
        series: For each model, the groups (``"easy"``, ``"hard"`` …) with (value, low, high) in [0, 1].
    """
    return _interval_rows(series, _percent_axis("accuracy", range=[-0.02, 1.02]), "percent")


def _interval_rows(
    series: Mapping[str, Mapping[str, tuple[float, float, float]]],
    xaxis: dict[str, Any],
    kind: Literal["percent", "points"],
) -> Figure:
    rows = list(dict.fromkeys(group for groups in series.values() for group in groups))
    step = 0.2 if len(series) < 4 else 0.7 / len(series)
    figure = _figure(90 + (30 + 14 * len(series)) * len(rows), xaxis=xaxis, showlegend=len(series) > 1)
    interval_kind: Kind = "interval" if kind == "percent" else "points_interval"
    for position, (model, groups) in enumerate(series.items()):
        values = np.array(list(groups.values()), dtype=float)
        colour: Any = MODEL_COLOURS[position % len(MODEL_COLOURS)]
        if len(series) == 1:
            colour = [TIER_COLOURS.get(group, NOISE) for group in groups]
        figure.add_scatter(
            x=values[:, 0],
            # Offset the models a little, so that their intervals do not lie on one another.
            y=np.array([rows.index(group) for group in groups]) + step * (position - (len(series) - 1) / 2),
            error_x=_error_bar(*values.T)
            | {"thickness": 3, "color": colour if isinstance(colour, str) else NOISE},
            mode="markers",
            name=plotly_text(model, longest=40),
            marker={"size": 12, "color": colour},
            text=[
                f"{group}: {format_value(value, kind)} ({format_value((low, high), interval_kind)})"
                for group, (value, low, high) in groups.items()
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=rows,
        range=[len(rows) - 0.5, -0.5],
        automargin=True,
        zeroline=False,
    )
    return figure


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
    named = len(order) <= MOST_NAMED_CLASSES
    figure = _figure(
        120 + 22 * len(order) if named else 420,
        **{"xaxis" if named else "yaxis": _percent_axis("accuracy", range=[-0.02, 1.02])},
    )
    rank_of = {int(cls): rank for rank, cls in enumerate(order, start=1)}
    for group in [name for name in TIER_COLOURS if name in set(tier)] or [""]:
        members = [int(cls) for cls in order if not group or tier[int(cls)] == group]
        ranks = np.array([rank_of[cls] for cls in members])
        value = accuracy[members]
        colour = TIER_COLOURS.get(group, ACCENT)
        # Many intervals overlap: they become a pale band, so that the classes themselves stay visible.
        faint = colour if len(order) <= MOST_SEPARATE_INTERVALS else f"{colour}40"
        bar = _error_bar(value, low[members], high[members]) | {"color": faint}
        place = (
            {"x": value, "y": ranks, "error_x": bar} if named else {"x": ranks, "y": value, "error_y": bar}
        )
        figure.add_scatter(
            **place,
            mode="markers",
            name=group or "classes",
            marker={
                "size": 9 if named else max(3, 8 - len(order) // 150),
                "color": colour,
            },
            text=[
                f"<b>{plotly_text(names[cls], longest=60)}</b><br>"
                f"{format_value(accuracy[cls], 'percent')} "
                f"({format_value((low[cls], high[cls]), 'interval')})<br>"
                f"n = {int(count[cls])}, rank {rank_of[cls]}"
                for cls in members
            ],
            hovertemplate="%{text}<extra></extra>",
        )
    if named:
        labels = axis_labels([names[int(cls)] for cls in order], longest=22)
        figure.update_yaxes(
            tickvals=list(range(1, len(order) + 1)),
            ticktext=labels,
            range=[len(order) + 0.5, 0.5],
            automargin=True,
            zeroline=False,
        )
    else:
        figure.update_xaxes(title={"text": "classes, best first"}, range=[0, len(order) + 1], zeroline=False)
    return figure


def class_scatter_figure(
    names: Sequence[str],
    x: NDArray[np.float64],
    accuracy: NDArray[np.float64],
    tier: Sequence[str],
    *,
    x_title: str,
) -> Figure:
    """Return accuracy against a property of the class, such as its spread (the paper's Fig. 1b)."""
    figure = _figure(
        400, xaxis={"title": {"text": x_title}, "zeroline": False}, yaxis=_percent_axis("accuracy")
    )
    usable = np.isfinite(x) & np.isfinite(accuracy)
    tiers = np.asarray(tier, dtype=object)
    for group in [name for name in TIER_COLOURS if name in set(tier)] or [""]:
        members = np.flatnonzero(usable & (tiers == group)) if group else np.flatnonzero(usable)
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
            text=[plotly_text(names[int(cls)], longest=60) for cls in members],
            hovertemplate="<b>%{text}</b><br>" + x_title + " %{x:.3g}<br>accuracy %{y:.1%}<extra></extra>",
        )
    return figure


def gains_figure(
    names: Sequence[str], difference: NDArray[np.float64], q_value: NDArray[np.float64], *, alpha: float
) -> Figure:
    """Return the change of accuracy of every class, best first; changes that may be noise are grey."""
    present = np.flatnonzero(np.isfinite(difference))
    order = present[np.argsort(-difference[present], kind="stable")]
    ranks = np.arange(1, len(order) + 1)
    supported = np.nan_to_num(q_value[order], nan=1.0) <= alpha
    groups = {
        "gained": (supported & (difference[order] > 0), GAIN),
        "lost": (supported & (difference[order] < 0), LOSS),
        "may be noise": (~supported, NOISE),
    }
    figure = _figure(380, bargap=0.15, yaxis=_percent_axis("change of accuracy", tickformat="+.0%"))
    for label, (chosen, colour) in groups.items():
        members = order[chosen]
        figure.add_bar(
            x=ranks[chosen],
            y=difference[members],
            name=f"{label} ({len(members)})",
            marker={"color": colour},
            text=[
                f"<b>{plotly_text(names[int(cls)], longest=60)}</b><br>"
                f"{format_value(difference[cls], 'points')} points<br>"
                f"q = {plotly_text(format_value(q_value[cls], 'p_value'))}"
                for cls in members
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_xaxes(title={"text": "classes, greatest gain first"}, zeroline=False)
    return figure


def heat_figure(
    shares: NDArray[np.float64],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    hover: Sequence[Sequence[str]] | None = None,
    *,
    names_shown: bool = True,
) -> Figure:
    """Return shares of errors as a heat map, true classes down, predictions across.

    Labels are used as they are (see :func:`axis_labels`); axes are categories, so that zooming in shows more
    of them.
    """
    size = min(760, max(340, 150 + 24 * len(row_labels)))
    figure = _figure(size)
    figure.add_heatmap(
        z=np.round(shares, 4),
        x=list(column_labels),
        y=list(row_labels),
        colorscale=HEAT_SCALE,
        zmin=0,
        xgap=1 if len(row_labels) <= 60 else 0,
        ygap=1 if len(row_labels) <= 60 else 0,
        colorbar={"tickformat": ".0%", "thickness": 10, "outlinewidth": 0, "len": 0.6},
        text=hover,
        hovertemplate="%{text}<extra></extra>"
        if hover is not None
        else "true %{y}<br>predicted %{x}<br>%{z:.1%}<extra></extra>",
        hoverongaps=False,
    )
    axis = {
        "type": "category",
        "tickfont": {"size": 10},
        "automargin": True,
        "showgrid": False,
        "showticklabels": names_shown,
    }
    figure.update_xaxes(title={"text": "predicted", "standoff": 8}, tickangle=-60, **axis)
    figure.update_yaxes(title={"text": "true", "standoff": 8}, autorange="reversed", **axis)
    return figure


def changes_figure(changes: Mapping[str, Mapping[str, tuple[float, float, float]]]) -> Figure:
    """Return the change of each headline value with its interval, one row a value.

    Args:
        changes: For each model, the values (``"overall"``, ``"hard"`` …) with (difference, low, high).
    """
    return _interval_rows(
        changes, _percent_axis("change against the first model", tickformat="+.1%", zeroline=True), "points"
    )


def feature_map_figure(
    points: NDArray[np.float64],
    labels: NDArray[np.int64],
    correct: NDArray[np.bool_],
    names: Sequence[str],
    highlighted: Sequence[int],
) -> Figure:
    """Return the 2-D map of features with some classes in colour and the rest in grey; errors are crosses.

    Args:
        points: Places ``[n, 2]``.
        labels: True class of each point ``[n]``.
        correct: Whether each point is classified right ``[n]``.
        names: Name of every class.
        highlighted: Classes in colour, at most ten.
    """
    figure = _figure(540, xaxis={"visible": False}, yaxis={"visible": False, "scaleanchor": "x"})
    others = ~np.isin(labels, list(highlighted))
    groups = [("other classes", others, NOISE, 5, 0.4)] if others.any() else []
    groups += [
        (
            plotly_text(names[cls], longest=24),
            labels == cls,
            CLASS_COLOURS[position % len(CLASS_COLOURS)],
            7,
            0.9,
        )
        for position, cls in enumerate(highlighted)
    ]
    for label, members, colour, size, opacity in groups:
        # Right ones first: the legend shows the sign of the first point.
        chosen = np.flatnonzero(members)[np.argsort(~correct[members], kind="stable")]
        figure.add_scatter(
            x=points[chosen, 0].astype(np.float32),
            y=points[chosen, 1].astype(np.float32),
            mode="markers",
            name=label,
            marker={
                "size": size,
                "color": colour,
                "opacity": opacity,
                "symbol": ["circle" if right else "x" for right in correct[chosen]],
            },
            text=[plotly_text(names[int(cls)], longest=40) for cls in labels[chosen]],
            hovertemplate="%{text}<extra></extra>",
        )
    return figure
