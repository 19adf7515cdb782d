"""The loss of the hidden layer is MR2Loss; weights count rows in it."""

import pytest
import torch

from classmargin import MR2Loss
from classmargin.functional import margin_cross_entropy
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


@pytest.mark.parametrize("norm_order", [2.0, 3.0])
def test_equal_weights_give_the_loss_of_the_package(norm_order):
    loss = MR2Loss(5, mean_margin=2.0, norm_order=norm_order, representation_weight=0.3)
    margins = MovingMargins(5, 7, mean_margin=2.0, norm_order=norm_order, representation_weight=0.3)
    for logits, labels, features in batches():
        expected = loss(logits.requires_grad_(), labels, features)
        margins.update(features, labels, torch.ones(32, dtype=torch.float64))
        ours = margin_cross_entropy(logits, labels, margins.margins.to(logits), reduction="none")
        ours = (ours + margins.representation_losses(features, labels)).mean()
        assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


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
    torch.testing.assert_close(weighted.margins, twice.margins)
    torch.testing.assert_close(weighted.statistics.class_spread, twice.statistics.class_spread)
