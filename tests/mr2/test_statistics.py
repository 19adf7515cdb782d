"""Class statistics: hand values, the naive history, first sight, unseen classes, types, whole sets, saving and loading."""

import math

import mr2_naive as naive
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import history, random_batch, random_batches, same_state, state, toy_batch

from classmargin.mr2 import ClassStatistics, MR2Loss, class_moments

ORDERS = [1.0, 2.0, 3.0, 5.0, math.inf]
REFERENCE = {"moments": naive.moments_statistics, "batch": naive.batch_statistics}
either_estimator = pytest.mark.parametrize("estimator", ["moments", "batch"])


def updated(statistics, batches):
    for features, labels in history(batches):
        statistics.update(features, labels)
    return statistics


def expect(statistics, reference, num_classes, tolerance=1e-10):
    for name in ("sqnorm", "spread"):
        expected = [reference[k][name] if k in reference else 0.0 for k in range(num_classes)]
        found = getattr(statistics, f"class_{name}").tolist()
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), name


# --- sums of one batch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_order", [1.5, *ORDERS])
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
    both = class_moments(torch.cat([left.features, right.features]), torch.cat([left.labels, right.labels]), 4)
    parts = (class_moments(batch.features, batch.labels, 4) for batch in (left, right))
    for whole, first, second in zip(both, *parts, strict=True):
        torch.testing.assert_close(whole, first + second)


def test_squared_norm_of_order_two_is_mean_plus_spread():
    moments = class_moments(random_batch(24, 5, 4).features, random_batch(24, 5, 4).labels, 5)
    torch.testing.assert_close(moments.class_sqnorm, moments.class_mean_sqnorm + moments.class_spread)


def test_one_hot_probabilities_equal_labels():
    batch = random_batch(24, 5, 4)
    hard = class_moments(batch.features, batch.labels, 5, 3.0)
    soft = class_moments(batch.features, F.one_hot(batch.labels, 5).double(), 5, 3.0)
    torch.testing.assert_close(tuple(soft), tuple(hard))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_summed_in_float32(dtype):
    features = torch.full((2048, 4), 100.0, dtype=dtype)  # a sum in float16 would overflow at 65504
    moments = class_moments(features, torch.zeros(2048, dtype=torch.long), 1)
    assert moments.feature_sum.dtype == torch.float32
    assert moments.class_sqnorm.item() == pytest.approx(4e4)


# --- moving averages ----------------------------------------------------------------------------------------------


@either_estimator
def test_toy_values(estimator):
    statistics = updated(ClassStatistics(3, estimator=estimator), [toy_batch()])
    assert statistics.class_spread.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert statistics.class_sqnorm.tolist() == pytest.approx([3.0, 4.0, 10.0])
    assert statistics.mean_spread.item() == pytest.approx(1 / 3)
    third = updated(ClassStatistics(3, estimator=estimator, norm_order=3.0), [toy_batch()])
    assert third.class_sqnorm.tolist() == pytest.approx([2.663374, 4.0, 9.220873], abs=1e-6)
    assert third.class_spread.tolist() == pytest.approx([1.0, 0.0, 0.0]), "always L2"


def test_toy_means_and_weights():
    statistics = updated(ClassStatistics(3), [toy_batch()])
    assert statistics.class_mean.tolist() == [[1.0, 1.0], [0.0, 2.0], [3.0, 1.0]]
    assert (statistics.class_weight / statistics.class_weight[1]).tolist() == pytest.approx([2.0, 1.0, 1.0])


def test_moving_average_of_the_batch_scalars():
    """From spread 3 and r² 4 the toy batch with (1, 3) leads to 2.8 and 3.9."""
    before = torch.tensor([[1.0, 3**0.5], [1.0, -(3**0.5)]], dtype=torch.float64)
    statistics = ClassStatistics(3, estimator="batch", ema_decay=0.9)
    statistics.update(before, torch.tensor([0, 0]))
    updated(statistics, [toy_batch()])
    assert statistics.class_spread[0].item() == pytest.approx(2.8)
    assert statistics.class_sqnorm[0].item() == pytest.approx(3.9)


