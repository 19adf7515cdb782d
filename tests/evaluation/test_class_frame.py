import numpy as np
import pytest
from fairlearn.metrics import MetricFrame
from sklearn.metrics import accuracy_score, zero_one_loss

from classmargin.evaluation import Metric, class_frame

METRICS = {"accuracy": Metric(accuracy_score), "error": Metric(zero_one_loss, higher_is_better=False)}


@pytest.fixture
def guesses():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 500)
    return labels, np.where(rng.random(500) < 0.3 + labels / 10, labels, rng.integers(0, 6, 500))


def test_frame_equals_fairlearn(guesses):
    labels, predictions = guesses
    ours = class_frame(labels, predictions, metrics=METRICS, num_classes=6)
    theirs = MetricFrame(
        metrics={name: metric.function for name, metric in METRICS.items()},
        y_true=labels,
        y_pred=predictions,
        sensitive_features=labels,
    )
    np.testing.assert_allclose(ours.by_class.to_numpy(), theirs.by_group.to_numpy(dtype=float))
    for name in METRICS:
        assert ours.overall[name] == pytest.approx(theirs.overall[name])
        assert ours.difference()[name] == pytest.approx(theirs.difference()[name])
        assert ours.ratio()[name] == pytest.approx(theirs.ratio()[name])


def test_worst_follows_the_direction_of_the_metric(guesses):
    frame = class_frame(*guesses, metrics=METRICS, class_names=list("abcdef"))
    assert frame.worst()["accuracy"] == frame.by_class["accuracy"].min()
    assert frame.worst()["error"] == frame.by_class["error"].max()
    assert frame.best()["error"] == frame.by_class["error"].min()
    assert frame.worst_class()["accuracy"] == frame.worst_class()["error"]


def test_tiers_are_means_over_their_classes(guesses):
    frame = class_frame(*guesses, num_classes=6)
    ordered = np.sort(frame.by_class["accuracy"].to_numpy())[::-1]
    np.testing.assert_allclose(frame.by_tier["accuracy"], ordered.reshape(3, 2).mean(axis=1))
    assert frame.tier_gap()["accuracy"] == pytest.approx(ordered[:2].mean() - ordered[4:].mean())


def test_given_tiers_are_used(guesses):
    codes = np.array([0, 0, 1, 1, 2, -1])
    frame = class_frame(*guesses, num_classes=6, tiers=codes)
    assert frame.by_tier.loc["hard", "accuracy"] == frame.by_class["accuracy"].iloc[4]


def test_absent_classes_are_unknown():
    frame = class_frame([0, 0], [0, 1], num_classes=3)
    np.testing.assert_array_equal(frame.by_class["accuracy"], [0.5, np.nan, np.nan])
    assert frame.worst()["accuracy"] == 0.5
