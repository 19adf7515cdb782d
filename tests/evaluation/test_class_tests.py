import numpy as np
import pytest
from scipy import stats

from classmargin.evaluation.paired_tests import class_differences, mcnemar_p_values


def test_one_run_each_is_an_exact_mcnemar_test():
    labels = np.array([0] * 10 + [1] * 4)
    first = np.array([1] * 2 + [0] * 8 + [1] * 4, dtype=bool)
    second = np.array([1] * 9 + [0] + [1, 1, 0, 0], dtype=bool)
    found = class_differences(labels, np.stack([first, second], axis=1), (1, 1), 3)
    np.testing.assert_array_equal(found.gained, [7, 0, 0])
    np.testing.assert_array_equal(found.lost, [0, 2, 0])
    np.testing.assert_allclose(found.baseline, [0.2, 1.0, np.nan])
    np.testing.assert_allclose(found.candidate, [0.9, 0.5, np.nan])
    np.testing.assert_allclose(found.p_value[:2], mcnemar_p_values(np.array([7, 0]), np.array([0, 2])))
    assert np.isnan(found.p_value[2])


def draw(rng, runs, n, seed_noise, shift=0.0):
    """Correctness of runs on one class: shared difficulty of samples, own noise, own class accuracy."""
    difficulty = rng.normal(size=n)
    columns = []
    for side, count in enumerate(runs):
        for _ in range(count):
            level = 0.5 + shift * side + rng.normal(0, seed_noise)
            columns.append(0.7 * difficulty + 0.7 * rng.normal(size=n) < level)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("seed_noise", [0.0, 0.15])
def test_several_runs_keep_the_error_rate(seed_noise):
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(1500):
        correct = draw(rng, (3, 3), 60, seed_noise)
        p_values.append(class_differences(np.zeros(60, dtype=int), correct, (3, 3), 1).p_value[0])
    assert np.mean(np.array(p_values) <= 0.05) < 0.06


def test_treating_runs_as_one_would_not_keep_it():
    rng = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(600):
        correct = draw(rng, (3, 3), 400, 0.15).astype(float)
        difference = correct[:, 3:].mean(axis=1) - correct[:, :3].mean(axis=1)
        false_alarms += stats.ttest_1samp(difference, 0).pvalue <= 0.05
    assert false_alarms / 600 > 0.2


def test_several_runs_see_a_real_difference():
    rng = np.random.default_rng(1)
    correct = draw(rng, (4, 4), 300, 0.02, shift=0.5)
    found = class_differences(np.zeros(300, dtype=int), correct, (4, 4), 1)
    assert found.p_value[0] < 1e-3
    assert found.candidate[0] > found.baseline[0]


def test_unequal_numbers_of_runs_and_no_difference_at_all():
    same = np.ones((6, 3), dtype=bool)
    found = class_differences(np.array([0, 0, 0, 1, 1, 1]), same, (1, 2), 2)
    np.testing.assert_array_equal(found.p_value, [1, 1])


def test_a_class_that_changes_alike_in_all_runs_has_the_p_value_of_a_sign_test():
    labels = np.array([0] * 100 + [1] * 3 + [2])
    correct = np.repeat([[False, False, True, True]], 104, axis=0)
    found = class_differences(labels, correct, (2, 2), 4)
    np.testing.assert_allclose(found.p_value[:3], [2.0**-99, 0.25, 1.0])
    assert np.isnan(found.p_value[3])


def test_equal_shares_of_changing_runs_are_no_certainty():
    # Every run of the candidate is right on two of the three samples, every sample right in two of the three runs.
    candidate = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)
    correct = np.concatenate([np.zeros((3, 3), dtype=bool), candidate], axis=1)
    assert class_differences(np.zeros(3, dtype=int), correct, (3, 3), 1).p_value[0] == 0.25


def test_a_single_sample_tells_nothing_however_many_runs_agree_on_it():
    correct = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 1, 0]], dtype=bool)
    assert class_differences(np.zeros(1, dtype=int), correct, (5, 5), 1).p_value[0] == 1