@pytest.mark.parametrize("norm_order", ORDERS)
@pytest.mark.parametrize(("size", "num_classes"), [(24, 5), (7, 30)])
@either_estimator
def test_statistics_equal_the_whole_history(estimator, size, num_classes, norm_order):
    batches = random_batches(6, size, num_classes, 4)
    statistics = ClassStatistics(num_classes, norm_order=norm_order, ema_decay=0.8, estimator=estimator)
    updated(statistics, batches)
    reference = REFERENCE[estimator](history(batches), num_classes, norm_order, 0.8)
    expect(statistics, reference, num_classes)
    assert statistics.mean_spread.item() == pytest.approx(naive.mean_spread(reference))
    assert statistics.seen.tolist() == [k in reference for k in range(num_classes)]
    assert statistics.updates.item() == 6
    if estimator == "moments":
        for k, entry in reference.items():
            torch.testing.assert_close(statistics.class_mean[k], entry["mean"])


@either_estimator
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_any_decay_equals_the_whole_history(decay, estimator):
    batches = random_batches(5, 12, 6, 3)
    statistics = updated(ClassStatistics(6, ema_decay=decay, estimator=estimator), batches)
    expect(statistics, REFERENCE[estimator](history(batches), 6, 2.0, decay), 6)


@either_estimator
def test_first_sight_of_a_class_assigns(estimator):
    early, late = random_batch(20, 3, 4, seed=1), random_batch(20, 3, 4, seed=2)
    statistics = ClassStatistics(6, ema_decay=0.99, estimator=estimator)
    statistics.update(early.features, early.labels)
    statistics.update(late.features, late.labels + 3)
    alone = naive.moments_statistics([(late.features, late.labels)], 3)[1]
    assert statistics.class_spread[4].item() == pytest.approx(alone["spread"])
    assert statistics.class_sqnorm[4].item() == pytest.approx(alone["sqnorm"])


@either_estimator
def test_classes_never_seen_are_left_out_of_the_mean_spread(estimator):
    batch = random_batch(20, 3, 4)
    few, many = (updated(ClassStatistics(k, estimator=estimator), [batch]) for k in (3, 100))
    torch.testing.assert_close(few.mean_spread, many.mean_spread)
    assert many.seen.sum() == 3
    assert many.class_spread[3:].tolist() == [0.0] * 97


def test_before_the_first_batch_nothing_is_seen_and_the_mean_spread_is_zero():
    statistics = ClassStatistics(4, feature_dim=3)
    assert not statistics.seen.any()
    assert statistics.mean_spread.item() == 0.0


@either_estimator
def test_absent_classes_keep_their_statistics(estimator):
    statistics = ClassStatistics(3, estimator=estimator)
    first = random_batch(30, 3, 4, dtype=torch.float32)
    statistics.update(first.features, first.labels)
    before = statistics.averages[2].clone()
    for _ in range(50):
        others = random_batch(30, 2, 4, seed=5, dtype=torch.float32)
        statistics.update(others.features, others.labels)
    assert torch.equal(statistics.averages[2], before)


@either_estimator
def test_empty_batches_leave_the_averages_as_they_are(estimator):
    plain, padded = (ClassStatistics(4, estimator=estimator) for _ in range(2))
    padded.update(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.long))
    assert not padded.seen.any()
    for statistics in (plain, padded):
        updated(statistics, [random_batch(20, 4, 3)])
    assert torch.equal(padded.averages, plain.averages)


