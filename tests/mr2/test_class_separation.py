"""Distance to the nearest other class, and the margins from a spread relative to it."""

import math

import numpy as np
import pytest
import torch
from mr2_batches import random_batch, toy_batch

from classmargin.mr2 import ClassStatistics, MR2Loss
from classmargin.mr2.class_separation import class_separation, relative_spread

pytestmark = pytest.mark.usefixtures("either_table")
BOTH = torch.tensor([True, True])


def margins_of(features, labels, num_classes, **options):
    loss = MR2Loss(num_classes, margin_source="relative-spread", **options)
    loss.statistics.update(torch.as_tensor(features, dtype=torch.float64), torch.as_tensor(labels))
    return loss.class_margins


def two_wide_neighbours_and_one_far_class():
    """Spreads 1, 1, 1; classes 0 and 1 are 2 apart, class 2 is 10 away from them."""
    centres = [0.0, 2.0, 12.0]
    features = [[centre + side] for centre in centres for side in (-1.0, 1.0)]
    return features, [0, 0, 1, 1, 2, 2]


def test_hand_value_of_separation_and_margins():
    features, labels = two_wide_neighbours_and_one_far_class()
    statistics = ClassStatistics(3, track_separation=True)
    statistics.update(torch.tensor(features), torch.tensor(labels))
    assert statistics.class_separation.tolist() == [4.0, 4.0, 100.0]
    assert statistics.class_relative_spread.tolist() == pytest.approx([0.25, 0.25, 0.01])
    # roots 0.5, 0.5, 0.1 with mean 11/30
    expected = [15 / 11, 15 / 11, 3 / 11]
    assert margins_of(features, labels, 3, margin_power=0.5).tolist() == pytest.approx(expected)


def test_separation_equals_a_loop_over_pairs_far_from_the_origin():
    mean = torch.randn(30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1e4
    seen = torch.arange(30) % 4 != 1
    separation = class_separation(mean, seen)
    for k in range(30):
        others = [float(((mean[k] - mean[j]) ** 2).sum()) for j in range(30) if j != k and seen[j]]
        assert float(separation[k]) == (pytest.approx(min(others), rel=1e-9) if seen[k] else math.inf)


def test_tensors_and_arrays_give_the_same_relative_spread():
    spread, separation = np.array([0.0, 1.0, 3.0, 2.0]), np.array([2.0, 0.0, math.inf, 4.0])
    ours = relative_spread(torch.from_numpy(spread), torch.from_numpy(separation))
    np.testing.assert_array_equal(ours.numpy(), relative_spread(spread, separation))
    assert ours.tolist() == pytest.approx([0.0, 1 / 3e-6, 0.0, 0.5])


def test_power_zero_gives_uniform_margins_and_equal_rooms_and_spreads_equal_ones():
    features, labels = two_wide_neighbours_and_one_far_class()
    assert margins_of(features, labels, 3, margin_power=0.0).tolist() == [1.0, 1.0, 1.0]
    assert margins_of(features[:4], labels[:4], 2).tolist() == pytest.approx([1.0, 1.0])


def test_a_negative_power_turns_the_order_round():
    features, labels = two_wide_neighbours_and_one_far_class()
    near, _, far = margins_of(features, labels, 3, margin_power=-0.2).tolist()
    assert near < 1.0 < far


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ([[0.0], [1.0], [5.0]], [0, 0, 0]),  # no other class to be near to
        ([[0.0], [1.0], [5.0]], [0, 1, 2]),  # one sample each: no spread yet
        ([[2.0], [2.0], [2.0]], [0, 1, 1]),  # all features equal
    ],
)
def test_margins_are_uniform_while_nothing_is_known(features, labels):
    assert margins_of(features, labels, 4).tolist() == [1.0] * 4


def test_classes_on_top_of_one_another_get_finite_margins_with_the_right_mean():
    features = [[-1.0], [1.0], [-1.0], [1.0], [9.0], [9.5]]
    margins = margins_of(features, [0, 0, 1, 1, 2, 2], 3)
    assert torch.isfinite(margins).all()
    assert float(margins.mean()) == pytest.approx(1.0)
    assert float(margins[0]) == pytest.approx(float(margins[1]))
    assert margins[0] > margins[2]


def test_margins_are_constants_for_autograd():
    batch = random_batch(24, 5, 3)
    loss = MR2Loss(5, margin_source="relative-spread", representation_weight=0.0)
    loss(*batch).backward()
    assert batch.features.grad is None or not batch.features.grad.any()


@pytest.mark.parametrize(("num_classes", "late"), [(3, [10, 20]), (101, [20])])
def test_separation_is_renewed_at_first_and_then_the_rarer_the_more_classes(num_classes, late):
    statistics = ClassStatistics(num_classes, track_separation=True)
    moved = []
    for step in range(25):
        before = statistics.class_separation.clone()
        batch = random_batch(12, 3, 2, step, dtype=torch.float32, gradients=False)
        statistics.update(batch.features, batch.labels)
        moved.append(not torch.equal(before, statistics.class_separation))
    assert [step for step, new in enumerate(moved) if new] == [*range(10), *late]


def test_the_other_sources_keep_no_separation():
    assert "class_separation" not in dict(MR2Loss(3).statistics.named_buffers())
    assert "class_separation" in dict(MR2Loss(3, margin_source="relative-spread").statistics.named_buffers())


def test_without_class_means_it_is_refused():
    with pytest.raises(ValueError, match="margin_source='relative-spread' needs estimator='moments'"):
        MR2Loss(3, margin_source="relative-spread", estimator="batch")
    with pytest.raises(ValueError, match="track_separation needs estimator='moments'"):
        ClassStatistics(3, track_separation=True, estimator="batch")


def test_soft_labels_that_are_certain_equal_classes():
    batch = toy_batch()
    hard, soft = (MR2Loss(3, margin_source="relative-spread") for _ in range(2))
    hard.statistics.update(batch.features, batch.labels)
    soft.statistics.update(batch.features, torch.nn.functional.one_hot(batch.labels, 3).double())
    torch.testing.assert_close(soft.class_margins, hard.class_margins)
