from dataclasses import replace

import pytest
import torch


def test_values_of_counts_6_3_1(make, toy):
    method = make("balanced-softmax", (6, 3, 1))
    each = [
        method.loss(replace(toy, logits=toy.logits[i : i + 1], labels=toy.labels[i : i + 1]), True).total.item()
        for i in range(4)
    ]
    assert each == pytest.approx([0.187720, 0.577102, 0.673645, 0.510826], abs=1e-6)
    assert method.loss(toy, True).total.item() == pytest.approx(0.487323, abs=1e-6)


def test_only_ratios_of_counts_matter(make, toy):
    small, large = make("balanced-softmax", (6, 3, 1)), make("balanced-softmax", (600, 300, 100))
    assert small.loss(toy, True).total.item() == pytest.approx(large.loss(toy, True).total.item(), abs=1e-7)


def test_equal_counts_give_cross_entropy(make, toy):
    assert make("balanced-softmax", (5, 5, 5)).loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_test_scores_are_the_raw_logits(make, toy):
    from classmargin._types import ModelOutput

    scores = make("balanced-softmax", (6, 3, 1)).predict(ModelOutput(toy.features, toy.logits))
    assert torch.equal(scores, toy.logits)


def test_a_class_without_samples_gives_a_finite_loss_and_gradient(make, toy):
    logits = toy.logits.clone().requires_grad_()
    total = make("balanced-softmax", (6, 0, 1)).loss(replace(toy, logits=logits), True).total
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logits.grad).all()