@either_estimator
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e25])
def test_a_batch_with_nan_inf_or_overflow_moves_nothing(estimator, value):
    statistics = ClassStatistics(4, estimator=estimator)
    batch = random_batch(20, 4, 3, dtype=torch.float32, gradients=False)
    statistics.update(batch.features, batch.labels)
    before = state(statistics)
    broken = batch.features.clone()
    broken[2, 1] = value
    statistics.update(broken, batch.labels)
    assert same_state(state(statistics), before)
    statistics.update(batch.features, batch.labels)
    assert statistics.averages.isfinite().all()


def test_update_is_outside_the_graph():
    statistics = ClassStatistics(4)
    statistics.update(*random_batch(20, 4, 3)[:0:-1])
    assert not any(buffer.requires_grad for buffer in statistics.buffers())


# --- types and cancellation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@either_estimator
def test_lower_precision_features_are_accumulated_in_float32(dtype, estimator):
    batches = [b._replace(features=b.features.to(dtype)) for b in random_batches(4, 24, 5, 4)]
    statistics = updated(ClassStatistics(5, estimator=estimator), batches)
    assert statistics.class_spread.dtype == torch.float32
    expect(statistics, REFERENCE[estimator](history(batches), 5), 5, tolerance=2e-5)


def test_float64_features_keep_float64_statistics():
    assert updated(ClassStatistics(5), [random_batch(24, 5, 4)]).averages.dtype == torch.float64


@pytest.mark.parametrize("cast", ["half", "bfloat16"])
def test_casting_to_half_precision_leaves_the_statistics_in_float32(cast):
    statistics = updated(ClassStatistics(5), [random_batch(24, 5, 4, dtype=torch.float32)])
    before = state(statistics)
    assert same_state(state(getattr(statistics, cast)()), before)
    assert statistics.double().averages.dtype == torch.float64


@pytest.mark.parametrize("offset", [10.0, 100.0])
def test_scalars_of_a_batch_far_from_the_origin_are_not_lost_to_cancellation(offset):
    noise = 0.1 * torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    features = (noise * 1024).round() / 1024 + offset  # exact in float32
    labels = torch.arange(64) % 2
    truth = naive.moments_statistics([(features, labels)], 2)
    statistics = ClassStatistics(2, estimator="batch")
    statistics.update(features, labels)
    assert statistics.class_spread.tolist() == pytest.approx([truth[k]["spread"] for k in (0, 1)], rel=1e-4)


def test_moments_of_standardised_features_are_not_lost_to_cancellation():
    """The loss standardises first, so that an offset that swamps raw moments in float32 does no harm."""
    noise = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64) % 2
    near, far = MR2Loss(2), MR2Loss(2)
    exact = (noise * 1024).round() / 1024
    for loss, offset in ((near, 0.0), (far, 1000.0)):
        loss(torch.zeros(64, 2, requires_grad=True), labels, exact + offset)
    torch.testing.assert_close(far.statistics.class_spread, near.statistics.class_spread, rtol=1e-3, atol=0.0)


# --- soft labels --------------------------------------------------------------------------------------------------


@either_estimator
def test_one_hot_probabilities_count_as_samples(estimator):
    hard, soft = (ClassStatistics(4, estimator=estimator) for _ in range(2))
    for batch in random_batches(3, 20, 4, 3, gradients=False):
        hard.update(batch.features, batch.labels)
        soft.update(batch.features, F.one_hot(batch.labels, 4).double())
    torch.testing.assert_close(soft.averages, hard.averages)


