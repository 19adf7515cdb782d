"""Statistics -> margins (Eq. 1, 14, 17): values, limits and what they promise whatever the statistics are."""

import math

import mr2_naive as naive
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from mr2_batches import toy_batch

from classmargin.mr2 import class_margins, class_moments

TOY = torch.tensor([3.0, 4.0, 10.0], dtype=torch.float64)
positive = st.floats(1e-6, 1e6)
statistics = st.lists(positive, min_size=1, max_size=40).map(lambda v: torch.tensor(v, dtype=torch.float64))


def close(actual, expected, tolerance=1e-6):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0.0, atol=tolerance)


def test_toy_margins_with_mean_one():
    close(class_margins(TOY, 1.0), [0.834621, 0.918620, 1.246759])


def test_toy_margins_with_mean_two():
    close(class_margins(TOY, 2.0), [1.669243, 1.837240, 2.493518])


def test_toy_margins_of_order_three():
    statistic = class_moments(toy_batch().features, toy_batch().labels, 3, norm_order=3.0).class_sqnorm
    close(statistic, [2.663374, 4.0, 9.220873])
    close(class_margins(statistic, 1.0), [0.820125, 0.939195, 1.240680])


@given(statistics, st.floats(0.1, 5.0), st.sampled_from([1 / 3, 0.5, 1.0, -0.5]))
def test_margins_equal_the_loop(statistic, mean_margin, power):
    expected = naive.class_margins(dict(enumerate(statistic.tolist())), len(statistic), mean_margin, power)
    torch.testing.assert_close(
        class_margins(statistic, mean_margin, power=power), torch.tensor(expected, dtype=torch.float64)
    )


@given(statistics, st.floats(0.1, 5.0))
def test_margins_average_to_mean_margin(statistic, mean_margin):
    assert class_margins(statistic, mean_margin).mean().item() == pytest.approx(mean_margin, rel=1e-12)


@given(statistics, st.floats(1e-5, 1e5))
def test_margins_do_not_depend_on_the_unit_of_the_statistic(statistic, unit):
    torch.testing.assert_close(class_margins(statistic * unit, 2.0), class_margins(statistic, 2.0))


def test_equal_statistics_give_equal_margins():
    assert class_margins(torch.full((7,), 0.3, dtype=torch.float64), 2.0).tolist() == pytest.approx([2.0] * 7)


def test_power_zero_gives_uniform_margins():
    assert class_margins(TOY, 1.5, power=0.0).tolist() == pytest.approx([1.5] * 3)


def test_larger_statistic_means_larger_margin_for_positive_powers_only():
    assert class_margins(TOY, 1.0, power=0.8).diff().min() > 0
    assert class_margins(TOY, 1.0, power=-0.8).diff().max() < 0


def test_unseen_classes_are_left_out_and_get_the_mean_margin():
    seen = torch.tensor([True, True, False, True])
    margins = class_margins(torch.tensor([3.0, 4.0, 0.0, 10.0], dtype=torch.float64), 2.0, seen=seen)
    close(margins, [1.669243, 1.837240, 2.0, 2.493518])


def test_no_class_seen_gives_the_mean_margin_everywhere():
    assert class_margins(torch.zeros(3), 2.0, seen=torch.zeros(3, dtype=torch.bool)).tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "statistic",
    [
        [0.0, 0.0, 0.0],
        [0.0, 1.0, 2.0],
        [1e-38, 1e-30, 1e-20],
        [1e38, 1.0, 1e-38],
        [3e38, 3e38, 3e38],
        [1e30] + [1e-30] * 500,
        [1e-30] + [1e30] * 500,
        [5.0],
    ],
)
@pytest.mark.parametrize("power", [1 / 3, 1.0, 3.0, -1.0])
def test_limits_hold_whatever_the_statistics_are(statistic, power, dtype):
    margins = class_margins(torch.tensor(statistic, dtype=dtype), 2.0, power=power, limits=(0.1, 10.0))
    assert margins.min() >= 2.0 * 0.1 * (1 - 1e-5)
    assert margins.max() <= 2.0 * 10.0 * (1 + 1e-5)
    assert margins.mean().item() == pytest.approx(2.0, rel=1e-4)


@given(statistics, st.floats(0.5, 3.0))
@example(torch.tensor([1e6, 1e-6], dtype=torch.float64), 3.0)
def test_limits_keep_mean_and_order(statistic, power):
    free, kept = (
        class_margins(statistic, 1.0, power=power, limits=limits) for limits in ((0.0, math.inf), (0.5, 2.0))
    )
    assert kept.mean().item() == pytest.approx(1.0, rel=1e-9)
    assert 0.5 - 1e-9 <= kept.min() <= kept.max() <= 2.0 + 1e-9
    order = free.argsort()
    assert (kept[order].diff() >= -1e-12).all()


def test_limits_that_do_not_bind_change_nothing():
    torch.testing.assert_close(class_margins(TOY, 1.0, limits=(0.5, 2.0)), class_margins(TOY, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margins_keep_the_type_of_the_statistic(dtype):
    assert class_margins(TOY.to(dtype), 1.0).dtype == dtype
