from dataclasses import replace

import pytest
import torch

from classmargin.methods.cmic import separation


def with_batch_means(make, toy, **more):
    """Q is the mean prediction of each class in the toy batch."""
    method = make("cmic", decay=0.0, **more)
    method.on_step_end(toy)
    return method


def test_concentration_on_the_toy_batch(make, toy):
    method = with_batch_means(make, toy)
    assert method.loss(toy, True).parts["concentration"].item() == pytest.approx(0.034356, abs=1e-6)


@pytest.mark.parametrize(("pairs", "value"), [("all", 1.073956), ("different", 1.718329)])
def test_separation_on_the_toy_batch(toy, pairs, value):
    log_p = toy.logits.log_softmax(1)
    assert separation(log_p, toy.labels, pairs=pairs, detach_log=False).item() == pytest.approx(value, abs=1e-6)


def test_normalised_conditional_mutual_information(make, toy):
    parts = with_batch_means(make, toy).loss(toy, True).parts
    assert (parts["concentration"] / parts["separation"]).item() == pytest.approx(0.031990, abs=1e-6)


def test_total_on_the_toy_batch(make, toy):
    method = with_batch_means(make, toy, concentration_weight=0.7, separation_weight=0.4)
    assert method.loss(toy, True).total.item() == pytest.approx(0.115384, abs=1e-6)


def test_moving_average_from_uniform(make, toy):
    method = make("cmic", decay=0.9)
    method.on_step_end(toy)
    assert method.class_predictions[0].tolist() == pytest.approx([0.349929, 0.328903, 0.321168], abs=1e-6)


def test_rows_of_absent_classes_stay_uniform(make, toy):
    method = make("cmic")
    method.on_step_end(replace(toy, logits=toy.logits[:2], labels=toy.labels[:2]))
    assert method.class_predictions[2].tolist() == pytest.approx([1 / 3] * 3)
    assert method.class_predictions.sum(dim=1).tolist() == pytest.approx([1, 1, 1])


def test_detaching_the_logarithm_changes_the_gradient_not_the_value(toy, naive_gradient):
    at = toy.logits.clone().requires_grad_()
    full = separation(at.log_softmax(1), toy.labels, pairs="all", detach_log=False)
    (slope,) = torch.autograd.grad(full, at)
    expected = naive_gradient(
        lambda z: separation(z.log_softmax(1), toy.labels, pairs="all", detach_log=False), toy.logits
    )
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-8)
    half = separation(at.log_softmax(1), toy.labels, pairs="all", detach_log=True)
    assert half.item() == full.item()
    assert not torch.allclose(torch.autograd.grad(half, at)[0], slope)


def test_one_class_in_the_batch_has_no_separation(toy):
    log_p = toy.logits.log_softmax(1)
    labels = torch.zeros_like(toy.labels)
    assert separation(log_p, labels, pairs="different", detach_log=True).item() == 0


def test_certain_predictions_stay_bounded(toy):
    log_p = (1000 * toy.logits).log_softmax(1)
    value = separation(log_p, toy.labels, pairs="different", detach_log=False)
    assert 0 < value.item() < 58