@either_estimator
def test_half_probabilities_equal_weights_of_one_half(estimator):
    statistics = ClassStatistics(2, estimator=estimator)
    features = torch.tensor([[0.0], [4.0]], dtype=torch.float64)
    statistics.update(features, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    # class 0: mean 4·0.5/1.5 = 4/3; spread (1·(4/3)² + 0.5·(8/3)²) / 1.5
    assert statistics.class_spread.tolist() == pytest.approx([(16 / 9 + 32 / 9) / 1.5, 0.0])
    assert statistics.class_sqnorm.tolist() == pytest.approx([16 / 3, 16.0])


# --- why there are two estimators ---------------------------------------------------------------------------------

MANY, DIM, BATCH = 100, 16, 128
TRUE_SPREAD = torch.linspace(0.5, 2.0, MANY).square() * DIM


def stream(num_batches):
    """Yield batches of normal features; the true spread of class k is its scale squared times d."""
    generator = torch.Generator().manual_seed(0)
    centres, scales = 3 * torch.randn(MANY, DIM, generator=generator), torch.linspace(0.5, 2.0, MANY)
    for _ in range(num_batches):
        labels = torch.randint(MANY, (BATCH,), generator=generator)
        yield centres[labels] + scales[labels, None] * torch.randn(BATCH, DIM, generator=generator), labels


@pytest.fixture(scope="module")
def fed():
    both = {name: ClassStatistics(MANY, estimator=name) for name in ("moments", "batch")}
    for features, labels in stream(200):
        for statistics in both.values():
            statistics.update(features, labels)
    return both


def test_moments_are_right_with_one_sample_of_a_class_per_batch(fed):
    assert fed["moments"].mean_spread.item() == pytest.approx(TRUE_SPREAD.mean().item(), rel=0.05)
    ranks = fed["moments"].class_spread.argsort().argsort().double()
    assert torch.corrcoef(torch.stack([ranks, torch.arange(MANY).double()]))[0, 1] > 0.9


def test_batch_scalars_lose_seven_tenths_of_the_spread_but_nothing_of_the_squared_norm(fed):
    assert fed["batch"].mean_spread.item() / TRUE_SPREAD.mean().item() == pytest.approx(0.29, abs=0.03)
    ratio = fed["moments"].class_sqnorm / fed["batch"].class_sqnorm
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.02)


def test_statistics_follow_a_change_of_the_features():
    statistics = ClassStatistics(MANY)
    for factor in (1.0, 3.0):
        for features, labels in stream(80):
            statistics.update(factor * features, labels)
    assert statistics.mean_spread.item() == pytest.approx(9 * TRUE_SPREAD.mean().item(), rel=0.08)


# --- whole sets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def frozen():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (400,), generator=generator)
    labels[labels == 3] = 2  # one class never occurs
    features = torch.randn(400, 7, generator=generator) * (1 + labels.unsqueeze(1)) + 30.0
    return features, labels


