from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classmargin.report.confusion_matrix import block_shares, block_starts, confusable_order, confusion_shares


def grouped_confusion(groups: np.ndarray, seed: int = 0) -> np.ndarray:
    """Counts in which errors mostly stay within the groups."""
    rng = np.random.default_rng(seed)
    same = groups[:, None] == groups[None, :]
    counts = np.where(same, rng.integers(2, 8, same.shape), rng.random(same.shape) < 0.05)
    np.fill_diagonal(counts, 60)
    return counts.astype(np.int64)


def test_shuffled_groups_become_contiguous_blocks():
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(6), 5))
    ordered = groups[confusable_order(grouped_confusion(groups))]
    assert int((np.diff(ordered) != 0).sum()) == 5  # six runs: every group is one block


@given(st.integers(1, 12), st.integers(0, 5))
def test_the_order_is_a_permutation(num_classes, seed):
    counts = np.random.default_rng(seed).integers(0, 4, (num_classes, num_classes))
    assert sorted(confusable_order(counts).tolist()) == list(range(num_classes))


def test_the_order_is_the_same_every_time():
    counts = grouped_confusion(np.arange(20) // 4)
    assert confusable_order(counts).tolist() == confusable_order(counts.copy()).tolist()


def test_shares_are_per_true_class_and_zero_for_absent_classes():
    shares = confusion_shares(np.array([[1, 3, 0], [0, 0, 0], [2, 2, 4]]))
    np.testing.assert_allclose(shares, [[0.25, 0.75, 0], [0, 0, 0], [0.25, 0.25, 0.5]])


@pytest.mark.parametrize("num_classes", [1, 39, 40, 41, 151, 1000, 12_345])
def test_blocks_cover_all_classes_with_at_most_forty(num_classes):
    starts = block_starts(num_classes)
    sizes = np.diff([*starts, num_classes])
    assert starts[0] == 0
    assert len(starts) <= 40
    assert sizes.min() >= 1
    assert sizes.sum() == num_classes


def test_block_shares_count_errors_only_and_match_a_loop():
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 5, (7, 7))
    order, starts = rng.permutation(7), np.array([0, 3, 5])
    groups = np.split(order, starts[1:])
    expected = [
        [
            sum(counts[i, j] for i in rows for j in columns if i != j) / sum(counts[i].sum() for i in rows)
            for columns in groups
        ]
        for rows in groups
    ]
    np.testing.assert_allclose(block_shares(counts, order, starts), expected)
