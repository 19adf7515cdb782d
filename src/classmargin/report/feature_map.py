"""A 2-D map of features: choose a few thousand samples, reduce by PCA, place by t-SNE, draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from classmargin._progress import progress
from classmargin.report.figures import NEUTRAL, SERIES_COLOURS, Figure, empty_figure, plotly_text

# t-SNE on 2000 points takes about ten seconds on one core; twice as many points show no more on a screen.
MOST_POINTS = 2000
MOST_POINTS_A_CLASS = 80
_STAGES = 3  # of 250 iterations each, the smallest number that scikit-learn accepts
_FEWEST_POINTS = 10


class FeatureMap(NamedTuple):
    """Places of the chosen samples.

    Attributes:
        points: Places ``[n, 2]``.
        labels: True class of each point ``[n]``.
        sample: Position of each point in what was given ``[n]``.
    """

    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    sample: NDArray[np.int64]


def choose_samples(
    labels: NDArray[np.int64],
    highlighted: NDArray[np.int64],
    *,
    seed: int = 0,
    most: int = MOST_POINTS,
    most_a_class: int = MOST_POINTS_A_CLASS,
) -> NDArray[np.int64]:
    """Return positions of samples: plenty of every highlighted class, the rest drawn from all other classes.

    Example:
        >>> labels = np.repeat(np.arange(4), 50)
        >>> chosen = choose_samples(labels, np.array([3]), most=40, most_a_class=30)
        >>> len(chosen), int((labels[chosen] == 3).sum())
        (40, 30)
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    wanted = [shuffled[labels[shuffled] == cls][:most_a_class] for cls in highlighted]
    focus = np.concatenate(wanted)[:most] if wanted else np.empty(0, dtype=np.int64)
    others = shuffled[~np.isin(labels[shuffled], highlighted)][: most - len(focus)]
    return np.sort(np.concatenate([focus, others]).astype(np.int64))


def feature_map(
    features: NDArray[Any], labels: NDArray[np.int64], highlighted: NDArray[np.int64], *, seed: int = 0
) -> FeatureMap | None:
    """Return the t-SNE map of a subsample, or ``None`` where there are too few samples for a neighbourhood.

    Args:
        features: Features of the test samples, ``[N, d]``.
        labels: True classes ``[N]``.
        highlighted: Classes the map is about; they get more points.
        seed: Decides the subsample and PCA's random part.
    """
    chosen = choose_samples(np.asarray(labels), np.asarray(highlighted), seed=seed)
    if len(chosen) < _FEWEST_POINTS:
        return None
    points = _place(np.asarray(features[chosen], dtype=np.float32), seed)
    return FeatureMap(points, np.asarray(labels)[chosen], chosen)


def _place(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Run t-SNE in stages that continue one another, because scikit-learn's cannot report how far it is.

    The first stage has early exaggeration; the others descend the same objective from where the last stopped.
    """
    from classmargin._checks import require_extra

    decomposition = require_extra("sklearn.decomposition", "report", "a map of features")
    manifold = require_extra("sklearn.manifold", "report", "a map of features")
    if features.shape[1] < 2 or not np.ptp(features, axis=0).any():  # nothing to arrange in two dimensions
        return np.column_stack([features[:, 0], np.zeros(len(features))]).astype(np.float64)
    size = min(50, *features.shape)
    reduced = decomposition.PCA(size, random_state=seed).fit_transform(features)
    # The usual start: the first two components, small against the final size of the map.
    points = (reduced[:, :2] / reduced[:, 0].std() * 1e-4).astype(np.float32)
    for stage in progress(range(_STAGES), "placing features (t-SNE)"):
        points = manifold.TSNE(
            init=points,
            perplexity=min(30.0, (len(reduced) - 1) / 3),
            early_exaggeration=12.0 if stage == 0 else 1.0,
            max_iter=250,
            random_state=seed,
        ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)


def feature_map_figure(
    placed: FeatureMap, correct: NDArray[np.bool_], names: Sequence[str], highlighted: NDArray[np.int64]
) -> Figure:
    """Return the map with some classes in colour and the rest in grey; errors are crosses.

    Args:
        placed: Places and classes of the points.
        correct: Whether each point is classified right ``[n]``.
        names: Name of every class.
        highlighted: Classes in colour, at most ten.
    """
    figure = empty_figure(540, xaxis={"visible": False}, yaxis={"visible": False, "scaleanchor": "x"})
    others = np.flatnonzero(~np.isin(placed.labels, highlighted))
    if len(others):
        _add_points(
            figure, placed, others, correct, names, name="other classes", size=5, color=NEUTRAL, opacity=0.4
        )
    for position, cls in enumerate(highlighted):
        members = np.flatnonzero(placed.labels == cls)
        colour = SERIES_COLOURS[position % len(SERIES_COLOURS)]
        name = plotly_text(names[cls], longest=24)
        _add_points(figure, placed, members, correct, names, name=name, size=7, color=colour, opacity=0.9)
    return figure


def _add_points(
    figure: Figure,
    placed: FeatureMap,
    members: NDArray[Any],
    correct: NDArray[np.bool_],
    names: Sequence[str],
    *,
    name: str,
    **marker: Any,
) -> None:
    # Right ones first: the legend shows the sign of the first point.
    shown = members[np.argsort(~correct[members], kind="stable")]
    figure.add_scatter(
        x=placed.points[shown, 0].astype(np.float32),
        y=placed.points[shown, 1].astype(np.float32),
        mode="markers",
        name=name,
        marker={"symbol": ["circle" if right else "x" for right in correct[shown]], **marker},
        text=[plotly_text(names[cls], longest=40) for cls in placed.labels[shown]],
        hovertemplate="%{text}<extra></extra>",
    )
