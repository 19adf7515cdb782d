"""Sums per class of one batch, from which all statistics follow."""

import math

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import random_batch

from classmargin.mr2 import class_moments


@pytest.mark.parametrize("norm_order", [1.0, 1.5, 2.0, 3.0, 5.0, math.inf])
@pytest.mark.parametrize(("size", "num_classes"), [(24, 5), (7, 30)])
def test_moments_equal_loops(size, num_classes, norm_order):
    batch = random_batch(size, num_classes, 4)
    moments = class_moments(batch.features, batch.labels, num_classes, norm_order)
    for k in range(num_classes):
        rows = naive.rows_of((batch.features, batch.labels), k)
        assert moments.count[k] == len(rows)
        if not rows:
            assert moments.class_sqnorm[k] == moments.class_spread[k] == moments.class_mean_sqnorm[k] == 0
            continue
        expected = naive.describe(rows, [1.0] * len(rows), norm_order)
        assert moments.class_sqnorm[k].item() == pytest.approx(expected["sqnorm"])
        assert moments.class_mean_sqnorm[k].item() == pytest.approx(expected["mean_sqnorm"])
        assert moments.class_spread[k].item() == pytest.approx(expected["spread"], abs=1e-12)


def test_sums_of_two_batches_add_up_to_the_sums_of_both():
    left, right = random_batch(10, 4, 3, seed=1), random_batch(14, 4, 3, seed=2)
    both = class_moments(
        torch.cat([left.features, right.features]), torch.cat([left.labels, right.labels]), 4, 3.0
    )
    parts = (class_moments(batch.features, batch.labels, 4, 3.0) for batch in (left, right))
    for whole, first, second in zip(both, *parts, strict=True):
        torch.testing.assert_close(whole, first + second)


def test_squared_norm_of_order_two_is_mean_plus_spread():
    batch = random_batch(24, 5, 4)
    moments = class_moments(batch.features, batch.labels, 5, 2.0)
    torch.testing.assert_close(moments.class_sqnorm, moments.class_mean_sqnorm + moments.class_spread)


def test_one_hot_probabilities_equal_labels():
    batch = random_batch(24, 5, 4)
    hard = class_moments(batch.features, batch.labels, 5, 3.0)
    soft = class_moments(batch.features, F.one_hot(batch.labels, 5).double(), 5, 3.0)
    for ours, expected in zip(soft, hard, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_summed_in_float32(dtype):
    features = torch.full((2048, 4), 100.0, dtype=dtype)  # a sum in float16 would overflow at 65504
    moments = class_moments(features, torch.zeros(2048, dtype=torch.long), 1, 2.0)
    assert moments.feature_sum.dtype == torch.float32
    assert moments.class_sqnorm.item() == pytest.approx(4e4)


def test_large_powers_do_not_overflow():
    moments = class_moments(torch.full((3, 2), 1e10), torch.zeros(3, dtype=torch.long), 1, 9.0)
    assert moments.class_sqnorm.item() == pytest.approx(1e20 * 2 ** (2 / 9), rel=1e-5)
