from dataclasses import replace

import pytest
import torch

from classmargin.methods import requirements_of


def weights(method):
    return method.log_weights.exp().tolist()


@pytest.mark.parametrize(
    ("step_size", "expected", "total"),
    [(0.01, [0.334366, 0.333213, 0.332421], 0.444094), (1.0, [0.441318, 0.312393, 0.246288], 0.501525)],
)
def test_values_on_the_toy_batch(make, toy, step_size, expected, total):
    method = make("group-dro", step_size=step_size)
    assert method.loss(toy, True).total.item() == pytest.approx(total, abs=1e-6)
    assert weights(method) == pytest.approx(expected, abs=1e-6)


def without_class_two(toy):
    keep = [0, 1, 3]
    return replace(toy, logits=toy.logits[keep], labels=toy.labels[keep], features=toy.features[keep])


def test_absent_class_loses_mass_in_the_original_form(make, toy):
    method = make("group-dro", step_size=1.0)
    assert method.loss(without_class_two(toy), True).total.item() == pytest.approx(0.478087, abs=1e-6)
    assert weights(method) == pytest.approx([0.458976, 0.324892, 0.216132], abs=1e-6)


def test_absent_class_keeps_its_mass_when_renormalised(make, toy):
    method = make("group-dro", step_size=1.0, preset="renormalised")
    assert method.loss(without_class_two(toy), True).total.item() == pytest.approx(0.609907, abs=1e-6)
    assert weights(method)[2] == pytest.approx(1 / 3, abs=1e-6)
    assert sum(weights(method)) == pytest.approx(1, abs=1e-6)


def test_unbiased_form_weights_samples(make, toy):
    method = make("group-dro", step_size=0.0, absent="unbiased")
    assert method.loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_adjustment_favours_small_classes(make, toy):
    method = make("group-dro", (10_000, 1, 10_000), step_size=1.0, adjustment=10.0)
    method.loss(toy, True)
    assert weights(method)[1] > 0.99


def test_weights_stay_without_update(make, toy):
    method = make("group-dro", step_size=1.0)
    total = method.loss(toy, False).total.item()
    assert weights(method) == pytest.approx([1 / 3] * 3)
    assert total == pytest.approx((0.753109 + 0.407606 + 0.169846) / 3, abs=1e-6)


def test_gradient_does_not_pass_through_the_weights(make, toy):
    method = make("group-dro", step_size=1.0)
    logits = toy.logits.clone().requires_grad_()
    loss = method.loss(replace(toy, logits=logits), True)
    assert not method.log_weights.requires_grad
    (slope,) = torch.autograd.grad(loss.total, logits)
    fixed = torch.tensor([0.441318, 0.312393, 0.246288], dtype=torch.float64)[toy.labels]
    per_class = torch.tensor([2, 1, 1])[toy.labels]
    losses = torch.nn.functional.cross_entropy(logits, toy.labels, reduction="none")
    expected = torch.autograd.grad((fixed * losses / per_class).sum(), logits)[0]
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-6)


def test_weight_of_a_long_easy_class_can_return(make, toy):
    method = make("group-dro", step_size=100.0)
    for _ in range(50):
        method.loss(toy, True)
    hard_again = replace(toy, labels=torch.tensor([2, 2, 2, 2]))
    for _ in range(100):
        method.loss(hard_again, True)
    assert weights(method)[2] > 0.99


def test_sampler_is_declared():
    assert requirements_of("group-dro").sampler == "plain"
    assert requirements_of("group-dro", sampler="class-balanced").sampler == "class-balanced"
