"""Class means, same-class differences and the pull on each row, against loops in float64; the rest is in test_batch_table.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.mr2.class_groups import group_compact
from classmargin.mr2.class_table import pull_together, row_squares, tabulate


def test_the_table_holds_class_means_and_then_every_pair_once(batch):
    features, labels, _ = batch
    table = tabulate(features, group_compact(labels))
    present = labels.unique().tolist()
    for place, label in enumerate(present):
        torch.testing.assert_close(table.rows[place], features[labels == label].mean(0))
    pairs = {(i, j) for i in range(len(labels)) for j in range(i) if labels[i] == labels[j]}
    listed = {(max(i, j), min(i, j)) for i, j in zip(table.left.tolist(), table.right.tolist(), strict=True)}
    assert listed == pairs
    assert len(table.left) == len(pairs)
    for place, (i, j) in enumerate(zip(table.left, table.right, strict=True)):
        difference = features[i] - features[j]
        torch.testing.assert_close(table.rows[len(present) + place], difference)
        assert table.distances[place] == pytest.approx(float(difference.square().sum()))


def test_the_pull_is_the_weighted_sum_of_differences(batch):
    features, labels, _ = batch
    table = tabulate(features, group_compact(labels))
    pull = np.random.default_rng(0).random(len(table.left))
    expected = torch.zeros_like(features)
    for weight, i, j in zip(pull, table.left, table.right, strict=True):
        expected[i] += 0.5 * weight * (features[i] - features[j])
        expected[j] += 0.5 * weight * (features[j] - features[i])
    torch.testing.assert_close(pull_together(table, pull, 0.5), expected)


@pytest.mark.parametrize("size", [3, 20_000])
def test_row_squares_are_the_same_on_either_side_of_the_size_where_the_call_changes(size):
    rows = np.random.default_rng(0).normal(size=(4, size))
    np.testing.assert_allclose(row_squares(rows), (rows**2).sum(1))
