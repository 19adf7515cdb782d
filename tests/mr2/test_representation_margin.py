"""Representation margin, soft and hard (Eq. 2, 3): hand values, loops over pairs, limits."""

import math

import mr2_naive as naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mr2_batches import random_batch, toy_batch

from classmargin.mr2 import hard_representation_margin, representation_margin

# Group sizes that a layout may treat differently: singletons, few pairs, many pairs, very uneven, one class only.
LAYOUTS = {
    "all different": list(range(9)),
    "few pairs": [0, 1, 2, 0, 3, 4, 1, 5, 6],
    "many pairs": [0, 1, 2] * 9,
    "very uneven": [0] * 30 + list(range(1, 31)) + [1],
    "one class": [4] * 11,
    "one sample": [3],
}


def toy_value(**options):
    _, labels, features = toy_batch()
    return representation_margin(features, labels, options.pop("mean_spread", 1 / 3), **options)


def test_toy_losses_per_sample():
    assert toy_value(reduction="none").tolist() == pytest.approx([3.368386, 0.0, 0.0, 3.368386], abs=1e-6)


def test_toy_mean():
    assert toy_value().item() == pytest.approx(1.684193, abs=1e-6)


def test_toy_values_without_slack():
    each = toy_value(mean_spread=0.0, reduction="none")
    assert each.tolist() == pytest.approx([4.018150, 0.0, 0.0, 4.018150], abs=1e-6)
    assert toy_value(mean_spread=0.0).item() == pytest.approx(2.009075, abs=1e-6)


def test_toy_hard_form():
    _, labels, features = toy_batch()
    losses = hard_representation_margin(features, labels, 1 / 3, reduction="none")
    assert losses.tolist() == pytest.approx([10 / 3, 0.0, 0.0, 10 / 3], abs=1e-12)


def test_toy_gradient():
    features = toy_batch().features.requires_grad_()
    (gradient,) = torch.autograd.grad(representation_margin(features, toy_batch().labels, 1 / 3), features)
    assert gradient[0].tolist() == pytest.approx([0.0, -1.931110], abs=1e-6)


def test_mean_pair_distance_is_twice_the_spread_only_with_self_pairs():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    distances = torch.cdist(points, points).square()
    spread = (points - points.mean(0)).square().sum(1).mean()
    assert spread.item() == pytest.approx(1.111111, abs=1e-6)
    assert (distances.sum() / 6).item() == pytest.approx(3.333333, abs=1e-6)
    assert distances.mean().item() == pytest.approx(2 * spread.item())
    # and the loss leaves self-pairs out: at huge temperature ln(1 + n exp(D/τ)) counts n = 2 pairs a row, not 3
    losses = representation_margin(
        points, torch.zeros(3, dtype=torch.long), 0.0, temperature=1e12, reduction="none"
    )
    assert losses.tolist() == pytest.approx([math.log(3)] * 3)


