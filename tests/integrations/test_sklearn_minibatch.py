"""The loss of the hidden layer is MR2Loss with its recommended settings; weights count rows in it."""

import pytest
import torch

from classmargin import MR2Loss
from classmargin.integrations.sklearn_parts.minibatch import MovingMargins


def batches(count=4):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        labels = torch.randint(0, 5, (32,), generator=generator)
        yield (
            torch.randn(32, 5, generator=generator, dtype=torch.float64),
            labels,
            torch.randn(32, 7, generator=generator, dtype=torch.float64) * (1 + labels[:, None]),
        )


@pytest.mark.parametrize("warmup_steps", [2, 200])  # margins set in on the way; the whole test is warm-up
@pytest.mark.parametrize("representation_weight", [0.0, 3.0])
def test_equal_weights_give_the_recommended_loss_of_the_package(warmup_steps, representation_weight):
    loss = MR2Loss.preset(
        "recommended",
        5,
        mean_margin=2.0,
        representation_weight=representation_weight,
        warmup_steps=warmup_steps,
    )
    margins = MovingMargins(
        5, 7, mean_margin=2.0, norm_order=2.0, representation_weight=representation_weight
    )
    margins.warmup_steps = warmup_steps
    for logits, labels, features in batches():
        logits.requires_grad_()
        features.requires_grad_()
        expected = loss(logits, labels, features)
        margins.update(features.detach(), labels, torch.ones(32, dtype=torch.float64))
        logit, pull = margins.losses(logits, labels, features)
        ours = (logit + pull).mean()
        assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
        torch.testing.assert_close(margins.margins, loss.class_margins, rtol=1e-6, atol=0)
        wanted = torch.autograd.grad(expected, (logits, features), allow_unused=True, materialize_grads=True)
        got = torch.autograd.grad(ours, (logits, features), allow_unused=True, materialize_grads=True)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_a_row_of_weight_two_counts_twice_in_the_statistics():
    twice, weighted = (
        MovingMargins(5, 7, mean_margin=1.0, norm_order=2.0, representation_weight=0.1) for _ in range(2)
    )
    _, labels, features = next(batches())
    weight = torch.ones(32, dtype=torch.float64)
    weight[::3] = 2.0
    weighted.update(features, labels, weight)
    index = torch.arange(32).repeat_interleave(weight.long())
    twice.update(features[index], labels[index], torch.ones(len(index), dtype=torch.float64))
    for margins in (twice, weighted):
        margins.warmup_steps = 0
    torch.testing.assert_close(weighted.margins, twice.margins)
    assert weighted.margins.std() > 0
    torch.testing.assert_close(weighted.statistics.class_spread, twice.statistics.class_spread)
