"""The figures about classes, as plotly figures made from arrays, and what all figures share: colours, axes, escaped names.

A figure carries no theme: text colours are set in the browser, which knows whether the reader wants light or dark. Plotly reads some HTML
in every text it shows, so all names pass :func:`plotly_text` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from classmargin._checks import require_extra
from classmargin._printable import printable
from classmargin._progress import progress
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray
from classmargin.report.tables import Kind, format_value

if TYPE_CHECKING:
    import pandas as pd

Figure = Any  # plotly.graph_objects.Figure; plotly is an optional dependency and imported late
TIER_COLOURS = {"easy": "#2a9d8f", "medium": "#d99a1c", "hard": "#d1495b"}
NEUTRAL = "#8a93a3"
ACCENT = "#4c78c8"
SERIES_COLOURS = (
    *("#d1495b", ACCENT, "#d99a1c", "#2a9d8f", "#9b5fc0"),
    *("#e377a8", "#8c6d46", "#17a2c4", "#7f9c1f", "#e8743b"),
)


def plotly_text(text: str, *, longest: int | None = None) -> str:
    """Return ``text`` such that plotly shows exactly its characters, cut in the middle where it is too long."""
    text = printable(text)
    if longest is not None and len(text) > longest:  # names of related classes often differ only at the end
        tail = (longest - 1) // 2
        text = f"{text[: longest - 1 - tail]}…{text[-tail:]}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis_labels(names: Sequence[str], *, longest: int = 20) -> list[str]:
    """Return short labels, all different, because plotly merges equal categories of an axis."""
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
    graph_objects = require_extra("plotly.graph_objects", "report", "an HTML report")
    clear = "rgba(0,0,0,0)"
    return graph_objects.Figure().update_layout(
        template="none",
        height=height,
        paper_bgcolor=clear,
        plot_bgcolor=clear,
        margin={"l": 16, "r": 12, "t": 12, "b": 48},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
        **layout,
    )


def titled_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis whose title keeps clear of its numbers."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of fractions that shows percent."""
    return titled_axis(title, tickformat=".0%", **more)


POINTS_AXIS = titled_axis("change in percentage points", tickformat="+~r")
MARKERS = {"mode": "markers", "hovertemplate": "%{text}<extra></extra>"}
MOST_NAMED_CLASSES, MOST_SEPARATE_INTERVALS = 60, 120
OUTCOMES = {
    "gained": ("gained", TIER_COLOURS["easy"]),
    "lost": ("lost", TIER_COLOURS["hard"]),
    "noise": ("may be noise", NEUTRAL),
}
# Named values, each with the two ends of its interval.
Estimates = Mapping[str, tuple[float, float, float]]


def thirds_figure(series: Mapping[str, Estimates]) -> Figure:
    """Return the accuracy of each group of classes with its interval for each model, one row per group."""
    return _interval_rows(series, ("percent", "interval", ""), percent_axis("accuracy", range=[-0.02, 1.02]))


def changes_figure(changes: Mapping[str, Estimates]) -> Figure:
    """Return the change of each headline value with its interval for each model, one row per value."""
    axis = {**POINTS_AXIS, "zeroline": True}
    return _interval_rows(changes, ("points", "points_interval", " points"), axis, 100)


def _interval_rows(
    series: Mapping[str, Estimates], shown_as: tuple[Kind, Kind, str], xaxis: dict[str, Any], scale: int = 1
) -> Figure:
    """Return a row per name; ``shown_as`` are the kinds of a value and of its interval, and what stands after both."""
    rows = list(dict.fromkeys(group for groups in series.values() for group in groups))
    step = 0.2 if len(series) < 4 else 0.7 / len(series)
    figure = empty_figure(90 + (30 + 14 * len(series)) * len(rows), xaxis=xaxis, showlegend=len(series) > 1)
    colours = (NEUTRAL, ACCENT, *SERIES_COLOURS[2:])
    kind, interval_kind, unit = shown_as
    for position, (model, groups) in enumerate(series.items()):
        values = scale * np.array(list(groups.values()), dtype=float)
        colour = colours[position % len(colours)]
        points: Any = colour if len(series) > 1 else [TIER_COLOURS.get(group, NEUTRAL) for group in groups]
        figure.add_scatter(
            x=values[:, 0],
            # Offset the models a little, so that their intervals do not lie on one another.
            y=np.array([rows.index(group) for group in groups]) + step * (position - (len(series) - 1) / 2),
            error_x=_error_bar(*values.T, color=colour, thickness=3),
            name=plotly_text(model, longest=40),
            marker={"size": 12, "color": points},
            text=[
                f"{group}: {format_value(value, kind)} ({format_value(limits, interval_kind)}){unit}"
                for group, (value, *limits) in groups.items()
            ],
            **MARKERS,
        )
    figure.update_yaxes(**_named_rows(rows, first=0))
    return figure


