import numpy as np
import pandas as pd
import pytest
from scipy import stats

from classmargin.evaluation.class_diagnosis import (
    accuracy_correlations,
    correlation_interval,
    pearson,
    spearman,
)


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    return x, np.round(0.5 * x + rng.normal(size=40), 1)  # rounded: with ties


def test_values_equal_scipy(pair):
    x, y = pair
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_pearson_interval_equals_scipy(pair):
    expected = stats.pearsonr(*pair).confidence_interval(0.9)
    assert correlation_interval(pearson(*pair), 40, "pearson", 0.9) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("measure", ["pearson", "spearman"])
@pytest.mark.parametrize("truth", [0.0, -0.6])
def test_intervals_cover(measure, truth):
    rng = np.random.default_rng(2)
    target = truth if measure == "pearson" else 6 / np.pi * np.arcsin(truth / 2)
    function = pearson if measure == "pearson" else spearman
    hits = 0
    for _ in range(3000):
        x = rng.normal(size=50)
        y = truth * x + np.sqrt(1 - truth**2) * rng.normal(size=50)
        low, high = correlation_interval(function(x, y), 50, measure, 0.95)
        hits += low <= target <= high
    assert 0.93 <= hits / 3000 <= 0.97


def test_constant_columns_have_no_correlation():
    assert np.isnan(pearson(np.ones(5), np.arange(5.0)))
    assert np.isnan(correlation_interval(float("nan"), 5, "pearson", 0.95)).all()


def test_a_perfect_correlation_is_its_own_interval():
    assert correlation_interval(1.0, 9, "pearson", 0.95) == (1.0, 1.0)


def test_unknown_columns_are_left_out():
    frame = pd.DataFrame(
        dict.fromkeys(("spread", "mean_norm", "sqnorm", "nearest_angle", "output_margin"), np.nan),
        index=range(5),
    )
    frame["accuracy"] = np.linspace(0, 1, 5)
    frame["spread"] = [5.0, 4.0, 3.0, 2.0, np.nan]
    found = accuracy_correlations(frame, 0.95)
    assert found["x"].tolist() == ["spread", "spread"]
    assert found["value"].tolist() == pytest.approx([-1, -1])
    assert found["classes"].tolist() == [4, 4]


@pytest.mark.parametrize("count", range(3, 30))
def test_what_does_not_vary_has_no_correlation_whatever_the_rounding(count):
    constant, other = np.full(count, 0.9), 1e6 + np.arange(count) ** 2
    assert np.isnan(pearson(constant, other))
    assert np.isnan(pearson(other, constant))
    assert np.isnan(pearson(constant, np.full(count, 0.7)))


@pytest.mark.parametrize("unit", [5e-324, 1e-200, 1e307], ids=["subnormal", "tiny", "huge"])
def test_a_correlation_has_no_unit(unit):
    x, y = np.array([0.0, 1.0, 3.0, 4.0]), np.array([1.0, 0.0, 2.0, 5.0])
    assert pearson(unit * x, y) == pytest.approx(pearson(x, y))
    assert pearson(unit * x, unit * y) == pytest.approx(stats.pearsonr(x, y).statistic)
