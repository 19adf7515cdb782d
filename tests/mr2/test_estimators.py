"""Why the moments estimator exists: with one or two samples of a class in a batch the spread stays right."""

import pytest
import torch

from classmargin.mr2 import ClassStatistics

NUM_CLASSES, FEATURE_DIM, BATCH = 100, 16, 128


def stream(num_batches, seed=0):
    """Yield batches of normal features; the true spread of class k is its scale squared times d."""
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(NUM_CLASSES, FEATURE_DIM, generator=generator)
    scales = torch.linspace(0.5, 2.0, NUM_CLASSES)
    for _ in range(num_batches):
        labels = torch.randint(NUM_CLASSES, (BATCH,), generator=generator)
        noise = torch.randn(BATCH, FEATURE_DIM, generator=generator)
        yield centres[labels] + scales[labels, None] * noise, labels


TRUE_SPREAD = torch.linspace(0.5, 2.0, NUM_CLASSES).square() * FEATURE_DIM


def fed(num_batches=200, **options):
    statistics = ClassStatistics(NUM_CLASSES, **options)
    for features, labels in stream(num_batches):
        statistics.update(features, labels)
    return statistics


@pytest.fixture(scope="module")
def moments():
    return fed()  # both defaults: estimator "moments", decay 0.9


@pytest.fixture(scope="module")
def scalars():
    return fed(estimator="batch")


def test_moments_are_within_five_percent_of_the_true_mean_spread(moments):
    assert moments.mean_spread.item() == pytest.approx(TRUE_SPREAD.mean().item(), rel=0.05)


def test_batch_estimate_is_about_three_tenths_of_the_true_mean_spread(scalars):
    assert scalars.mean_spread.item() / TRUE_SPREAD.mean().item() == pytest.approx(0.29, abs=0.03)


@pytest.mark.parametrize("decay", [0.8, 0.9, 0.95])
def test_moments_lose_only_the_effective_sample_size_at_short_memory(decay):
    # a class that occurs has 1.77 samples in a batch: about (1 + decay)/(1 - decay) · 1.77 are remembered,
    # and a variance around the mean of n equally weighted samples is short by 1/n
    remembered = (1 + decay) / (1 - decay) * 1.77
    ratio = fed(estimator="moments", ema_decay=decay).mean_spread.item() / TRUE_SPREAD.mean().item()
    assert ratio == pytest.approx(1 - 1 / remembered, abs=0.02)


def test_both_estimators_agree_on_the_squared_norm(moments, scalars):
    ratio = moments.class_sqnorm / scalars.class_sqnorm
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.02)


def test_moments_order_the_classes_by_their_spread(moments):
    ranks = moments.class_spread.argsort().argsort().double()
    correlation = torch.corrcoef(torch.stack([ranks, torch.arange(NUM_CLASSES).double()]))[0, 1]
    assert correlation > 0.9


def test_mean_spread_is_right_from_the_first_large_batch():
    features, labels = (torch.cat(parts) for parts in zip(*stream(40), strict=True))
    statistics = ClassStatistics(NUM_CLASSES, ema_decay=0.999)
    statistics.update(features, labels)
    assert statistics.mean_spread.item() == pytest.approx(TRUE_SPREAD.mean().item(), rel=0.05)


def test_statistics_follow_a_change_of_the_features():
    statistics = ClassStatistics(NUM_CLASSES, ema_decay=0.9)
    for factor in (1.0, 3.0):
        for features, labels in stream(80, seed=1):
            statistics.update(factor * features, labels)
    assert statistics.mean_spread.item() == pytest.approx(9 * TRUE_SPREAD.mean().item(), rel=0.08)
