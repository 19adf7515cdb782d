"""Estimates of the true class accuracies: their intervals hold the truth, and noise is not taken for a gap."""

import numpy as np
import pytest
from benchmarks.coverage import simulate

from classmargin.evaluation import audit
from classmargin.evaluation.corrected import MEASURES, equal_classes_p_value, lagging, true_accuracies


@pytest.mark.parametrize("shape", ["beta", "equal", "two groups", "a few bad"])
def test_intervals_hold_the_truth_where_those_of_the_procedure_do_not(shape):
    # The whole table is `make bench BENCH=coverage`.
    found = simulate(shape, 100, "50", repetitions=12)
    assert min(found["corrected"]["coverage"]) >= 0.8
    assert min(found["own"]["coverage"]) <= 0.5
    assert abs(found["corrected"]["bias"][2]) < 0.7 * abs(found["own"]["bias"][2])


def test_equal_classes_show_a_gap_of_noise_and_no_evidence():
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(100), 50)
    predictions = np.where(rng.random(5000) < 0.8, labels, (labels + 1) % 100)
    own = audit(labels, predictions=predictions, num_classes=100, ranking="own", bootstrap=0)
    found = audit(labels, predictions=predictions, num_classes=100)
    assert own.gap > 0.1
    assert found.gap < 0.6 * own.gap
    assert found.equal_classes > 0.05
    assert found.interval("gap")[0] == 0.0
    assert found.interval("hard")[1] >= 0.8
    assert found.disparity["gini_interval"][0] == 0.0


def test_the_test_of_equal_classes_keeps_its_level_where_errors_are_few():
    rng = np.random.default_rng(0)
    for n, p in ((20, 0.95), (100, 0.8)):
        rejected = np.mean(
            [equal_classes_p_value(rng.binomial(n, p, 100), np.full(100, n)) <= 0.05 for _ in range(600)]
        )
        assert 0.025 < rejected < 0.085


def test_as_many_classes_lag_by_chance_as_is_said():
    rng = np.random.default_rng(0)
    n = np.full(10_000, 20)
    counts = [lagging(rng.binomial(n, 0.95), n, 0.95) for _ in range(5)]
    # A Wilson interval ends below the overall accuracy in 7.5 % of such classes, not in 2.5 %.
    assert np.mean([lags.sum() for lags, _ in counts]) == pytest.approx(counts[0][1], rel=0.15)
    assert counts[0][1] < 250


def test_estimates_lie_between_the_class_and_the_others():
    right = np.array([10, 30, 32, 35, 38, 40])
    found = true_accuracies(right, np.full(6, 40))
    observed = right / 40
    assert found.estimate[0] > observed[0]
    assert found.estimate[-1] < observed[-1]
    assert (found.low <= found.estimate).all()
    assert (found.estimate <= found.high).all()
    for name in MEASURES:
        low, high = found.intervals[name]
        assert low <= found.values[name] <= high


def test_with_endless_samples_the_estimates_are_what_is_observed():
    right = np.array([5000, 7000, 9000])
    found = true_accuracies(right, np.full(3, 10_000))
    assert found.estimate == pytest.approx(right / 10_000, abs=0.005)
    assert found.values["gap"] == pytest.approx(0.4, abs=0.01)
    assert found.equal_p_value < 0.05


def test_absent_classes_and_a_single_class_have_no_estimates_of_thirds():
    found = true_accuracies(np.array([0, 7]), np.array([0, 10]))
    assert np.isnan(found.estimate[0])
    assert np.isnan(found.values["hard"])
    assert np.isnan(found.equal_p_value)


def test_without_intervals_the_values_are_the_same():
    right, n = np.array([10, 30, 32, 35]), np.full(4, 40)
    assert true_accuracies(right, n, intervals=False).values == true_accuracies(right, n).values


def test_many_sizes_are_put_into_cells_of_similar_ones():
    rng = np.random.default_rng(0)
    n = rng.integers(5, 400, 600)
    accuracy = rng.beta(9, 3, 600)
    found = true_accuracies(rng.binomial(n, accuracy), n)
    ordered = np.sort(accuracy)
    assert found.intervals["hard"][0] <= ordered[:200].mean() <= found.intervals["hard"][1]
    assert np.mean((found.low <= accuracy) & (accuracy <= found.high)) > 0.9
