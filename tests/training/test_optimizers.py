"""Parameter groups: the network's, the method's, and their learning rates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from classmargin.training.config import OptimizerConfig
from classmargin.training.optimizers import make_optimizer, set_learning_rate


def test_groups_of_network_and_method_keep_their_own_settings(toy):
    method = toy.Counting(toy.task())
    optimizer = make_optimizer(OptimizerConfig("sgd", weight_decay=0.3), toy.Network(), method, 1.0)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    set_learning_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.1])


def test_norms_and_biases_can_be_left_undecayed(toy):
    config = OptimizerConfig("adamw", weight_decay=0.3, decay_norms=False)
    optimizer = make_optimizer(config, toy.Network(), toy.Counting(toy.task()), 1.0)
    decays = {
        group["weight_decay"]: [p.dim() for p in group["params"]] for group in optimizer.param_groups[:-1]
    }
    assert set(decays) == {0.3, 0.0}
    assert min(decays[0.3]) == 2
    assert max(decays[0.0]) == 1


def test_frozen_parameters_stay_out(toy):
    network = toy.Network()
    network.freeze_encoder()
    optimizer = make_optimizer(OptimizerConfig(), network, toy.Counting(toy.task()), 1.0)
    assert sum(p.numel() for p in optimizer.param_groups[0]["params"]) == 8 * 4 + 4


def test_layer_decay_needs_layers(toy):
    with pytest.raises(ValueError, match="layer_decay"):
        make_optimizer(
            OptimizerConfig("adamw", layer_decay=0.7), toy.Network(), toy.Counting(toy.task()), 1.0
        )


def test_sgd_step_equals_the_formula():
    weight = nn.Linear(1, 1, bias=False)
    weight.weight.data.fill_(2.0)

    class Nothing:
        def parameter_groups(self):
            return []

    optimizer = make_optimizer(OptimizerConfig("sgd", momentum=0.9, weight_decay=0.1), weight, Nothing(), 0.5)
    for gradient, expected in ((1.0, 2.0 - 0.5 * 1.2), (1.0, None)):
        weight.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        if expected is not None:
            assert float(weight.weight.detach()) == pytest.approx(expected)
    momentum = 0.9 * 1.2 + (1.0 + 0.1 * 1.4)
    assert float(weight.weight.detach()) == pytest.approx(1.4 - 0.5 * momentum)