@pytest.mark.parametrize("temperature", [1.0, 7.5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients_equal_the_loop(layout, temperature):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.randn(len(labels), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    features.requires_grad_()
    ours = representation_margin(features, labels, 0.4, temperature=temperature, reduction="none")
    loop = naive.representation_margin_losses(features, labels, 0.4, temperature)
    torch.testing.assert_close(ours, loop)
    weights = torch.linspace(0.5, 2.0, len(labels), dtype=torch.float64)
    mine, theirs = (torch.autograd.grad((weights * x).sum(), features)[0] for x in (ours, loop))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_hard_form_equals_the_loop(layout):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.randn(len(labels), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = hard_representation_margin(features, labels, 0.4, reduction="none")
    torch.testing.assert_close(ours, naive.hard_representation_margin_losses(features, labels, 0.4))


@pytest.mark.parametrize("form", [representation_margin, hard_representation_margin])
def test_reductions_agree_with_one_another(form):
    _, labels, features = random_batch(12, 4, 3)
    mean, total, each = (form(features, labels, 0.1, reduction=r) for r in ("mean", "sum", "none"))
    torch.testing.assert_close(each.sum(), total)
    torch.testing.assert_close(each.mean(), mean)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6), st.floats(0.0, 5.0))
def test_soft_form_lies_between_the_hard_form_and_the_hard_form_plus_a_logarithm(seed, size, classes, spread):
    _, labels, features = random_batch(size, classes, 3, seed)
    soft = representation_margin(features, labels, spread, reduction="none")
    hard = hard_representation_margin(features, labels, spread, reduction="none")
    classmates = torch.bincount(labels, minlength=classes)[labels]
    assert (soft >= hard - 1e-9).all()
    assert (soft <= hard + classmates.double().log() + 1e-9).all()


def test_loss_is_not_scale_free_at_a_fixed_temperature_and_scale_free_at_a_relative_one():
    _, labels, features = random_batch(12, 4, 3)
    base = representation_margin(features, labels, 0.2)
    assert representation_margin(30 * features, labels, 900 * 0.2) > 100 * base
    torch.testing.assert_close(
        representation_margin(30 * features, labels, 900 * 0.2, temperature=900.0), base
    )


def test_large_temperature_counts_pairs():
    _, labels, features = random_batch(12, 4, 3)
    losses = representation_margin(features, labels, 0.2, temperature=1e15, reduction="none")
    classmates = torch.bincount(labels, minlength=4)[labels].double()
    torch.testing.assert_close(losses, classmates.log())


def test_small_temperature_times_the_loss_is_the_hard_form():
    _, labels, features = random_batch(12, 4, 3)
    losses = 1e-6 * representation_margin(features, labels, 0.2, temperature=1e-6, reduction="none")
    hard = hard_representation_margin(features, labels, 0.2, reduction="none")
    torch.testing.assert_close(losses, hard, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_small_distances_survive_far_from_the_origin(offset):
    labels = torch.tensor([0, 0, 1, 1] * 8)
    small = torch.randn(32, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1
    # multiples of 1/1024 are exact in float32 here: rounding the features themselves is not what is tested
    shifted = (small * 1024).round() / 1024 + offset
    exact = representation_margin(shifted, labels, 0.0, reduction="none")
    float32 = representation_margin(shifted.float(), labels, 0.0, reduction="none")
    torch.testing.assert_close(float32.double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_agrees_with_float64(layout):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.randn(len(labels), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = representation_margin(features, labels, 0.4, reduction="none")
    ours = representation_margin(features.float(), labels, 0.4, reduction="none")
    torch.testing.assert_close(ours.double(), exact, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", [representation_margin, hard_representation_margin])
@pytest.mark.parametrize("layout", ["all different", "one sample"])
def test_no_classmates_give_a_zero_that_keeps_the_graph(form, layout):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.randn(len(labels), 3, requires_grad=True)
    loss = form(features, labels, 0.1)
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, features)[0].abs().sum() == 0


@pytest.mark.parametrize("form", [representation_margin, hard_representation_margin])
def test_no_rows_give_a_zero_that_keeps_the_graph(form):
    features = torch.randn(0, 3, requires_grad=True)
    loss = form(features, torch.zeros(0, dtype=torch.long), 0.1)
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, features)[0].shape == (0, 3)


@pytest.mark.parametrize("layout", ["few pairs", "many pairs", "very uneven", "one class"])
def test_identical_features_have_a_finite_loss_and_no_gradient(layout):
    labels = torch.tensor(LAYOUTS[layout])
    features = torch.ones(len(labels), 3, requires_grad=True)
    loss = representation_margin(features, labels, 0.0)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, features)[0].abs().max() < 1e-6


@pytest.mark.parametrize("layout", ["few pairs", "many pairs", "very uneven"])
def test_gradient_passes_the_numerical_check(layout):
    labels = torch.tensor(LAYOUTS[layout])[:12]
    features = torch.randn(len(labels), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    features.requires_grad_()
    function = lambda x: representation_margin(x, labels, 0.3, temperature=2.0)
    assert torch.autograd.gradcheck(function, features)
    assert torch.autograd.gradgradcheck(function, features)
