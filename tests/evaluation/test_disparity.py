import numpy as np
import pytest
from fairlearn.metrics import MetricFrame
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from classmargin.evaluation.class_metrics import (
    class_accuracy,
    confusion_counts,
    disparity_measures,
    generalized_entropy,
    gini,
    theil,
)

ACCURACY = np.array([0.9, 0.5, 0.7, 0.3])

accuracies = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20).map(np.array)


def test_hand_values():
    measures = disparity_measures(ACCURACY, ("a", "b", "c", "d"))
    assert measures["worst_class"] == "d"
    assert measures["best"] == 0.9
    assert measures["range"] == pytest.approx(0.6)
    assert measures["ratio"] == pytest.approx(1 / 3)
    assert measures["worst_5"] == pytest.approx(0.6)
    assert measures["std"] == pytest.approx(np.sqrt(0.05))


def test_gini_equals_the_mean_difference_of_all_pairs():
    pairs = np.abs(ACCURACY[:, None] - ACCURACY[None, :]).mean()
    assert gini(ACCURACY) == pytest.approx(pairs / (2 * ACCURACY.mean()))


def test_generalized_entropy_of_order_two_is_half_the_squared_variation():
    assert generalized_entropy(ACCURACY) == pytest.approx((ACCURACY.std() / ACCURACY.mean()) ** 2 / 2)


def test_theil_index_is_the_mean_of_shares_times_their_logarithm():
    shares = ACCURACY / ACCURACY.mean()
    assert theil(ACCURACY) == pytest.approx((shares * np.log(shares)).mean())


SMALLEST = 5e-324  # the smallest number above zero that float64 knows
THREE = {  # two of three classes right and one at zero, in units that squares or sums do not survive
    "one": 1.0,
    "subnormal": SMALLEST,
    "tiny": 1e-200,
    "huge": 1.7e308,
}


@pytest.mark.parametrize("unit", THREE.values(), ids=THREE)
def test_indices_of_very_small_and_very_large_values_are_those_of_ordinary_ones(unit):
    values = np.array([0.0, unit, unit])
    measures = disparity_measures(values, ("a", "b", "c"))
    assert generalized_entropy(values) == pytest.approx(0.25)
    assert theil(values) == pytest.approx(np.log(1.5))
    assert gini(values) == pytest.approx(1 / 3)
    assert measures["gini"] == pytest.approx(1 / 3)
    assert measures["std"] / unit == pytest.approx(np.sqrt(2) / 3, abs=0.6 if unit == SMALLEST else 1e-12)
    assert measures["mean_class_accuracy"] / unit == pytest.approx(2 / 3, abs=0.6 if unit == SMALLEST else 1e-12)
    assert measures["ratio"] == 0.0
    assert measures["range"] == unit


@pytest.mark.parametrize("unit", THREE.values(), ids=THREE)
def test_equal_classes_have_no_inequality_in_any_unit(unit):
    for values in (np.full(3, unit), np.full(1, unit)):
        measures = disparity_measures(values, ("a", "b", "c"))
        for name in ("gini", "generalized_entropy", "theil"):
            assert measures[name] == pytest.approx(0.0, abs=1e-12), name
        assert measures["std"] / unit == pytest.approx(0.0, abs=1e-12)
        assert measures["range"] == 0.0
        assert measures["ratio"] == 1.0


def test_a_class_far_below_the_others_is_not_taken_for_zero():
    values = np.array([SMALLEST, 1.7e308])
    assert generalized_entropy(values) == pytest.approx(0.5)
    assert gini(values) == pytest.approx(0.5)


@given(accuracies)
def test_equal_classes_have_no_inequality_and_indices_are_never_negative(values):
    assert gini(np.full(5, values[0])) == pytest.approx(0, abs=1e-12)
    assert generalized_entropy(np.full(5, values[0])) == pytest.approx(0, abs=1e-12)
    assert 0 <= gini(values) < 1
    assert generalized_entropy(values) >= 0
    assert theil(values) >= 0


@given(accuracies, st.floats(0.1, 5.0))
def test_indices_do_not_depend_on_scale_or_order(values, factor):
    if values.max() < 1e-6:
        values = values + 0.1
    for index in (gini, generalized_entropy, theil):
        assert index(values * factor) == pytest.approx(index(values), rel=1e-6, abs=1e-9)
        assert index(values[::-1]) == pytest.approx(index(values), rel=1e-9, abs=1e-12)


def test_all_wrong_is_equal():
    measures = disparity_measures(np.zeros(3), ("a", "b", "c"))
    assert measures["gini"] == measures["generalized_entropy"] == measures["theil"] == 0.0
    assert np.isnan(measures["ratio"])


def test_absent_classes_take_no_part():
    assert disparity_measures(np.array([np.nan, 0.5, 0.7]), ("a", "b", "c"))["worst_class"] == "b"


def test_worst_best_and_difference_equal_fairlearn():
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 5, 300), rng.integers(0, 5, 300)
    frame = MetricFrame(metrics=accuracy_score, y_true=labels, y_pred=predictions, sensitive_features=labels)
    accuracy = class_accuracy(confusion_counts(labels, predictions, 5))
    measures = disparity_measures(accuracy, tuple("abcde"))
    np.testing.assert_allclose(accuracy, frame.by_group.to_numpy(dtype=float))
    assert measures["best"] == frame.group_max()
    assert measures["range"] == pytest.approx(frame.difference())
    assert measures["ratio"] == pytest.approx(frame.ratio())
