import numpy as np
import pytest
import torch

from classmargin.evaluation.feature_geometry import (
    COLLAPSE_KEYS,
    FeatureSums,
    check_finite,
    class_geometry,
    collapse_diagnostics,
    weight_diagnostics,
)
from classmargin.functional import class_moments

# The toy batch of the method tests: spread (1, 0, 0), squared mean norms (2, 4, 10).
TOY = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
TOY_LABELS = np.array([0, 1, 2, 0])


def sums_of(features, labels, num_classes, norm_order=2.0):
    sums = FeatureSums.empty(num_classes, features.shape[1], norm_order)
    sums.add(features, labels)
    return sums


def test_hand_values_of_the_toy_batch():
    geometry = class_geometry(sums_of(TOY, TOY_LABELS, 4))
    np.testing.assert_allclose(geometry.spread, [1, 0, 0, np.nan], atol=1e-12)
    np.testing.assert_allclose(geometry.mean_norm**2, [2, 4, 10, np.nan])
    np.testing.assert_allclose(geometry.sqnorm, [3, 4, 10, np.nan])


def test_third_norm_of_the_toy_batch():
    geometry = class_geometry(sums_of(TOY, TOY_LABELS, 3, norm_order=3.0))
    np.testing.assert_allclose(geometry.sqnorm, [2.663374, 4, 9.220873], atol=1e-6)


@pytest.mark.parametrize("norm_order", [1.0, 2.0, 3.0, 5.0, float("inf")])
def test_statistics_equal_those_of_the_method(toy, norm_order):
    geometry = class_geometry(sums_of(toy.features, toy.labels, 7, norm_order))
    moments = class_moments(torch.from_numpy(toy.features), torch.from_numpy(toy.labels), 7, norm_order)
    np.testing.assert_allclose(geometry.sqnorm, moments.class_sqnorm.numpy(), rtol=1e-10)
    np.testing.assert_allclose(geometry.spread, moments.class_spread.numpy(), rtol=1e-9)
    np.testing.assert_allclose(geometry.mean_norm**2, moments.class_mean_sqnorm.numpy(), rtol=1e-10)


def test_sums_merge_exactly_and_do_not_depend_on_order(toy):
    whole = sums_of(toy.features, toy.labels, 7, 3.0)
    parts = sums_of(toy.features[400:], toy.labels[400:], 7, 3.0)
    parts.merge(sums_of(toy.features[:400], toy.labels[:400], 7, 3.0))
    for name in ("counts", "sums", "square_sums", "norm_sums", "gram"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-10, atol=1e-9)


def test_large_features_do_not_overflow():
    features = np.full((2, 3), 3e4, dtype=np.float16)
    geometry = class_geometry(sums_of(features, np.array([0, 0]), 1, norm_order=9.0))
    assert geometry.sqnorm[0] == pytest.approx((float(features[0, 0]) * 3 ** (1 / 9)) ** 2, rel=1e-6)
    assert geometry.spread[0] == 0


def test_spread_of_nearly_collapsed_features_is_exact():
    rng = np.random.default_rng(0)
    features = 7.0 + 1e-4 * rng.normal(size=(500, 8))
    expected = ((features - features.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert class_geometry(sums_of(features, np.zeros(500, dtype=int), 1)).spread[0] == pytest.approx(expected, rel=1e-4)


def test_nc1_equals_the_definition(toy):
    overall = toy.features.mean(axis=0)
    within, between = np.zeros((5, 5)), np.zeros((5, 5))
    for k in range(7):
        inside = toy.features[toy.labels == k]
        centred = inside - inside.mean(axis=0)
        within += centred.T @ centred / 600
        off = inside.mean(axis=0) - overall
        between += np.outer(off, off) * len(inside) / 600
    expected = np.trace(within @ np.linalg.pinv(between)) / 7
    found = collapse_diagnostics(sums_of(toy.features, toy.labels, 7), None)
    assert found["nc1"] == pytest.approx(expected)
    assert found["within_between_ratio"] == pytest.approx(np.trace(within) / np.trace(between))


def test_nc1_equals_the_definition_with_fewer_classes_than_dimensions():
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1, 2], 40)
    features = rng.normal(size=(3, 12))[labels] * 2 + rng.normal(size=(120, 12))
    means = np.stack([features[labels == k].mean(axis=0) for k in range(3)])
    between = sum(np.outer(m, m) for m in means - means.mean(axis=0)) / 3
    within = sum((f - means[k])[:, None] * (f - means[k])[None, :] for f, k in zip(features, labels, strict=True)) / 120
    expected = np.trace(within @ np.linalg.pinv(between)) / 3
    assert collapse_diagnostics(sums_of(features, labels, 3), None)["nc1"] == pytest.approx(expected)


