from __future__ import annotations

import numpy as np
import pytest

from classmargin.evaluation.auditing import audit
from classmargin.evaluation.class_reasons import pair_separability


def separability_of(distance, per_class=60, dim=10):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], per_class)
    features = rng.normal(size=(2 * per_class, dim))
    features[:, 0] += distance * labels
    return pair_separability(features, labels, np.array([True, False]), np.array([1, 0]))


def test_far_classes_are_told_apart_and_equal_ones_only_by_chance():
    assert separability_of(8.0)[0] == 1.0
    assert 0.3 < separability_of(0.0)[0] < 0.65
    assert np.isnan(separability_of(8.0)[1])  # not asked for


def test_more_dimensions_than_samples_do_not_separate_noise():
    assert separability_of(0.0, per_class=30, dim=500)[0] < 0.7


def test_left_out_predictions_are_those_of_fitting_without_each_sample():
    linear = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 20)
    features = rng.normal(size=(40, 3)) + 1.2 * labels[:, None]
    found = pair_separability(features, labels, np.array([True, False]), np.array([1, 0]))[0]
    right = [
        linear.RidgeClassifier(alpha=1.0)
        .fit(np.delete(features, i, 0), np.delete(labels, i))
        .predict(features[i : i + 1])[0]
        == labels[i]
        for i in range(40)
    ]
    assert found == pytest.approx(np.mean(right), abs=0.051)


def test_classes_with_few_samples_are_left_open():
    assert np.isnan(separability_of(8.0, per_class=5)).all()


@pytest.fixture(scope="module")
def confused():
    """Three good classes, and two that are mistaken for one another half of the time."""
    labels = np.repeat(np.arange(5), 40)
    predictions = labels.copy()
    predictions[(labels == 3) & (np.arange(200) % 2 == 0)] = 4
    predictions[(labels == 4) & (np.arange(200) % 2 == 0)] = 3
    predictions[:2] = 1
    return audit(labels, predictions=predictions, class_names=list("abcde"), ranking="own", bootstrap=0)


def test_a_merged_pair_changes_the_numbers_as_merged_labels_would(confused):
    together = np.array([0, 1, 2, 3, 3])
    merged = audit(
        together[confused.labels],
        predictions=together[confused.predictions],
        num_classes=4,
        ranking="own",
        bootstrap=0,
    )
    change = confused.merge("d", "e")
    assert change.overall[0] == pytest.approx(merged.overall - confused.overall)
    assert change.hard[0] == pytest.approx(merged.hard - confused.hard)
    assert change.accuracy == merged.by_class["accuracy"].iloc[3] == 1.0
    assert change.overall[1] <= change.overall[0] <= change.overall[2]
    assert str(change).startswith("merging d and e: overall +20.0 points")


def test_the_order_of_the_pair_does_not_matter(confused):
    one, other = confused.merge("d", "e"), confused.merge("e", "d")
    assert one.overall[0] == other.overall[0]
    assert one.hard[0] == pytest.approx(other.hard[0])


def test_an_interval_of_a_merge_covers_what_fresh_test_sets_give():
    rng = np.random.default_rng(0)
    transition = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.05, 0.05, 0.9]])
    labels = np.repeat(np.arange(3), 80)
    truth = (transition[0, 1] + transition[1, 0]) / 3
    inside = 0
    for _ in range(60):
        predictions = np.array([rng.choice(3, p=transition[k]) for k in labels])
        low, high = audit(labels, predictions=predictions, num_classes=3, bootstrap=0).merge("0", "1").overall[1:]
        inside += low <= truth <= high
    assert inside >= 52


def test_merging_a_class_with_itself_or_an_unknown_one_is_refused(confused):
    with pytest.raises(ValueError, match="second must be another class"):
        confused.merge("a", "a")
    with pytest.raises(ValueError, match="second must be one of the class names"):
        confused.merge("a", "z")


def test_with_very_many_failing_classes_only_the_worst_pairs_are_told_apart(monkeypatch):
    from classmargin.evaluation import class_diagnosis

    monkeypatch.setattr(class_diagnosis, "MOST_PAIRS", 2)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 20)
    right = rng.random(240) > labels / 15
    features = rng.normal(size=(240, 4))
    result = audit(
        labels,
        predictions=np.where(right, labels, (labels + 1) % 12),
        num_classes=12,
        features=features,
        bootstrap=0,
    )
    told = result.by_class[result.by_class["separability"].notna()]
    assert len(told) == 2
    assert told["accuracy"].max() <= result.by_class["accuracy"].nsmallest(3).max()