def _error_bar(value: AnyArray, low: AnyArray, high: AnyArray, **style: Any) -> dict[str, Any]:
    return {"type": "data", "symmetric": False, "array": high - value, "arrayminus": value - low, "width": 0, **style}


def _named_rows(labels: Sequence[str], *, first: int) -> dict[str, Any]:
    """Return a vertical axis with one name per row, the first on top."""
    end = first + len(labels)
    rows = {"tickvals": list(range(first, end)), "ticktext": list(labels), "range": [end - 0.5, first - 0.5]}
    return {**rows, "automargin": True, "zeroline": False}


def _floats(column: Any) -> FloatArray:
    return np.asarray(column, dtype=np.float64)


def _tier_members(tier: Any, classes: AnyArray) -> dict[str, IntArray]:
    """Return the classes of each third, in order; one group without a name where there are no thirds."""
    names = np.asarray(tier, dtype=object)[classes]
    groups = {name: classes[names == name] for name in TIER_COLOURS}
    return {name: members for name, members in groups.items() if len(members)} or {"": classes}


def class_accuracy_figure(names: Sequence[str], classes: pd.DataFrame) -> Figure:
    """Return the accuracy of every class with its interval, classes sorted (the paper's Fig. 1a); few are named on the axis.

    ``classes`` has the columns ``accuracy``, ``low``, ``high``, ``n`` and ``tier``.
    """
    accuracy, low, high = (_floats(classes[name]) for name in ("accuracy", "low", "high"))
    count = classes["n"].to_numpy()
    present = np.flatnonzero(np.isfinite(accuracy))
    order = present[np.argsort(-accuracy[present], kind="stable")]
    rank = np.empty(len(accuracy), dtype=np.int64)
    rank[order] = np.arange(1, len(order) + 1)
    named = len(order) <= MOST_NAMED_CLASSES
    along, across = ("x", "y") if named else ("y", "x")
    figure = empty_figure(120 + 22 * len(order) if named else 420)
    for group, members in _tier_members(classes["tier"], order).items():
        colour = TIER_COLOURS.get(group, ACCENT)
        value = accuracy[members]
        # Many intervals overlap: they become a pale band, so that the classes themselves stay visible.
        faint = colour if len(order) <= MOST_SEPARATE_INTERVALS else f"{colour}40"
        bar = _error_bar(value, low[members], high[members], color=faint, thickness=1.2)
        figure.add_scatter(
            **{along: value, across: rank[members], f"error_{along}": bar},
            name=group or "classes",
            marker={"size": 9 if named else max(4, 8 - len(order) // 150), "color": colour},
            text=[
                f"<b>{plotly_text(names[cls], longest=60)}</b><br>{format_value(accuracy[cls], 'percent')} "
                f"({format_value((low[cls], high[cls]), 'interval')})<br>n = {int(count[cls])}, rank {rank[cls]}"
                for cls in members
            ],
            customdata=members.tolist(),  # which class a point that is clicked belongs to
            **MARKERS,
        )
    shares = percent_axis("accuracy", range=[-0.02, 1.02])
    if named:
        labels = axis_labels([names[cls] for cls in order], longest=22)
        return figure.update_layout(xaxis=shares, yaxis=_named_rows(labels, first=1))
    return figure.update_layout(yaxis=shares, xaxis=titled_axis("classes, best first", range=[0, len(order) + 1]))


def class_scatter_figure(names: Sequence[str], classes: pd.DataFrame, key: str, x_title: str) -> Figure:
    """Return accuracy against a property of the class, such as its spread (the paper's Fig. 1b)."""
    figure = empty_figure(400, xaxis=titled_axis(x_title), yaxis=percent_axis("accuracy"))
    x, accuracy = _floats(classes[key]), _floats(classes["accuracy"])
    usable = np.flatnonzero(np.isfinite(x) & np.isfinite(accuracy))
    for group, members in _tier_members(classes["tier"], usable).items():
        size, colour = 8 if len(names) <= 200 else 5, TIER_COLOURS.get(group, ACCENT)
        figure.add_scatter(
            x=x[members],
            y=accuracy[members],
            mode="markers",
            name=group or "classes",
            marker={"size": size, "opacity": 0.85, "color": colour},
            customdata=members.tolist(),
            text=[plotly_text(names[cls], longest=60) for cls in members],
            hovertemplate="<b>%{text}</b><br>" + x_title + " %{x:.3g}<br>accuracy %{y:.1%}<extra></extra>",
        )
    return figure


def gains_figure(classes: pd.DataFrame) -> Figure:
    """Return the change of every class of a comparison, greatest gain first; changes that may be noise are grey."""
    difference = _floats(classes["difference"])
    present = np.flatnonzero(np.isfinite(difference))
    order = present[np.argsort(-difference[present], kind="stable")]
    sorted_classes = classes.iloc[order].assign(place=np.arange(1, len(order) + 1))
    figure = empty_figure(380, bargap=0.15, xaxis=titled_axis("classes, greatest gain first"), yaxis=POINTS_AXIS)
    for key, (label, colour) in OUTCOMES.items():
        members = sorted_classes[sorted_classes["outcome"] == key]
        figure.add_bar(
            x=members["place"].to_numpy(),
            y=100 * _floats(members["difference"]),
            name=f"{label} ({len(members)})",
            marker={"color": colour},
            text=[
                f"<b>{plotly_text(row['class_name'], longest=60)}</b><br>"
                f"{format_value(row['difference'], 'points')} points<br>"
                f"q = {plotly_text(format_value(row['q_value'], 'p_value'))}"
                for row in members.to_dict("records")
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    return figure


# t-SNE on 2000 points takes about ten seconds on one core; twice as many points show no more on a screen.
MOST_POINTS = 2000
MOST_POINTS_A_CLASS = 80
_STAGES = 3  # of 250 iterations each, the smallest number that scikit-learn accepts
_FEWEST_POINTS = 10


class FeatureMap(NamedTuple):
    """Places of the chosen samples."""

    points: FloatArray  # places [n, 2]
    labels: IntArray  # true class of each point [n]
    sample: IntArray  # position of each point in what was given [n]


def choose_samples(labels: IntArray, highlighted: IntArray, seed: int) -> IntArray:
    """Return positions of samples: plenty of every highlighted class, the rest drawn from all other classes."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    wanted = [shuffled[labels[shuffled] == cls][:MOST_POINTS_A_CLASS] for cls in highlighted]
    focus = np.concatenate(wanted)[:MOST_POINTS] if wanted else np.empty(0, dtype=np.int64)
    others = shuffled[~np.isin(labels[shuffled], highlighted)][: MOST_POINTS - len(focus)]
    return np.sort(np.concatenate([focus, others]).astype(np.int64))


def feature_map(features: AnyArray, labels: IntArray, highlighted: IntArray, *, seed: int = 0) -> FeatureMap | None:
    """Return the t-SNE map of a subsample, or ``None`` where there are too few samples for a neighbourhood."""
    chosen = choose_samples(np.asarray(labels), np.asarray(highlighted), seed)
    if len(chosen) < _FEWEST_POINTS:
        return None
    points = _place(np.asarray(features[chosen], dtype=np.float32), seed)
    return FeatureMap(points, np.asarray(labels)[chosen], chosen)


def _place(features: AnyArray, seed: int) -> FloatArray:
    """Run t-SNE in stages that continue one another (only the first exaggerates), because scikit-learn cannot report progress."""
    decomposition = require_extra("sklearn.decomposition", "report", "a map of features")
    manifold = require_extra("sklearn.manifold", "report", "a map of features")
    if features.shape[1] < 2 or not np.ptp(features, axis=0).any():  # nothing to arrange in two dimensions
        return np.column_stack([features[:, 0], np.zeros(len(features))]).astype(np.float64)
    size = min(50, *features.shape)
    reduced = decomposition.PCA(size, random_state=seed).fit_transform(features)
    # The usual start: the first two components, small against the final size of the map.
    points = (reduced[:, :2] / reduced[:, 0].std() * 1e-4).astype(np.float32)
    for stage in progress(range(_STAGES), "placing features (t-SNE)"):
        exaggeration, perplexity = 12.0 if stage == 0 else 1.0, min(30.0, (len(reduced) - 1) / 3)
        points = manifold.TSNE(
            init=points, perplexity=perplexity, early_exaggeration=exaggeration, max_iter=250, random_state=seed
        ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)


def feature_map_figure(placed: FeatureMap, correct: AnyArray, names: Sequence[str], highlighted: IntArray) -> Figure:
    """Return the map with some classes in colour and the rest in grey; errors are crosses."""
    figure = empty_figure(540, xaxis={"visible": False}, yaxis={"visible": False, "scaleanchor": "x"})
    others = np.flatnonzero(~np.isin(placed.labels, highlighted))
    groups: list[tuple[Any, str, dict[str, Any]]] = []
    if len(others):
        groups.append((others, "other classes", {"size": 5, "color": NEUTRAL, "opacity": 0.4}))
    for cls, colour in zip(highlighted, cycle(SERIES_COLOURS), strict=False):
        marker = {"size": 7, "color": colour, "opacity": 0.9}
        groups.append((np.flatnonzero(placed.labels == cls), plotly_text(names[cls], longest=24), marker))
    for members, name, marker in groups:
        # Right ones first: the legend shows the sign of the first point.
        shown = members[np.argsort(~correct[members], kind="stable")]
        figure.add_scatter(
            **dict(zip("xy", placed.points[shown].astype(np.float32).T, strict=True)),
            name=name,
            marker={"symbol": ["circle" if right else "x" for right in correct[shown]], **marker},
            text=[plotly_text(names[cls], longest=40) for cls in placed.labels[shown]],
            **MARKERS,
        )
    return figure