def batches_of(features, labels, size=64):
    return [(features[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)]


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
@either_estimator
def test_fitted_statistics_equal_numpy_on_all_samples(frozen, order, estimator):
    statistics = ClassStatistics(5, norm_order=order, estimator=estimator)
    statistics.fit(iter(batches_of(*frozen)))  # an iterator can be read only once
    values, classes = frozen[0].double().numpy(), frozen[1].numpy()
    tolerance = 1e-3 if estimator == "moments" else 1e-5  # float32 sums far from the origin
    for k in (0, 1, 2, 4):
        rows = values[classes == k]
        spread = ((rows - rows.mean(0)) ** 2).sum(1).mean()
        power = (np.linalg.norm(rows, ord=order, axis=1) ** 2).mean()
        assert float(statistics.class_spread[k]) == pytest.approx(spread, rel=tolerance)
        assert float(statistics.class_sqnorm[k]) == pytest.approx(power, rel=1e-5)
    assert statistics.seen.tolist() == [True, True, True, False, True]


@pytest.mark.parametrize("order", [2.0, 3.0])
def test_the_recommended_loss_fits_standardised_statistics(frozen, order):
    loss = MR2Loss(5, norm_order=order)
    loss.fit_statistics(iter(batches_of(*frozen, size=13)))
    rows = naive.standardized(frozen[0])
    for k, entry in naive.moments_statistics([(rows, frozen[1])], 5, order).items():
        assert loss.statistics.class_spread[k].item() == pytest.approx(entry["spread"], rel=1e-5)
        assert loss.statistics.class_sqnorm[k].item() == pytest.approx(entry["sqnorm"], rel=1e-5)
        torch.testing.assert_close(loss.statistics.class_mean[k].double(), entry["mean"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_one_batch_of_all_samples_gives_the_fitted_statistics(frozen, name):
    fitted, stepped = MR2Loss.preset(name, 5), MR2Loss.preset(name, 5)
    fitted.fit_statistics(batches_of(*frozen))
    stepped(torch.zeros(400, 5, requires_grad=True), frozen[1], frozen[0])
    for field in ("class_spread", "class_sqnorm"):
        found, expected = getattr(stepped.statistics, field), getattr(fitted.statistics, field)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_order_and_size_of_batches_do_not_matter(frozen):
    first, second = ClassStatistics(5), ClassStatistics(5)
    first.fit(batches_of(*frozen, size=400))
    shuffled = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    second.fit(batches_of(frozen[0][shuffled], frozen[1][shuffled], 13))
    torch.testing.assert_close(first.averages, second.averages)


def test_fitting_replaces_what_was_there(frozen):
    fresh, used = ClassStatistics(5), ClassStatistics(5)
    used.update(100 * frozen[0], frozen[1])
    for statistics in (fresh, used):
        statistics.fit(batches_of(*frozen))
    assert torch.equal(fresh.averages, used.averages)


def test_fitting_nothing_or_nan_is_refused(frozen):
    with pytest.raises(ValueError, match="batches must hold at least one sample, got none"):
        ClassStatistics(3).fit([])
    frozen[0][3, 2] = math.nan
    with pytest.raises(ValueError, match="features must be finite"):
        ClassStatistics(5).fit(batches_of(*frozen))


# --- saving and loading -------------------------------------------------------------------------------------------


@either_estimator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_loaded_and_continued_equals_the_straight_run(estimator, dtype):
    batches = random_batches(6, 24, 6, 4, dtype=dtype)
    straight = updated(ClassStatistics(6, estimator=estimator), batches)
    saved = state(updated(ClassStatistics(6, estimator=estimator), batches[:3]))
    resumed = ClassStatistics(6, estimator=estimator)
    resumed.load_state_dict(saved)
    assert same_state(state(updated(resumed, batches[3:])), state(straight))


@either_estimator
@pytest.mark.parametrize("feature_dim", [None, 4])
def test_a_state_from_before_the_first_batch_starts_anew(estimator, feature_dim):
    batches = random_batches(3, 24, 6, 4)
    used = updated(ClassStatistics(6, estimator=estimator, feature_dim=feature_dim), batches)
    used.load_state_dict(ClassStatistics(6, estimator=estimator).state_dict())
    assert not used.seen.any()
    fresh = ClassStatistics(6, estimator=estimator).double()
    torch.testing.assert_close(updated(used, batches).averages, updated(fresh, batches).averages)


def test_the_feature_size_comes_with_a_loaded_state():
    loaded = ClassStatistics(6)
    loaded.load_state_dict(updated(ClassStatistics(6), [random_batch(9, 6, 4)]).state_dict())
    assert loaded.feature_dim == 4


@pytest.mark.parametrize("options", [{"num_classes": 7}, {"num_classes": 6, "feature_dim": 5}])
def test_a_state_of_another_size_is_refused(options):
    saved = updated(ClassStatistics(6), [random_batch(9, 6, 4)]).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        ClassStatistics(**options).load_state_dict(saved)


@pytest.mark.parametrize("make", [ClassStatistics, MR2Loss, lambda k: MR2Loss.preset("paper", k)])
def test_a_state_of_version_0_4_is_refused_with_a_sentence(make):
    module = make(6)
    prefix = "" if isinstance(module, ClassStatistics) else "statistics."
    saved = {f"{prefix}class_scalars": torch.zeros(6, 4), f"{prefix}updates": torch.tensor(3)}
    with pytest.raises(RuntimeError, match=r"saved by classmargin 0\.4 or earlier.*start them anew"):
        module.load_state_dict(saved)
