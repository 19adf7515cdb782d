from collections import Counter

import numpy as np
import pytest
import torch

from classmargin.data.sampling import ClassBalanced, InOrder, Shuffled, repeated_rows


def balanced(labels, *, batch_size=12, samples_per_class=3, seed=0):
    labels = np.asarray(labels)
    return ClassBalanced(
        np.arange(len(labels)),
        labels,
        batch_size=batch_size,
        samples_per_class=samples_per_class,
        seed=seed,
    )


def test_in_order_visits_every_row_once_and_keeps_the_last_batch():
    sampler = InOrder(10, 4)
    assert [rows.tolist() for rows in sampler.plan(5)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sampler.steps == 3
    assert InOrder(8, 4).steps == 2
    assert InOrder(0, 4).plan(0) == []


def test_shuffled_visits_every_row_once_in_a_new_order_each_epoch():
    sampler = Shuffled(np.arange(20), 5, seed=1)
    orders = [np.concatenate(sampler.plan(epoch)).tolist() for epoch in (0, 0, 1)]
    assert sorted(orders[0]) == list(range(20))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4, 4]), (12, [10])])
def test_shuffled_drops_the_incomplete_batch_unless_it_is_the_only_one(batch_size, sizes):
    sampler = Shuffled(np.arange(10), batch_size, seed=0)
    assert [len(rows) for rows in sampler.plan(0)] == sizes
    assert sampler.steps == len(sizes)


def test_class_balanced_batches_have_m_samples_of_each_of_p_classes():
    labels = np.repeat(np.arange(7), 20)
    sampler = balanced(labels)
    for rows in sampler.plan(0):
        slots = labels[rows].reshape(4, 3)
        assert np.all(slots == slots[:, :1])
        assert len(set(slots[:, 0].tolist())) == 4
        assert len(set(rows.tolist())) == 12


def test_class_balanced_visits_rare_classes_as_often_as_common_ones():
    labels = np.repeat(np.arange(6), [200, 100, 50, 20, 10, 2])
    sampler = balanced(labels)
    seen = Counter(labels[np.concatenate(sampler.plan(0))].tolist())
    assert max(seen.values()) - min(seen.values()) <= 3
    assert sampler.steps == 382 // 12


def test_class_balanced_goes_round_a_class_before_repeating():
    labels = np.repeat(np.arange(4), 9)
    rows = np.concatenate(balanced(labels).plan(0))
    assert all(count == 1 for count in Counter(rows.tolist()).values())


def test_a_class_smaller_than_m_repeats_its_samples():
    labels = np.array([0] * 30 + [1])
    rows = np.concatenate(balanced(labels, batch_size=6).plan(0))
    assert Counter(rows.tolist())[30] == 3 * len(balanced(labels, batch_size=6).plan(0))


def test_with_fewer_classes_than_slots_classes_come_equally_often():
    labels = np.repeat(np.arange(3), 50)
    for rows in balanced(labels, batch_size=24).plan(0):
        assert len(rows) == 24
        assert set(Counter(labels[rows].tolist()).values()) <= {6, 9}


def test_class_balanced_epochs_differ_and_repeat_with_the_seed():
    labels = np.repeat(np.arange(5), 30)
    plans = [np.concatenate(balanced(labels, seed=s).plan(e)).tolist() for s, e in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert plans[0] != plans[3]


def test_batch_size_must_be_a_multiple_of_m():
    with pytest.raises(ValueError, match="multiple of samples_per_class=3"):
        balanced([0, 1], batch_size=10)


def test_multiplicity_repeats_rows_by_position_or_by_stable_index():
    index = torch.tensor([5, 2, 7])
    by_row = repeated_rows(3, torch.tensor([1, 0, 2]), index, 9)
    full = torch.zeros(9, dtype=torch.int64)
    full[5], full[7] = 1, 2
    assert by_row.tolist() == repeated_rows(3, full, index, 9).tolist() == [0, 2, 2]
    assert repeated_rows(3, None, index, 9).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "bad",
    [torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1, 1]), torch.tensor([0, 0, 0]), torch.tensor([2, -1, 1])],
)
def test_impossible_multiplicities_are_refused(bad):
    with pytest.raises(ValueError, match="multiplicity"):
        repeated_rows(3, bad, torch.arange(3), 9)
