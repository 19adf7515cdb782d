"""Class means, same-class differences and the pull on each row, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.mr2.class_groups import group_compact
from classmargin.mr2.class_table import move_averages, pull_together, row_squares, tabulate

BATCHES = {
    "few rows": (7, 3, 2),
    "one row": (1, 4, 3),
    "one class": (6, 1, 5),
    "more than a small array": (64, 10, 700),
}


@pytest.fixture(params=BATCHES.values(), ids=BATCHES.keys())
def batch(request):
    rows, classes, dim = request.param
    generator = torch.Generator().manual_seed(rows)
    features = torch.randn(rows, dim, generator=generator, dtype=torch.float64) + 3.0
    return features, torch.randint(0, classes, (rows,), generator=generator), classes


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


def test_averages_are_those_of_rows_weighted_by_their_age(batch):
    """Two batches with decay q: rows of the first weigh q, those of the second 1 (common factors cancel)."""
    features, labels, classes = batch
    decay, dim = 0.75, features.shape[1]
    later = features.flip(0) * 1.5 - 1.0
    class_mean, scalars = np.zeros((classes, dim)), np.zeros((4, classes))
    for rows in (features, later):
        move_averages(tabulate(rows, group_compact(labels)), class_mean, scalars, decay, None)
    for label in labels.unique().tolist():
        chosen = labels == label
        rows = torch.cat((features[chosen], later[chosen]))
        weight = torch.tensor([decay] * int(chosen.sum()) + [1.0] * int(chosen.sum()), dtype=torch.float64)
        mean = (weight[:, None] * rows).sum(0) / weight.sum()
        spread = (weight * (rows - mean).square().sum(1)).sum() / weight.sum()
        square = (weight * rows.square().sum(1)).sum() / weight.sum()
        np.testing.assert_allclose(class_mean[label], mean.numpy(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(scalars[1, label], float(spread), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scalars[2:, label], float(square), rtol=1e-10)


def test_a_class_far_from_the_origin_keeps_its_spread_in_single_precision():
    rows = torch.tensor([[1e4, 0.0], [1e4, 1.0]])
    class_mean, scalars = np.zeros((1, 2), np.float32), np.zeros((4, 1), np.float32)
    move_averages(tabulate(rows, group_compact(torch.tensor([0, 0]))), class_mean, scalars, 0.9, None)
    assert scalars[1, 0] == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_what_cannot_be_squared_is_not_called_finite(bad):
    rows = torch.ones(4, 3)
    rows[1, 2] = bad
    assert not tabulate(rows, group_compact(torch.tensor([0, 1, 0, 1]))).finite
    assert tabulate(torch.ones(4, 3), group_compact(torch.tensor([0, 1, 0, 1]))).finite


@pytest.mark.parametrize("size", [3, 20_000])
def test_row_squares_are_the_same_on_either_side_of_the_size_where_the_call_changes(size):
    rows = np.random.default_rng(0).normal(size=(4, size))
    np.testing.assert_allclose(row_squares(rows), (rows**2).sum(1))
