"""float16, bfloat16 and autocast: computed in float32 inside, never overflowing."""

import pytest
import torch
from mr2_batches import MR2Batch, gradients, random_batch, random_batches
from torch import nn

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

HALVES = [torch.float16, torch.bfloat16]
CONFIGURATIONS = [
    {},
    {"positives": "memory"},
    {"positives": "moments"},
    {"norm_order": 5.0},
    {"temperature": 1.0},
    {"estimator": "batch"},
    {"margin_source": "spread"},
]


def in_half(batch: MR2Batch, dtype, scale=1.0) -> MR2Batch:
    return batch._replace(
        logits=batch.logits.detach().to(dtype).requires_grad_(),
        features=(scale * batch.features.detach()).to(dtype).requires_grad_(),
    )


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_features_of_norm_ten_thousand_give_finite_loss_and_gradient(dtype, options):
    loss = MR2Loss(5, **options)
    for batch in random_batches(3, 24, 5, 8):
        norm = batch.features.detach().norm(dim=1).mean()
        half = in_half(batch, dtype, scale=1e4 / norm)
        total = loss(*half)
        assert total.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients(total, half))
    assert all(buffer.isfinite().all() for buffer in loss.buffers())
    assert loss.class_margins.mean().item() == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_equals_float32_on_the_same_numbers(dtype, options):
    low, exact = MR2Loss(5, **options), MR2Loss(5, **options)
    for batch in random_batches(3, 24, 5, 8):
        half = in_half(batch, dtype)
        single = in_half(half, torch.float32)
        ours, expected = low(*half), exact(*single)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        for mine, theirs in zip(gradients(ours, half), gradients(expected, single), strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine.float(), theirs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_autocast_changes_nothing_for_float32_inputs(options):
    plain, cast = MR2Loss(5, **options), MR2Loss(5, **options)
    for batch in random_batches(3, 24, 5, 8, dtype=torch.float32):
        expected = plain(*batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = cast(*batch)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradients(ours, batch), gradients(expected, batch), rtol=1e-5, atol=1e-6)


def test_training_step_under_autocast_reaches_every_parameter():
    torch.manual_seed(0)
    encoder, head, loss = nn.Linear(6, 8), nn.Linear(8, 5), MR2Loss(5)
    batch = random_batch(24, 5, 6, dtype=torch.float32, gradients=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = encoder(batch.features)
        assert features.dtype == torch.bfloat16
        total = loss(head(features), batch.labels, features)
    total.backward()
    for parameter in [*encoder.parameters(), *head.parameters()]:
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0
    assert loss.statistics.class_spread.dtype == torch.float32


def test_large_half_precision_logits_do_not_overflow():
    batch = in_half(random_batch(24, 5, 3), torch.float16)
    total = MR2Loss(5, mean_margin=0.05)((batch.logits * 1e4).clamp(-6e4, 6e4), batch.labels, batch.features)
    assert total.isfinite()
