from __future__ import annotations

import numpy as np

from classmargin.report.figures import choose_samples, feature_map, feature_map_figure


def clusters(num_classes=4, per_class=30, dim=12, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(num_classes), per_class)
    return 8 * rng.normal(size=(num_classes, dim))[labels] + rng.normal(size=(len(labels), dim)), labels


def test_well_separated_classes_stay_apart_on_the_map():
    features, labels = clusters()
    placed = feature_map(features, labels, np.array([0, 1]))
    distance = np.linalg.norm(placed.points[:, None] - placed.points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = placed.labels[distance.argmin(axis=1)]
    assert (nearest == placed.labels).mean() > 0.98


def test_the_map_is_the_same_every_time():
    features, labels = clusters()
    first, second = (feature_map(features, labels, np.array([0])) for _ in range(2))
    np.testing.assert_array_equal(first.points, second.points)


def test_too_few_samples_give_no_map():
    assert feature_map(np.zeros((5, 3)), np.zeros(5, dtype=int), np.array([0])) is None


def test_equal_features_and_one_dimension_give_finite_places():
    labels = np.zeros(20, dtype=int)
    assert np.isfinite(feature_map(np.ones((20, 4)), labels, labels[:1]).points).all()
    line = feature_map(np.arange(20.0)[:, None], labels, labels[:1]).points
    assert np.isfinite(line).all()
    assert len(np.unique(line[:, 0])) == 20


def test_half_precision_features_are_placed():
    features, labels = clusters()
    assert np.isfinite(feature_map(features.astype(np.float16), labels, np.array([0])).points).all()


def test_subsample_keeps_highlighted_classes_and_draws_the_rest():
    labels = np.repeat(np.arange(50), 100)
    chosen = choose_samples(labels, np.array([7, 9]), seed=0)
    counts = np.bincount(labels[chosen], minlength=50)
    assert len(chosen) == len(set(chosen.tolist())) == 2000
    assert counts[7] == counts[9] == 80
    assert (np.delete(counts, [7, 9]) < 80).all()


def test_figure_marks_errors_and_names_only_highlighted_classes():
    features, labels = clusters(per_class=10)
    placed = feature_map(features, labels, np.array([2]))
    correct = np.arange(len(placed.labels)) % 10 != 0
    figure = feature_map_figure(placed, correct, ["a", "b", "<c>", "d"], np.array([2]))
    assert [trace.name for trace in figure.data] == ["other classes", "&lt;c&gt;"]
    symbols = np.concatenate([trace.marker.symbol for trace in figure.data])
    assert (symbols == "x").sum() == (~correct).sum()
    assert figure.data[1].marker.symbol[0] == "circle"
