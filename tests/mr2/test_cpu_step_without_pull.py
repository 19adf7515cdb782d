"""λ = 0 on the short way of the CPU: equal to the general way, no gradient on features, no division by zero."""

import pytest
import torch

from classmargin.functional import margin_cross_entropy
from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(24, 4, generator=generator, dtype=torch.float64).requires_grad_()
    features = torch.randn(24, 6, generator=generator, dtype=torch.float64).requires_grad_()
    return logits, torch.randint(0, 4, (24,), generator=generator), features


def test_without_weight_only_the_logits_are_pulled(batch):
    logits, labels, features = batch
    loss = MR2Loss(4, mean_margin=2.0, representation_weight=0.0)
    terms = loss.terms(logits, labels, features)
    torch.testing.assert_close(terms.total, margin_cross_entropy(logits, labels, loss.class_margins))
    assert float(terms.representation_margin.detach()) == 0.0
    for_logits, for_features = torch.autograd.grad(terms.total, (logits, features))
    expected = torch.autograd.grad(margin_cross_entropy(logits, labels, loss.class_margins), logits)[0]
    torch.testing.assert_close(for_logits, expected)
    assert torch.equal(for_features, torch.zeros_like(features))


def test_the_reported_zero_has_a_zero_gradient(batch):
    logits, labels, features = batch
    terms = MR2Loss(4, representation_weight=0.0).terms(logits, labels, features)
    gradient = torch.autograd.grad(terms.representation_margin, features, create_graph=True)[0]
    assert torch.equal(gradient, torch.zeros_like(features))


def test_second_derivatives_exist(batch):
    logits, labels, features = batch
    total = MR2Loss(4, representation_weight=0.0)(logits, labels, features)
    first = torch.autograd.grad(total, logits, create_graph=True)[0]
    assert torch.isfinite(torch.autograd.grad(first.square().sum(), logits)[0]).all()


def test_ramp_at_its_start_still_gives_the_gradient_of_the_part(batch):
    logits, labels, features = batch
    loss = MR2Loss(4, representation_weight=0.5, warmup_steps=10, temperature=1.0)
    terms = loss.terms(logits, labels, features, update_statistics=False)  # no update yet: λ·ramp = 0
    part = torch.autograd.grad(terms.representation_margin, features, retain_graph=True)[0]
    assert part.abs().max() > 0
    assert torch.equal(torch.autograd.grad(terms.total, features)[0], torch.zeros_like(features))


def test_total_alone_equals_the_total_of_the_parts(batch):
    logits, labels, features = batch
    one, other = MR2Loss(4), MR2Loss(4)
    total, terms = one(logits, labels, features), other.terms(logits, labels, features)
    assert torch.equal(total, terms.total)
    for a, b in zip(
        torch.autograd.grad(total, (logits, features)),
        torch.autograd.grad(terms.total, (logits, features)),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_backward_twice_gives_the_same_gradient_twice(batch):
    logits, labels, features = batch
    total = MR2Loss(4)(logits, labels, features)
    first = torch.autograd.grad(total, (logits, features), retain_graph=True)
    second = torch.autograd.grad(total, (logits, features))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
