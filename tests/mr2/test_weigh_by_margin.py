"""The factor γ_y / c̄ on the loss of a sample, which gives back the gradient that the division by γ_y takes."""

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, random_batch, toy_batch

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")


def test_hand_value_on_the_toy_batch():
    loss = MR2Loss.preset("paper", 3, weigh_by_margin=True, mean_margin=1.0)
    terms = loss.terms(*toy_batch())
    margins = [0.834622, 0.918620, 1.246759]
    losses = naive.logit_margin_losses(toy_batch().logits, toy_batch().labels, margins)
    expected = sum(margins[y] * float(one) for y, one in zip((0, 1, 2, 0), losses, strict=True)) / 4
    assert terms.logit_margin.item() == pytest.approx(expected, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(1.684193, abs=1e-6)


@pytest.mark.parametrize(
    "options", [{}, {"mean_margin": 2.0}, {"margin_source": "spread"}, {"representation_weight": 0.0}]
)
def test_value_and_gradient_equal_the_loop(options):
    loss = MR2Loss(5, weigh_by_margin=True, **options)
    batch = random_batch(40, 5, 3)
    terms = loss.terms(*batch)
    margins = loss.class_margins.tolist()
    losses = naive.logit_margin_losses(batch.logits, batch.labels, margins)
    factors = torch.tensor([margins[y] / loss.mean_margin for y in batch.labels.tolist()])
    expected = (losses * factors).mean()
    torch.testing.assert_close(terms.logit_margin, expected)
    ours = torch.autograd.grad(terms.logit_margin, batch.logits)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(expected, batch.logits)[0])


def test_uniform_margins_leave_nothing_to_weigh():
    batch = random_batch(40, 5, 3)
    plain, weighed = (
        MR2Loss(5, margin_source="uniform", mean_margin=2.0, weigh_by_margin=w) for w in (False, True)
    )
    torch.testing.assert_close(weighed(*batch), plain(*batch))


def test_a_hopeless_sample_pulls_as_hard_as_under_cross_entropy_whatever_its_margin():
    batch = random_batch(40, 5, 3)
    loss = MR2Loss(5, margin_source="spread", weigh_by_margin=True, representation_weight=0.0)
    loss.statistics.update(batch.features.detach(), batch.labels)
    logits = torch.full((5, 5), 0.0, dtype=torch.float64).fill_diagonal_(-500.0).requires_grad_()
    labels = torch.arange(5)
    features = torch.zeros(5, 3, dtype=torch.float64)
    ours = torch.autograd.grad(loss(logits, labels, features, update_statistics=False), logits)[0]
    theirs = torch.autograd.grad(F.cross_entropy(logits, labels), logits)[0]
    assert loss.class_margins.std() > 0.1
    torch.testing.assert_close(ours, theirs)


def test_class_weights_smoothing_and_soft_labels_go_along():
    batch = random_batch(30, 5, 3)
    weight = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    loss = MR2Loss(5, weigh_by_margin=True, weight=weight, label_smoothing=0.1, representation_weight=0.0)
    total = loss(*batch)
    margins = loss.class_margins[batch.labels]
    losses = F.cross_entropy(
        batch.logits / margins[:, None], batch.labels, weight, reduction="none", label_smoothing=0.1
    )
    torch.testing.assert_close(total, (losses * margins).sum() / weight[batch.labels].sum())
    soft = F.one_hot(batch.labels, 5).double()
    hard_loss, soft_loss = (MR2Loss(5, weigh_by_margin=True) for _ in range(2))
    torch.testing.assert_close(soft_loss(batch.logits, soft, batch.features), hard_loss(*batch))


def test_second_derivatives_are_right():
    batch = random_batch(6, 3, 2)
    loss = MR2Loss(3, weigh_by_margin=True)
    loss(*batch)

    def fixed(logits, features):
        return loss(logits, batch.labels, features, update_statistics=False)

    assert torch.autograd.gradcheck(fixed, (batch.logits, batch.features))
    assert torch.autograd.gradgradcheck(fixed, (batch.logits, batch.features))
    assert all(torch.isfinite(part).all() for part in gradients(fixed(batch.logits, batch.features), batch))