def test_perfect_collapse_onto_a_simplex():
    simplex = (np.eye(4) - 0.25) * 3
    labels = np.repeat(np.arange(4), 10)
    found = collapse_diagnostics(sums_of(simplex[labels], labels, 4), simplex * 5)
    for name in (
        "nc1",
        "within_between_ratio",
        "mean_equinorm_cv",
        "mean_equiangularity",
        "mean_max_angle_gap",
    ):
        assert found[name] == pytest.approx(0, abs=1e-7), name
    assert found["self_duality"] == pytest.approx(0, abs=1e-12)
    assert found["spread_to_mean_norm"] == pytest.approx(0, abs=1e-6)


def test_average_ratio_of_the_papers_mnist_table():
    spread = [0.0041, 0.0032, 0.0048, 0.0051, 0.0056, 0.0063, 0.0040, 0.0056, 0.0056, 0.0063]
    norms = [6.6982, 6.7474, 6.5227, 6.8819, 6.7275, 6.9866, 6.4091, 6.4091, 6.7820, 6.6932]
    means = np.diag(norms)
    # Two samples at mean plus and minus one step along a free axis have the printed root of the mean squared deviation.
    features = np.concatenate([np.hstack([means, np.array(spread)[:, None] * sign]) for sign in (1, -1)])
    found = collapse_diagnostics(sums_of(features, np.tile(np.arange(10), 2), 10), None)
    assert found["spread_to_mean_norm"] == pytest.approx(7.5e-4, abs=0.1e-4)


def test_weight_diagnostics_of_orthogonal_weights():
    found = weight_diagnostics(np.diag([1.0, 2.0, 3.0]))
    assert found["weight_norm_mean"] == pytest.approx(2)
    assert found["weight_norm_cv"] == pytest.approx(np.sqrt(2 / 3) / 2)


def test_nothing_given_is_nothing_known():
    assert collapse_diagnostics(None, None) == dict.fromkeys(COLLAPSE_KEYS)
    assert set(weight_diagnostics(None).values()) == {None}


def test_one_class_has_no_between():
    found = collapse_diagnostics(sums_of(TOY, np.zeros(4, dtype=int), 1), None)
    assert found["nc1"] is None
    assert found["within_between_ratio"] is None
    assert found["mean_equiangularity"] is None


def test_wide_features_go_without_the_gram_matrix():
    sums = FeatureSums.empty(2, 5000, 2.0)
    assert sums.gram is None
    sums.add(np.ones((2, 5000), dtype=np.float32), np.array([0, 1]))
    assert collapse_diagnostics(sums, None)["nc1"] is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused_with_their_row(value):
    rows = np.zeros((4, 3), dtype=np.float32)
    rows[2, 1] = value
    with pytest.raises(ValueError, match=r"features must be finite.*row 7"):
        check_finite("features", rows, first_row=5)


@pytest.mark.parametrize("unit", [2.0**-1070, 1e-200, 1e300], ids=["subnormal", "tiny", "huge"])
def test_lengths_and_angles_have_no_unit(unit):
    weight = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    plain, other = weight_diagnostics(weight), weight_diagnostics(unit * weight)
    assert other.pop("weight_norm_mean") / unit == pytest.approx(plain.pop("weight_norm_mean"), rel=1e-2)
    assert other == {name: pytest.approx(value) for name, value in plain.items()}
    if unit < 1:  # squares of huge features overflow in the sums themselves
        labels = np.repeat(np.arange(3), 2)
        plain, other = (collapse_diagnostics(sums_of(u * weight[labels], labels, 3), weight) for u in (1.0, unit))
        for name in ("mean_equinorm_cv", "mean_equiangularity", "mean_max_angle_gap", "self_duality"):
            assert other[name] == pytest.approx(plain[name], rel=0.05 if unit < 1e-300 else 1e-9), name


def test_weights_at_zero_have_no_variation():
    assert weight_diagnostics(np.zeros((3, 2)))["weight_norm_cv"] is None
