"""A 2-D map of features: choose a few thousand samples, reduce with PCA, place with t-SNE (scikit-learn)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from classmargin._progress import progress

# t-SNE on 2000 points takes about ten seconds on one core; twice as many points show no more on a screen.
MOST_POINTS = 2000
MOST_POINTS_A_CLASS = 80
_STAGES = 3  # of 250 iterations each, the smallest number that scikit-learn accepts


class FeatureMap(NamedTuple):
    """Places of the chosen samples.

    Attributes:
        points: Places ``[n, 2]``.
        labels: True class of each point ``[n]``.
        sample: Position of each point in the test set ``[n]``.
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
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(labels))
    wanted = [shuffled[labels[shuffled] == cls][:most_a_class] for cls in highlighted]
    focus = np.concatenate(wanted)[:most] if wanted else np.empty(0, dtype=np.int64)
    others = shuffled[~np.isin(labels[shuffled], highlighted)][: most - len(focus)]
    return np.sort(np.concatenate([focus, others]).astype(np.int64))


def feature_map(
    features: NDArray[Any], labels: NDArray[np.int64], highlighted: NDArray[np.int64], *, seed: int = 0
) -> FeatureMap | None:
    """Return the t-SNE map of a subsample, or ``None`` where there are too few samples for a neighbourhood.

    scikit-learn's t-SNE cannot report how far it is, so it runs in stages that continue one another: the
    first with early exaggeration, the others descend the same objective from where the last one stopped.

    Args:
        features: Features of the test samples, ``[N, d]``.
        labels: True classes ``[N]``.
        highlighted: Classes the map is about; they are drawn in colour.
        seed: Decides the subsample and PCA's random part.
    """
    chosen = choose_samples(np.asarray(labels), np.asarray(highlighted), seed=seed)
    if len(chosen) < 10:
        return None
    points = _embed(np.asarray(features[chosen], dtype=np.float32), seed)
    return FeatureMap(points, np.asarray(labels)[chosen], chosen)


def _embed(features: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    from classmargin._checks import require_extra

    decomposition = require_extra("sklearn.decomposition", "report", "a map of features")
    manifold = require_extra("sklearn.manifold", "report", "a map of features")
    size = min(50, *features.shape)
    reduced = decomposition.PCA(size, random_state=seed).fit_transform(features - features.mean(axis=0))
    scale = float(reduced[:, 0].std())
    if size < 2 or scale == 0:  # one dimension, or all features equal: nothing to arrange
        return np.column_stack([reduced[:, 0], np.zeros(len(reduced))]).astype(np.float64)
    # The usual start: the first two components, small against the final size of the map.
    points = (reduced[:, :2] / scale * 1e-4).astype(np.float32)
    for stage in progress(range(_STAGES), "placing features (t-SNE)"):
        points = manifold.TSNE(
            init=points,
            perplexity=min(30.0, (len(reduced) - 1) / 3),
            early_exaggeration=12.0 if stage == 0 else 1.0,
            max_iter=250,
            random_state=seed,
        ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)
