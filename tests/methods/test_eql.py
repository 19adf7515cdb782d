import math
from dataclasses import replace

import pytest
import torch

from classmargin.methods import Step
from classmargin.methods.eql import counter_uniform


def make_tail(make, **more):
    return make("eql", (6, 3, 1), tail_ratio=0.6, **more)


def test_softmax_values_when_every_rare_negative_is_dropped(make, toy):
    method = make_tail(make, drop_probability=1.0)
    each = [
        method.loss(
            replace(toy, logits=toy.logits[i : i + 1], labels=toy.labels[i : i + 1], index=toy.index[i : i + 1]),
            True,
        ).total.item()
        for i in range(4)
    ]
    assert each == pytest.approx([0.313262, 0.313262, 0.169846, 0.693147], abs=1e-6)
    assert method.loss(toy, True).total.item() == pytest.approx(0.372379, abs=1e-6)


def test_sigmoid_values(make, toy):
    tail = make_tail(make, mode="sigmoid", prior_probability=0.5)
    plain = make("eql", (6, 3, 1), tail_ratio=0.0, mode="sigmoid", prior_probability=0.5)
    assert tail.loss(toy, True).total.item() == pytest.approx(1.487437, abs=1e-6)
    assert plain.loss(toy, True).total.item() == pytest.approx(1.982559, abs=1e-6)


def test_sigmoid_form_starts_at_the_prior_probability(make, toy):
    method = make("eql", (6, 3, 1), tail_ratio=0.0, mode="sigmoid", prior_probability=0.01)
    zeros = replace(toy, logits=torch.zeros_like(toy.logits))
    expected = -(torch.tensor(0.01).log() + 2 * torch.tensor(0.99).log()).item()
    assert method.loss(zeros, True).total.item() == pytest.approx(expected, abs=1e-5)


def test_balanced_data_with_a_ratio_of_at_most_one_is_cross_entropy(make, toy):
    assert make("eql", (5, 5, 5), tail_ratio=1.0).loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


def test_balanced_data_with_a_ratio_above_one_degenerates(make, toy):
    method = make("eql", (5, 5, 5), tail_ratio=1.2, drop_probability=1.0)
    assert method.loss(toy, True).total.item() == 0.0


@pytest.mark.parametrize("num_classes", [3, 10, 100, 201, 1000])
@pytest.mark.parametrize("preset", [None, "cifar100-lt", "imagenet-lt"])
def test_zero_logits_on_balanced_data_give_ln_k_for_every_number_of_classes(make, num_classes, preset):
    method = make("eql", (2,) * num_classes, preset=preset, drop_probability=1.0)
    zeros = torch.zeros(5, num_classes, dtype=torch.float64)
    step = Step(zeros, zeros, torch.arange(5) % num_classes, torch.arange(5))
    assert method.loss(step, True).total.item() == pytest.approx(math.log(num_classes), abs=1e-9)


def test_draws_are_uniform_and_differ_between_steps_samples_and_classes():
    draws = counter_uniform(torch.arange(2000), 50, step=3, seed=1)
    assert 0 <= draws.min() < 1e-4
    assert 1 - 1e-4 < draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.005)
    assert draws.var().item() == pytest.approx(1 / 12, abs=0.002)
    assert len(draws.unique()) > 0.999 * draws.numel()
    other = counter_uniform(torch.arange(2000), 50, step=4, seed=1)
    assert torch.corrcoef(torch.stack([draws.flatten(), other.flatten()]))[0, 1].abs() < 0.02
    assert torch.corrcoef(torch.stack([draws[1:].flatten(), draws[:-1].flatten()]))[0, 1].abs() < 0.02


def test_draws_belong_to_the_sample_not_to_its_place():
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    straight = counter_uniform(torch.arange(100), 7, step=0, seed=0)
    assert torch.equal(counter_uniform(order, 7, step=0, seed=0), straight[order])


def test_drop_probability_is_met(make):
    method = make("eql", (99, 1), tail_ratio=0.4, drop_probability=0.9)
    size = 4000
    batch = Step(torch.zeros(size, 2), torch.zeros(size, 2), torch.zeros(size, dtype=torch.long), torch.arange(size))
    # a dropped negative leaves loss 0, a kept one ln 2
    assert method.loss(batch, True).total.item() / 0.6931472 == pytest.approx(0.1, abs=0.015)
