import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, precision_score, recall_score
from torchmetrics.functional.classification import multiclass_calibration_error

from classmargin.evaluation.class_metrics import (
    calibration_error,
    class_accuracy,
    class_calibration_error,
    class_means,
    confusion_counts,
    share,
)


@pytest.fixture
def guesses():
    rng = np.random.default_rng(1)
    labels, predictions = rng.integers(0, 6, 400), rng.integers(0, 6, 400)
    return labels, np.where(rng.random(400) < 0.6, labels, predictions)


def test_counts_precision_and_recall_equal_scikit_learn(guesses):
    labels, predictions = guesses
    counts = confusion_counts(labels, predictions, 6)
    np.testing.assert_array_equal(counts, confusion_matrix(labels, predictions))
    np.testing.assert_allclose(class_accuracy(counts), recall_score(labels, predictions, average=None))
    np.testing.assert_allclose(
        share(np.diagonal(counts), counts.sum(axis=0)), precision_score(labels, predictions, average=None)
    )
    assert np.diagonal(counts).sum() / counts.sum() == accuracy_score(labels, predictions)


def test_absent_classes_have_no_accuracy_and_unpredicted_ones_no_precision():
    counts = confusion_counts(np.array([0, 0]), np.array([0, 2]), 4)
    np.testing.assert_array_equal(class_accuracy(counts), [0.5, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(share(np.diagonal(counts), counts.sum(axis=0)), [1.0, np.nan, 0.0, np.nan])


def test_calibration_error_equals_torchmetrics(toy):
    ours = calibration_error(toy.probabilities.max(axis=1), toy.labels == toy.logits.argmax(axis=1))
    theirs = multiclass_calibration_error(
        torch.from_numpy(toy.probabilities), torch.from_numpy(toy.labels), num_classes=7, n_bins=15
    )
    assert ours == pytest.approx(float(theirs), abs=1e-6)


def test_class_calibration_error_is_that_of_the_class_alone(toy):
    confidence, correct = toy.probabilities.max(axis=1), toy.labels == toy.logits.argmax(axis=1)
    by_class = class_calibration_error(confidence, correct, toy.labels, 8)
    for k in range(7):
        inside = toy.labels == k
        assert by_class[k] == pytest.approx(calibration_error(confidence[inside], correct[inside]))
    assert np.isnan(by_class[7])


def test_a_value_on_the_edge_belongs_to_the_lower_bin():
    # 0.2 is the upper edge of the third of fifteen bins: both samples share it and their errors cancel.
    assert calibration_error(np.array([0.2, 0.2]), np.array([True, False])) == pytest.approx(0.3)
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0.0


def test_shares_and_means_of_nothing_are_unknown():
    np.testing.assert_array_equal(share(np.array([0, 3]), np.array([0, 4])), [np.nan, 0.75])
    np.testing.assert_array_equal(class_means(np.array([1.0]), np.array([1]), 2), [np.nan, 1.0])
