"""First and second derivatives of the whole objective against finite differences, statistics held fixed."""

import pytest
import torch
from mr2_batches import gradients, random_batch, random_batches
from torch.autograd import gradcheck, gradgradcheck

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

CONFIGURATIONS = {
    "default": {},
    "paper": {"temperature": 1.0, "representation_weight": 0.5, "mean_margin": 2.0, "estimator": "batch"},
    "prior": {"log_prior": torch.linspace(-2, -1, 3, dtype=torch.float64)},
    "weight": {"weight": torch.linspace(0.5, 1.5, 3, dtype=torch.float64)},
    "smoothing": {"label_smoothing": 0.1},
    "memory": {"positives": "memory"},
    "moments": {"positives": "moments"},
    "release": {"representation_reduction": "classes", "dimension_scale": 0.1},
    "warm-up": {"warmup_steps": 10},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)


def fixed_loss(options, size=7, num_classes=3, soft=False):
    """Return a function of logits and features, and a point to differentiate it at."""
    loss = MR2Loss(num_classes, **options)
    for batch in random_batches(2, 12, num_classes, 2):
        loss(*batch)
    batch = random_batch(size, num_classes, 2, seed=5)
    labels = (
        torch.softmax(random_batch(size, num_classes, 2, seed=6).logits.detach(), 1) if soft else batch.labels
    )
    function = lambda logits, features: loss.terms(logits, labels, features, update_statistics=False)
    return function, (batch.logits, batch.features)


@every_configuration
def test_gradient_of_every_part_passes_the_numerical_check(options):
    function, point = fixed_loss(options)
    assert gradcheck(function, point)


@every_configuration
def test_second_derivative_passes_the_numerical_check(options):
    function, point = fixed_loss(options)
    assert gradgradcheck(lambda *x: function(*x).total, point)


@pytest.mark.parametrize("name", ["default", "moments", "smoothing"])
def test_derivatives_with_soft_labels_pass_the_numerical_check(name):
    function, point = fixed_loss(CONFIGURATIONS[name], soft=True)
    assert gradcheck(function, point)
    assert gradgradcheck(lambda *x: function(*x).total, point)


@pytest.mark.parametrize("size", [1, 2, 30])
def test_any_number_of_pairs_passes_the_numerical_check(size):
    function, point = fixed_loss({}, size=size)
    assert gradcheck(function, point)


def test_one_parameter_in_logits_and_features_gets_both_gradients():
    batch = random_batch(10, 3, 2, gradients=False)
    head = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = MR2Loss(3)
    loss(*batch)
    function = lambda x: loss(x @ head, batch.labels, x, update_statistics=False)
    assert gradcheck(function, batch.features.clone().requires_grad_())


def test_gradient_scales_with_what_follows_the_loss():
    batch = random_batch(24, 5, 3)
    loss = MR2Loss(5)
    loss(*batch)
    once = gradients(loss(*batch, update_statistics=False), batch)
    total = loss(*batch, update_statistics=False)
    thrice = gradients(3.0 * total.square(), batch)
    for ours, base in zip(thrice, once, strict=True):
        torch.testing.assert_close(ours, 6.0 * total.detach() * base)


def test_backward_twice_over_one_graph_accumulates():
    batch = random_batch(24, 5, 3)
    total = MR2Loss(5)(*batch)
    total.backward(retain_graph=True)
    once = batch.features.grad.clone()
    total.backward()
    torch.testing.assert_close(batch.features.grad, 2 * once)


def test_gradient_descent_on_the_features_makes_classes_compact():
    batch = random_batch(40, 4, 3)
    loss = MR2Loss(4, representation_weight=1.0)
    features = batch.features.detach().clone().requires_grad_()
    before = loss.terms(batch.logits, batch.labels, features)
    for _ in range(30):
        terms = loss.terms(batch.logits, batch.labels, features)
        with torch.no_grad():
            features -= 2.0 * torch.autograd.grad(terms.total, features)[0]
    assert (
        loss.terms(batch.logits, batch.labels, features).representation_margin < before.representation_margin
    )
