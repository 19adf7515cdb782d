"""Parameter groups: the network's, the method's, and their learning rates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from classmargin.methods import create
from classmargin.methods.base import Method, TaskInfo
from classmargin.training.checkpoint import pack, unpack
from classmargin.training.config import OptimizerConfig
from classmargin.training.weights import load_optimizer, make_optimizer, set_learning_rate

TASK = TaskInfo(2, 3, torch.ones(2), torch.zeros(2))


def test_groups_of_network_and_method_keep_their_own_settings(toy):
    method = toy.Counting(toy.task())
    optimizer = make_optimizer(OptimizerConfig("sgd", weight_decay=0.3), toy.Network(), method, 1.0)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    set_learning_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.1])


def test_norms_and_biases_can_be_left_undecayed(toy):
    config = OptimizerConfig("adamw", weight_decay=0.3, decay_norms=False)
    optimizer = make_optimizer(config, toy.Network(), toy.Counting(toy.task()), 1.0)
    decays = {group["weight_decay"]: [p.dim() for p in group["params"]] for group in optimizer.param_groups[:-1]}
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
        make_optimizer(OptimizerConfig("adamw", layer_decay=0.7), toy.Network(), toy.Counting(toy.task()), 1.0)


def test_sgd_step_equals_the_formula():
    weight = nn.Linear(1, 1, bias=False)
    weight.weight.data.fill_(2.0)

    optimizer = make_optimizer(OptimizerConfig("sgd", momentum=0.9, weight_decay=0.1), weight, Method(TASK), 0.5)
    for gradient, expected in ((1.0, 2.0 - 0.5 * 1.2), (1.0, None)):
        weight.weight.grad = torch.full((1, 1), gradient)
        optimizer.step()
        if expected is not None:
            assert float(weight.weight.detach()) == pytest.approx(expected)
    momentum = 0.9 * 1.2 + (1.0 + 0.1 * 1.4)
    assert float(weight.weight.detach()) == pytest.approx(1.4 - 0.5 * momentum)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_saved_state_comes_back_and_settings_stay_those_of_the_run(name):
    layer = nn.Linear(3, 2)
    config = OptimizerConfig(name, weight_decay=0.25)
    saved = make_optimizer(config, layer, Method(TASK), 0.5)
    layer(torch.ones(4, 3)).sum().backward()
    saved.step()
    state = saved.state_dict()
    state["param_groups"][0] |= {"weight_decay": 9.0, "fused": None, "lr": 0.125}
    other = make_optimizer(config, layer, Method(TASK), 0.5)
    load_optimizer(other, state)
    group = other.param_groups[0]
    assert (group["weight_decay"], group["fused"], group["lr"]) == (0.25, True, 0.125)
    for parameter, kept in saved.state.items():
        assert all(torch.equal(value, other.state[parameter][key]) for key, value in kept.items())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("wrong", [torch.zeros(1), torch.zeros(()), "x", {}])
def test_a_state_of_another_shape_or_kind_never_reaches_the_fused_kernel(name, wrong):
    """It would read memory by the size of the parameter."""
    layer = nn.Linear(3, 2)
    saved = make_optimizer(OptimizerConfig(name), layer, Method(TASK), 0.5)
    layer(torch.ones(4, 3)).sum().backward()
    saved.step()
    state = saved.state_dict()
    key = "momentum_buffer" if name == "sgd" else "exp_avg"
    state["state"][0][key] = wrong
    with pytest.raises((ValueError, TypeError)):
        load_optimizer(make_optimizer(OptimizerConfig(name), layer, Method(TASK), 0.5), state)


def decays(groups) -> dict[int, float]:
    return {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("decay_norms", [True, False])
def test_a_twin_network_has_the_groups_of_the_network(toy, decay_norms):
    network, known = toy.Network(), toy.task()
    task = TaskInfo(4, 8, known.class_counts, known.labels, new_model=toy.Network)
    method = create("sam+lff", task)
    config = OptimizerConfig("adamw", weight_decay=0.3, decay_norms=decay_norms)
    found = decays(make_optimizer(config, network, method, 1.0).param_groups)
    pairs = list(zip(network.parameters(), method.inner.twin.parameters(), strict=True))
    assert len(found) == 2 * len(pairs), "every parameter once"
    assert all(found[id(left)] == found[id(right)] for left, right in pairs)


def test_biases_of_a_method_are_decayed_as_those_of_the_network(toy):
    method = create("supcon", toy.task())
    for decay_norms, expected in ((True, [0.3] * 4), (False, [0.3, 0.0] * 2)):
        config = OptimizerConfig("adamw", weight_decay=0.3, decay_norms=decay_norms)
        found = decays(make_optimizer(config, toy.Network(), method, 1.0).param_groups)
        assert [found[id(p)] for p in method.projection.parameters()] == expected


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_read_from_a_file_lies_in_memory_as_its_weights_do(name):
    """Fused kernels walk through weights and moments side by side, whatever their strides say."""
    ends = []
    for goes_on in (False, True):
        torch.manual_seed(0)
        network = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = make_optimizer(OptimizerConfig(name), network, Method(TASK), 0.1)
        for step in range(2):
            if goes_on and step == 1:
                saved = unpack(*pack(optimizer.state_dict()))
                optimizer = make_optimizer(OptimizerConfig(name), network, Method(TASK), 0.1)
                load_optimizer(optimizer, saved)
            inputs = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            network(inputs).square().sum().backward()
            optimizer.step()
        ends.append(network.weight.detach().clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_move(name, kind):
    ends = []
    for dtype in (kind, torch.float32):
        network = nn.Linear(40, 4).to(dtype)
        nn.init.constant_(network.weight, 0.5)
        optimizer = make_optimizer(OptimizerConfig(name, weight_decay=0.0), network, Method(TASK), 0.1)
        for _ in range(3):
            network.weight.grad = torch.ones_like(network.weight)
            optimizer.step()
        ends.append(network.weight.detach().float())
    assert float(ends[1].max()) < 0.3
    torch.testing.assert_close(*ends, rtol=0.02, atol=0.01)
