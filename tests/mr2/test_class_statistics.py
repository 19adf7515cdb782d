"""Class statistics: hand values, the naive history, first sight, unseen classes, types."""

import math

import mr2_naive as naive
import pytest
import torch
from mr2_batches import history, random_batch, random_batches, same_state, state, toy_batch

from classmargin.mr2 import ClassStatistics, class_moments

ORDERS = [1.0, 2.0, 3.0, 5.0, math.inf]
REFERENCE = {"moments": naive.moments_statistics, "batch": naive.batch_statistics}


def updated(statistics, batches):
    for features, labels in history(batches):
        statistics.update(features, labels)
    return statistics


def expect(statistics, reference, num_classes, tolerance=1e-10):
    for name, buffer in (
        ("sqnorm", statistics.class_sqnorm),
        ("mean_sqnorm", statistics.class_mean_sqnorm),
        ("spread", statistics.class_spread),
    ):
        expected = [reference[k][name] if k in reference else 0.0 for k in range(num_classes)]
        assert buffer.tolist() == pytest.approx(expected, rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_toy_values(estimator):
    statistics = updated(ClassStatistics(3, estimator=estimator), [toy_batch()])
    assert statistics.class_mean_sqnorm.tolist() == pytest.approx([2.0, 4.0, 10.0])
    assert statistics.class_spread.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert statistics.class_sqnorm.tolist() == pytest.approx([3.0, 4.0, 10.0])
    assert statistics.mean_spread.item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_toy_values_of_order_three_keep_the_spread_in_l2(estimator):
    statistics = updated(ClassStatistics(3, estimator=estimator, norm_order=3.0), [toy_batch()])
    assert statistics.class_sqnorm.tolist() == pytest.approx([2.663374, 4.0, 9.220873], abs=1e-6)
    assert statistics.class_spread.tolist() == pytest.approx([1.0, 0.0, 0.0])


def test_toy_value_of_order_five():
    assert class_moments(*toy_batch()[:0:-1], 3, 5.0).class_sqnorm[0].item() == pytest.approx(
        2.524769, abs=1e-6
    )


def test_release_form_of_order_five_is_mean_plus_deviation():
    statistics = ClassStatistics(3, norm_order=5.0, estimator="batch", sqnorm_form="mean_plus_deviation")
    updated(statistics, [toy_batch()])
    assert statistics.class_sqnorm[0].item() == pytest.approx(2.319508, abs=1e-6)


def test_moving_average_of_the_batch_scalars():
    # class 0 stands at ‖μ̂‖² = 1, ‖ŝ‖² = 3; the toy batch brings (2, 1)
    before = torch.tensor([[1.0, 3**0.5], [1.0, -(3**0.5)]], dtype=torch.float64)
    statistics = ClassStatistics(3, estimator="batch", ema_decay=0.9)
    statistics.update(before, torch.tensor([0, 0]))
    updated(statistics, [toy_batch()])
    assert statistics.class_mean_sqnorm[0].item() == pytest.approx(1.1)
    assert statistics.class_spread[0].item() == pytest.approx(2.8)


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize(("size", "num_classes"), [(24, 5), (7, 30)])
@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_statistics_equal_the_whole_history(estimator, size, num_classes, norm_order):
    batches = random_batches(6, size, num_classes, 4)
    statistics = ClassStatistics(num_classes, norm_order=norm_order, ema_decay=0.8, estimator=estimator)
    updated(statistics, batches)
    reference = REFERENCE[estimator](history(batches), num_classes, norm_order, 0.8)
    expect(statistics, reference, num_classes)
    assert statistics.mean_spread.item() == pytest.approx(naive.mean_spread(reference))
    assert statistics.seen.tolist() == [k in reference for k in range(num_classes)]


def test_release_statistics_equal_the_whole_history():
    batches = random_batches(6, 24, 5, 4)
    statistics = ClassStatistics(5, norm_order=5.0, estimator="batch", sqnorm_form="mean_plus_deviation")
    reference = naive.batch_statistics(history(batches), 5, 5.0)
    updated(statistics, batches)
    assert statistics.class_sqnorm.tolist() == pytest.approx(
        [reference[k]["release_sqnorm"] for k in range(5)]
    )
    assert statistics.class_spread.tolist() == pytest.approx(
        [reference[k]["release_spread"] for k in range(5)]
    )


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_any_decay_equals_the_whole_history(decay):
    batches = random_batches(5, 12, 6, 3)
    statistics = updated(ClassStatistics(6, ema_decay=decay), batches)
    expect(statistics, naive.moments_statistics(history(batches), 6, 2.0, decay), 6)


def test_total_variance_equals_the_whole_history():
    batches = random_batches(5, 12, 6, 3)
    statistics = updated(ClassStatistics(6, ema_decay=0.7), batches)
    assert statistics.total_variance.item() == pytest.approx(naive.total_variance(history(batches), 0.7))


def test_spread_ratio_is_spread_within_over_spread_between():
    batch = random_batch(40, 4, 3)
    statistics = updated(ClassStatistics(4), [batch])
    within = naive.mean_spread(naive.moments_statistics(history([batch]), 4))
    between = naive.total_variance(history([batch])) - within
    assert statistics.spread_ratio.item() == pytest.approx(within / between)


@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_first_sight_of_a_class_assigns(estimator):
    early, late = random_batch(20, 3, 4, seed=1), random_batch(20, 3, 4, seed=2)
    statistics = ClassStatistics(6, ema_decay=0.99, estimator=estimator)
    statistics.update(early.features, early.labels)
    statistics.update(late.features, late.labels + 3)
    alone = naive.describe(
        naive.rows_of((late.features, late.labels), 1), [1.0] * int((late.labels == 1).sum()), 2.0
    )
    assert statistics.class_spread[4].item() == pytest.approx(alone["spread"])
    assert statistics.class_sqnorm[4].item() == pytest.approx(alone["sqnorm"])


def test_classes_never_seen_are_left_out_of_the_mean_spread():
    batch = random_batch(20, 3, 4)
    few = updated(ClassStatistics(3), [batch])
    many = updated(ClassStatistics(100), [batch])
    torch.testing.assert_close(few.mean_spread, many.mean_spread)
    assert many.seen.sum() == 3


def test_before_the_first_batch_nothing_is_seen_and_the_mean_spread_is_zero():
    statistics = ClassStatistics(4, feature_dim=3)
    assert not statistics.seen.any()
    assert statistics.mean_spread.item() == 0.0


@pytest.mark.parametrize("estimator", ["moments", "batch"])
def test_absent_classes_keep_their_statistics_bit_for_bit(estimator):
    statistics = ClassStatistics(3, estimator=estimator)
    first = random_batch(30, 3, 4, dtype=torch.float32)
    statistics.update(first.features, first.labels)
    before = [statistics.class_spread[2].item(), statistics.class_sqnorm[2].item()]
    others = random_batch(30, 2, 4, seed=5, dtype=torch.float32)
    for _ in range(1000):
        statistics.update(others.features, others.labels)
    assert [statistics.class_spread[2].item(), statistics.class_sqnorm[2].item()] == before


def test_restarting_from_a_saved_state_changes_nothing():
    batches = random_batches(8, 12, 6, 3, dtype=torch.float32)
    straight = updated(ClassStatistics(6), batches)
    saved = state(updated(ClassStatistics(6), batches[:3]))
    resumed = ClassStatistics(6)
    resumed.load_state_dict(saved)
    assert same_state(state(updated(resumed, batches[3:])), state(straight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_features_are_accumulated_in_float32(dtype):
    batches = [b._replace(features=b.features.to(dtype)) for b in random_batches(4, 24, 5, 4)]
    statistics = updated(ClassStatistics(5), batches)
    assert statistics.class_spread.dtype == torch.float32
    expect(statistics, naive.moments_statistics(history(batches), 5), 5, tolerance=1e-5)


def test_float64_features_keep_float64_statistics():
    assert updated(ClassStatistics(5), [random_batch(24, 5, 4)]).class_spread.dtype == torch.float64


def test_small_spread_on_a_large_mean_is_not_lost_to_cancellation():
    generator = torch.Generator().manual_seed(0)
    statistics = ClassStatistics(2, estimator="moments")
    noise = torch.randn(40, 64, 16, generator=generator)
    for rows in noise:
        statistics.update(1e3 + 0.1 * rows, torch.arange(64) % 2)
    assert statistics.mean_spread.item() == pytest.approx(16 * 0.01, rel=0.05)


@pytest.mark.parametrize("estimator", ["moments", "batch"])
@pytest.mark.parametrize("offset", [10.0, 100.0])
def test_first_sight_far_from_the_origin_is_not_lost_to_cancellation(offset, estimator):
    noise = 0.1 * torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    features = (noise * 1024).round() / 1024 + offset  # exact in float32
    labels = torch.arange(64) % 2
    truth = naive.moments_statistics([(features, labels)], 2)
    statistics = ClassStatistics(2, estimator=estimator)
    statistics.update(features, labels)
    assert statistics.class_spread.tolist() == pytest.approx([truth[k]["spread"] for k in (0, 1)], rel=1e-4)


def test_total_variance_is_not_lost_to_cancellation():
    generator = torch.Generator().manual_seed(0)
    statistics = ClassStatistics(2)
    for rows in torch.randn(40, 64, 16, generator=generator):
        statistics.update(1e3 + 0.1 * rows, torch.arange(64) % 2)
    assert statistics.total_variance.item() == pytest.approx(16 * 0.01, rel=0.05)


def test_class_probabilities_count_as_fractions_of_samples():
    batch = random_batch(20, 4, 3)
    hard, soft = ClassStatistics(4), ClassStatistics(4)
    hard.update(batch.features, batch.labels)
    soft.update(batch.features, torch.nn.functional.one_hot(batch.labels, 4).double())
    torch.testing.assert_close(soft.class_spread, hard.class_spread)
    torch.testing.assert_close(soft.class_sqnorm, hard.class_sqnorm)


def test_soft_labels_far_from_the_origin_are_not_lost_to_cancellation():
    generator = torch.Generator().manual_seed(0)
    near, far = ClassStatistics(3).double(), ClassStatistics(3)
    for _ in range(5):
        rows = (torch.randn(32, 8, generator=generator) * 1024).round() / 1024  # exact with the offset
        probabilities = torch.rand(32, 3, generator=generator).softmax(1)
        near.update(rows.double(), probabilities.double())
        far.update(rows + 1000.0, probabilities)
    torch.testing.assert_close(far.class_spread.double(), near.class_spread, rtol=1e-3, atol=0.0)


def test_half_probabilities_equal_weights_of_one_half():
    features = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    statistics = ClassStatistics(2)
    statistics.update(features, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    # class 0: mean 4·0.5/1.5 = 4/3; spread (1·(4/3)² + 0.5·(8/3)²) / 1.5
    assert statistics.class_mean_sqnorm[0].item() == pytest.approx(16 / 9)
    assert statistics.class_spread.tolist() == pytest.approx([(16 / 9 + 32 / 9) / 1.5, 0.0])


def test_rows_with_nan_or_inf_are_left_out():
    clean, dirty = ClassStatistics(4), ClassStatistics(4)
    batch = random_batch(20, 4, 3, dtype=torch.float32, gradients=False)
    features = batch.features.clone()
    features[2, 1], features[9, 0] = math.nan, math.inf
    keep = features.isfinite().all(1)
    clean.update(batch.features[keep], batch.labels[keep])
    dirty.update(features, batch.labels)
    for name, value in clean.state_dict().items():
        torch.testing.assert_close(dirty.state_dict()[name], value)


def test_update_is_outside_the_graph():
    batch = random_batch(20, 4, 3)
    statistics = updated(ClassStatistics(4), [batch])
    assert not any(buffer.requires_grad for buffer in statistics.buffers())


def test_empty_batches_leave_the_averages_as_they_are():
    batch = random_batch(20, 4, 3)
    plain, padded = ClassStatistics(4), ClassStatistics(4)
    empty = (torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.long))
    for statistics in (plain, padded):
        if statistics is padded:
            statistics.update(*empty)
        statistics.update(batch.features, batch.labels)
    for name in ("class_spread", "class_sqnorm", "mean_spread", "total_variance", "spread_ratio"):
        torch.testing.assert_close(getattr(padded, name), getattr(plain, name), msg=name)
