import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from classmargin.evaluation.class_metrics import normal_quantile, wilson_interval
from classmargin.evaluation.headline_intervals import (
    centred_interval,
    class_mean_counts,
    small_sample_factor,
    with_few_changes,
    with_few_events,
)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_equals_statsmodels(confidence):
    n = np.array([1, 1, 5, 30, 100, 1000, 7])
    right = np.array([0, 1, 2, 29, 71, 1000, 0])
    low, high = wilson_interval(right, n, confidence)
    expected = proportion_confint(right, n, alpha=1 - confidence, method="wilson")
    np.testing.assert_allclose(low, expected[0], atol=1e-12)
    np.testing.assert_allclose(high, expected[1], atol=1e-12)


def test_wilson_of_nothing_is_unknown():
    low, high = wilson_interval(np.array([0]), np.array([0]))
    assert np.isnan(low[0])
    assert np.isnan(high[0])


def test_normal_quantile_equals_scipy():
    assert normal_quantile(0.9) == pytest.approx(stats.norm.ppf(0.95))


@pytest.mark.parametrize("n", [30, 50, 100, 300])
def test_wilson_covers(n):
    # Exact, not simulated: sum over all outcomes. Discreteness makes single values wobble, so the mean over accuracies counts.
    right = np.arange(n + 1)
    low, high = wilson_interval(right, np.full(n + 1, n))
    accuracies = np.linspace(0.05, 0.95, 181)[:, None]
    inside = (low <= accuracies) & (accuracies <= high)
    coverage = (stats.binom.pmf(right, n, accuracies) * inside).sum(axis=1)
    assert 0.945 < coverage.mean() < 0.96
    assert coverage.min() > 0.9


def test_centred_interval_ignores_where_the_draws_lie():
    draws = np.random.default_rng(0).normal(0, 0.02, 4000)
    here = centred_interval(0.5, draws, 0.95, proportion=False)
    there = centred_interval(0.5, draws - 0.3, 0.95, proportion=False)
    assert here == pytest.approx(there)
    assert here == pytest.approx((0.5 - 1.96 * 0.02, 0.5 + 1.96 * 0.02), abs=0.002)


def test_centred_interval_turns_skew_the_right_way():
    # Copies that fall far below are a sign that the truth may lie far above.
    draws = -np.random.default_rng(0).exponential(0.02, 4000)
    low, high = centred_interval(0.5, draws, 0.95, proportion=False)
    assert high - 0.5 > 2 * (0.5 - low)


def test_proportions_stay_inside_and_hold_their_value():
    draws = np.random.default_rng(0).binomial(200, 0.98, 2000) / 200
    low, high = centred_interval(0.98, draws, 0.95, proportion=True)
    assert 0 <= low < 0.98 < high <= 1
    assert centred_interval(1.0, np.ones(10), 0.95, proportion=True) == (1.0, 1.0)


def test_unknown_values_have_unknown_intervals():
    assert np.isnan(centred_interval(float("nan"), np.zeros(3), 0.95, proportion=True)).all()


def test_widening_stretches_the_interval():
    draws = np.random.default_rng(0).normal(0, 0.01, 1000)
    low, high = centred_interval(0.0, draws, 0.95, proportion=False)
    wide_low, wide_high = centred_interval(0.0, draws, 0.95, proportion=False, widen=2.0)
    assert (wide_low, wide_high) == pytest.approx((2 * low, 2 * high))


def test_many_events_leave_the_interval_alone():
    assert with_few_events((0.4, 0.6), 50, 100, 0.95) == (0.4, 0.6)
    assert with_few_changes((-0.1, 0.1), 20, 20, 100, 0.95) == (-0.1, 0.1)


def test_no_events_are_still_uncertain():
    low, high = with_few_events((1.0, 1.0), 50, 50, 0.95)
    assert high == 1.0
    assert low == pytest.approx(proportion_confint(50, 50, method="wilson")[0])
    low, high = with_few_changes((0.0, 0.0), 0, 0, 50, 0.95)
    assert low == pytest.approx(-high)
    assert high == pytest.approx(proportion_confint(0, 50, method="wilson")[1])


def test_small_samples_need_longer_deviations():
    assert small_sample_factor(np.array([2, 2])) == pytest.approx(np.sqrt(2))
    assert small_sample_factor(np.array([0, 1])) == 1.0
    assert small_sample_factor(np.full(3, 10_000)) == pytest.approx(1, abs=1e-4)


def test_an_interval_without_width_is_joined_with_that_of_the_counts():
    low, high = with_few_events((0.5, 0.5 + 1e-16), 500, 1000, 0.95)
    assert (low, high) == pytest.approx(stats.binomtest(500, 1000).proportion_ci(0.95, "wilson"))
    low, high = with_few_changes((0.25, 0.25), 250, 0, 1000, 0.95)
    assert low < 0.24 < 0.26 < high
    assert with_few_events((0.49, 0.51), 500, 1000, 0.95) == (0.49, 0.51)
    assert with_few_changes((0.24, 0.26), 250, 0, 1000, 0.95) == (0.24, 0.26)


def test_few_samples_that_did_not_change_are_as_few_as_few_that_did():
    low, high = with_few_changes((0.997, 1.0), 100, 0, 100, 0.95)
    assert low == pytest.approx(0.948, abs=1e-3)
    assert high == 1


def test_a_mean_over_classes_is_known_as_badly_as_its_small_classes():
    events, number = class_mean_counts(np.array([1000.0, 4.0]), np.array([1000, 4]))
    assert events == number == pytest.approx(4 / (1 / 1000 + 1 / 4), abs=1e-5)
    events, number = class_mean_counts(np.array([[7.0, 9.0], [1.0, 0.0]]), np.array([10, 10]))
    assert (events.tolist(), number) == ([16, 1], 20)
    events, number = class_mean_counts(np.zeros((2, 0)), np.zeros(0))
    assert (events.tolist(), number) == ([0, 0], 0)
