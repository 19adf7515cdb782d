import weakref

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation import AuditAccumulator, audit


def fed(toy, batches, **options):
    accumulator = AuditAccumulator(num_classes=7, **options)
    for rows in batches:
        accumulator.update(toy.labels[rows], logits=toy.logits[rows], features=toy.features[rows])
    return accumulator


def test_batches_equal_the_functional_form(toy):
    whole = audit(toy.labels, logits=toy.logits, features=toy.features, classifier_weight=toy.weight, bootstrap=200)
    parts = fed(toy, np.array_split(np.arange(600), 13)).compute(classifier_weight=toy.weight, bootstrap=200)
    assert parts.intervals == whole.intervals
    assert parts.disparity == whole.disparity
    np.testing.assert_array_equal(parts.confusion, whole.confusion)
    for name in ("accuracy", "ece", "label_issues", "spread", "margin", "output_margin", "nearest_angle"):
        np.testing.assert_allclose(parts.by_class[name], whole.by_class[name], rtol=1e-12)
    for name, value in whole.geometry.items():
        assert parts.geometry[name] == pytest.approx(value, rel=1e-9), name
    np.testing.assert_array_equal(parts.feature_sample.index, whole.feature_sample.index)


def test_merging_equals_feeding(toy):
    left, right = fed(toy, [np.arange(0, 250)]), fed(toy, [np.arange(250, 600)])
    left.merge(right)
    whole = fed(toy, [np.arange(600)])
    one, two = left.compute(bootstrap=50), whole.compute(bootstrap=50)
    assert one.intervals == two.intervals
    np.testing.assert_allclose(one.by_class["spread"], two.by_class["spread"], rtol=1e-10)
    np.testing.assert_array_equal(one.feature_sample.features, two.feature_sample.features)
    np.testing.assert_array_equal(one.labels, toy.labels)


def test_merging_into_an_empty_one_copies(toy):
    empty, full = AuditAccumulator(num_classes=7), fed(toy, [np.arange(600)])
    empty.merge(full)
    assert empty.compute(bootstrap=0).overall == full.compute(bootstrap=0).overall
    before = full.feature_sums.sums.copy()
    empty.update(toy.labels[:5], logits=toy.logits[:5], features=toy.features[:5])
    np.testing.assert_array_equal(full.feature_sums.sums, before)
    full.merge(AuditAccumulator(num_classes=7))
    assert full.num_samples == 600


def test_a_merged_accumulator_is_not_kept_alive(toy):
    left, right = fed(toy, [np.arange(0, 250)]), fed(toy, [np.arange(250, 600)])
    left.merge(right)
    its_features = weakref.ref(right.kept)
    del right
    assert its_features() is None


def test_computing_changes_nothing_and_reset_forgets(toy):
    accumulator = fed(toy, [np.arange(300)])
    first = accumulator.compute(bootstrap=50)
    assert accumulator.compute(bootstrap=50).to_dict() == first.to_dict()
    accumulator.reset()
    with pytest.raises(ValueError, match="call update first"):
        accumulator.compute()


@pytest.mark.parametrize("spoiled", ["logits", "features"])
def test_a_refused_batch_leaves_the_state_as_it_was(toy, spoiled):
    accumulator = fed(toy, [np.arange(300)])
    before = accumulator.compute(bootstrap=0).to_dict()
    # Longer than one chunk, with the fault at its end: what came before it must not count either.
    arrays = {"logits": np.tile(toy.logits, (9, 1)), "features": np.tile(toy.features, (9, 1))}
    arrays[spoiled][-1, 2] = np.nan
    with pytest.raises(ValueError, match=f"{spoiled} must be finite.*row 5699"):
        accumulator.update(np.tile(toy.labels, 9), **arrays)
    assert accumulator.compute(bootstrap=0).to_dict() == before


def test_every_update_must_bring_the_same_arrays(toy):
    accumulator = fed(toy, [np.arange(10)])
    with pytest.raises(ValueError, match="features in some updates only"):
        accumulator.update(toy.labels, logits=toy.logits)
    with pytest.raises(ValueError, match="features must have 5 columns"):
        accumulator.update(toy.labels, logits=toy.logits, features=np.zeros((600, 4)))
    with pytest.raises(ValueError, match="7 from num_classes, 6 from logits"):
        accumulator.update(toy.labels, logits=toy.logits[:, :6], features=toy.features)


def test_accumulators_of_different_kinds_do_not_merge(toy):
    accumulator = fed(toy, [np.arange(10)])
    other = AuditAccumulator(num_classes=7)
    other.update(toy.labels, logits=toy.logits)
    with pytest.raises(ValueError, match="same kinds of arrays"):
        accumulator.merge(other)
    with pytest.raises(ValueError, match="same class_names"):
        accumulator.merge(AuditAccumulator(num_classes=6))


def test_identities_repeated_in_other_batches_are_refused():
    accumulator = AuditAccumulator(num_classes=2)
    accumulator.update([0, 1], predictions=[0, 1], sample_id=[5, 6])
    accumulator.update([0], predictions=[0], sample_id=[5])
    with pytest.raises(ValueError, match="repeats samples"):
        accumulator.compute()


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("give num_classes or class_names", {}),
        ("num_classes must be at least 1, got 0", {"num_classes": 0}),
        ("class_names must have 3 names, got 2", {"num_classes": 3, "class_names": ["a", "b"]}),
        ("norm_order must be >= 1", {"num_classes": 2, "norm_order": 0.5}),
    ],
)
def test_bad_arguments_are_refused_by_name(message, arguments):
    with pytest.raises(ValueError, match=message):
        AuditAccumulator(**arguments)


def test_the_head_must_fit_the_features(toy):
    with pytest.raises(ValueError, match=r"as many columns as features \(5\)"):
        fed(toy, [np.arange(50)]).compute(classifier_weight=np.ones((7, 4)))
    with pytest.raises(ValueError, match=r"one row per class \(7\)"):
        fed(toy, [np.arange(50)]).compute(classifier_weight=np.ones((6, 5)))


def test_named_classes_bring_labels_and_columns_into_their_order():
    accumulator = AuditAccumulator(class_names=["cat", "dog"])
    accumulator.update(["cat", "dog"], probabilities=pd.DataFrame({"dog": [0.1, 0.9], "cat": [0.9, 0.1]}))
    accumulator.update([1], probabilities=np.array([[0.2, 0.8]]))
    assert accumulator.compute(bootstrap=0).overall == 1
    with pytest.raises(ValueError, match="must name the same classes"):
        accumulator.update([0], probabilities=pd.DataFrame({"dog": [0.1], "cow": [0.9]}))
    numbered = AuditAccumulator(2)
    numbered.update([0, 1], probabilities=pd.DataFrame({"cat": [0.9, 0.1], "dog": [0.1, 0.9]}))
    assert numbered.compute(bootstrap=0).overall == 1


def test_the_number_of_classes_may_be_a_number_of_numpy():
    assert AuditAccumulator(np.int64(3)).class_names == ("0", "1", "2")
