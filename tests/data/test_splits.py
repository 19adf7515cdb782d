import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.data import load_data
from classmargin.data.sampling import hold_out_rows, long_tail_counts, subset_rows

labels_of = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(lambda values: np.array([*values, 0, 1, 2, 3, 4]))


def counts(labels, rows):
    return np.bincount(labels[rows], minlength=5).tolist()


@settings(max_examples=50, deadline=None)
@given(labels_of, st.floats(0.0, 0.9))
def test_held_out_and_kept_rows_are_a_partition_and_no_class_loses_all(labels, share):
    kept, held_out = hold_out_rows(labels, share, num_classes=5)
    assert sorted([*kept, *held_out]) == list(range(len(labels)))
    assert min(counts(labels, kept)) >= 1


@settings(max_examples=50, deadline=None)
@given(labels_of, st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.integers(0, 3))
def test_a_smaller_fraction_is_contained_in_a_larger_one(labels, first, second, seed):
    small, large = sorted((first, second))
    inner = subset_rows(labels, num_classes=5, fraction=small, seed=seed)
    outer = subset_rows(labels, num_classes=5, fraction=large, seed=seed)
    assert set(inner) <= set(outer)
    assert min(counts(labels, inner)) >= 1


def test_fraction_takes_the_same_share_of_every_class():
    labels = np.repeat([0, 1, 2, 3, 4], [100, 50, 30, 20, 10])
    assert counts(labels, subset_rows(labels, num_classes=5, fraction=0.1)) == [10, 5, 3, 2, 1]


def test_the_seed_changes_which_samples_stay_but_not_how_many():
    labels = np.arange(500) % 5
    first, second = (subset_rows(labels, num_classes=5, fraction=0.2, seed=seed) for seed in (0, 1))
    assert counts(labels, first) == counts(labels, second) == [20] * 5
    assert set(first) != set(second)


def test_validation_and_test_hold_out_different_samples():
    labels = np.arange(500) % 5
    first, second = (hold_out_rows(labels, 0.2, num_classes=5, part=part)[1] for part in (0, 1))
    assert set(first) != set(second)


def test_cifar100_ib_100_has_its_published_size():
    tail = long_tail_counts(500, 100, 100.0)
    assert int(tail.sum()) == 10847
    assert tail[0] == 500
    assert tail[-1] == 5


@pytest.mark.parametrize(
    ("largest", "classes", "ratio"), [(5000, 10, 50.0), (500, 100, 10.0), (7, 3, 1000.0), (9, 2, 1.0)]
)
def test_long_tail_follows_the_formula(largest, classes, ratio):
    tail = long_tail_counts(largest, classes, ratio)
    for k, count in enumerate(tail.tolist()):
        exact = largest * ratio ** (-k / (classes - 1))
        assert count == max(int(exact + 1e-9), 1)


def test_imbalance_thins_classes_in_label_order_and_keeps_their_best_known_order(mini):
    bundle = load_data("fashion-mnist-mini", imbalance=100.0, validation=0.0)
    assert bundle.train.class_counts.tolist() == long_tail_counts(500, 10, 100.0).tolist()
    assert bundle.test.class_counts.tolist() == [500] * 10


def test_imbalance_comes_after_fraction():
    bundle = load_data("fashion-mnist-mini", fraction=0.2, imbalance=10.0, validation=0.0)
    assert bundle.train.class_counts.tolist() == long_tail_counts(100, 10, 10.0).tolist()


def test_an_imbalance_of_an_unbalanced_set_never_asks_for_more_than_there_is():
    labels = np.repeat([0, 1, 2, 3, 4], [100, 5, 30, 20, 10])
    assert counts(labels, subset_rows(labels, num_classes=5, imbalance=2.0)) == [100, 5, 30, 20, 10]


def test_validation_does_not_depend_on_seed_fraction_or_imbalance(mini):
    other = load_data("fashion-mnist-mini", seed=7, fraction=0.3, imbalance=5.0)
    assert torch.equal(mini.validation.index, other.validation.index)
    assert torch.equal(mini.test.index, other.test.index)
    assert set(other.train.index.tolist()) <= set(mini.train.index.tolist())


def test_the_three_parts_share_no_sample(mini):
    assert not set(mini.train.index.tolist()) & set(mini.validation.index.tolist())
    assert mini.train.class_counts.tolist() == [450] * 10
    assert mini.validation.class_counts.tolist() == [50] * 10


def test_no_validation_trains_on_everything_in_order():
    bundle = load_data("fashion-mnist-mini", validation=0.0)
    assert len(bundle.validation) == 0
    assert bundle.train.index.tolist() == list(range(5000))


def test_the_index_finds_the_same_image_in_every_subset(mini):
    whole = load_data("fashion-mnist-mini", validation=0.0)
    part = load_data("fashion-mnist-mini", fraction=0.05, seed=3)
    assert torch.equal(part.train.inputs, whole.train.inputs[part.train.index])
    assert torch.equal(part.train.labels, whole.train.labels[part.train.index])
    assert part.train.full_size == 5000


def test_loading_twice_gives_the_same(mini):
    again = load_data("fashion-mnist-mini")
    assert torch.equal(mini.train.inputs, again.train.inputs)


def test_a_given_validation_share_replaces_the_data_sets_own_part(tmp_path):
    np.savez(
        tmp_path / "set.npz",
        x_train=np.zeros((40, 3)),
        y_train=np.arange(40) % 2,
        x_val=np.ones((6, 3)),
        y_val=np.arange(6) % 2,
        x_test=np.zeros((6, 3)),
        y_test=np.arange(6) % 2,
    )
    bundle = load_data(str(tmp_path / "set.npz"), validation=0.25)
    assert len(bundle.validation) == 10
    assert float(bundle.validation.inputs.sum()) == 0.0
    assert any("not used" in note for note in bundle.notes)
