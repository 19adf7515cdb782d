import pytest
import torch


def test_value_on_the_toy_batch(make, toy):
    # p = (0.665241, 0.665241, 0.843795, 1/3): (1-p)² CE = (0.045678, 0.045678, 0.004144, 0.488272)
    assert make("focal").loss(toy, True).total.item() == pytest.approx(0.145943, abs=1e-6)


def test_no_focusing_is_cross_entropy(make, toy):
    assert make("focal", focusing=0.0).loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_gradient_includes_the_weight(make, toy, naive_gradient):
    from dataclasses import replace

    method = make("focal", focusing=2.0)
    logits = toy.logits.clone().requires_grad_()
    method.loss(replace(toy, logits=logits), True).total.backward()
    expected = naive_gradient(lambda z: method.loss(replace(toy, logits=z), True).total, toy.logits)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-8)


def test_a_certain_sample_has_a_finite_gradient_for_small_focusing(make, toy):
    from dataclasses import replace

    logits = (1000 * torch.nn.functional.one_hot(toy.labels, 3)).double().requires_grad_()
    make("focal", focusing=0.5).loss(replace(toy, logits=logits), True).total.backward()
    assert torch.isfinite(logits.grad).all()
