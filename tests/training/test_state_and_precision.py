"""What methods keep between steps: from which pass it comes, in which precision, and until when it lives."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from classmargin.backbones.contract import Backbone
from classmargin.methods import create
from classmargin.methods.base import Method, MethodLoss, Stage, TaskInfo
from trees import same


def task_of(toy, **more) -> TaskInfo:
    known = toy.task()
    return TaskInfo(known.num_classes, known.feature_dim, known.class_counts, known.labels, **more)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_end_of_a_step_shows_the_first_pass_of_sam_not_the_perturbed_one(toy, accumulate):
    method = create("sam+center", task_of(toy), rho=0.5)
    passes, ends = [], []
    loss, end = method.inner.loss, method.inner.on_step_end
    method.loss = lambda step, update: (passes.append(step.features.detach()), loss(step, update))[1]
    method.on_step_end = lambda step: (ends.append(step.features), end(step))
    toy.loop(method=method, loop={"epochs": 1, "accumulate": accumulate}).run()
    first, second = torch.cat(passes[:accumulate]), torch.cat(passes[accumulate : 2 * accumulate])
    assert torch.equal(ends[0], first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
@pytest.mark.parametrize("name", ["group-dro", "center", "mr2", "lff", "drl", "supcon"])
def test_networks_in_half_precision_leave_the_state_of_a_method_in_full(toy, name, precision):
    method = create(name, task_of(toy, epochs=3, new_model=toy.Network))
    loop = toy.loop(method=method, loop={"epochs": 3, "precision": precision})
    loop.run()
    half = loop.network.head.weight.dtype
    assert half.itemsize == 2
    kinds = {name: buffer.dtype for name, buffer in method.named_buffers() if buffer.is_floating_point()}
    twin = {kind for name, kind in kinds.items() if name.startswith("twin.")}
    assert {kind for name, kind in kinds.items() if not name.startswith("twin.")} <= {torch.float32}
    assert twin <= {half}, "running statistics go with the weights of their network"


def test_small_steps_of_a_state_are_not_lost_in_half_precision(toy):
    """A step of 0.01 on a logarithm of -1.4 is below what eight bits can tell."""
    weights = {}
    for precision in ("32-true", "bf16-true"):
        method = create("group-dro", task_of(toy), step_size=1e-4)
        toy.loop(precision, method=method, loop={"precision": precision}).run()
        weights[precision] = method.log_weights.exp()
    assert weights["32-true"].std() > 0
    torch.testing.assert_close(weights["bf16-true"], weights["32-true"], rtol=1e-3, atol=0)
    assert len(set(weights["bf16-true"].tolist())) == toy.CLASSES


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "16-true"])
def test_a_run_in_another_precision_resumes_bit_identical(toy, precision, optimizer):
    tables = {"loop": {"precision": precision, "checkpoint_steps": 1}, "optimizer": {"name": optimizer}}
    ends = []
    for name, cuts in (("whole", []), ("cut", [3, 6])):
        for cut_at in (*cuts, None):
            torch.manual_seed(0)
            method = create("lff", task_of(toy, new_model=toy.Network))
            loop = toy.loop(name, method=method, **tables)
            toy.run_until(loop, cut_at)
        ends.append([dict(part.state_dict()) for part in (loop.network, loop.method)])
    assert same(*ends)


def test_an_average_of_weights_is_kept_in_double_and_refused_in_half_precision(toy):
    loop = toy.loop("double", loop={"precision": "64-true", "ema_decay": 0.9})
    loop.run()
    assert loop.weights.evaluated.head.weight.dtype == torch.float64
    with pytest.raises(ValueError, match=r"ema_decay needs weights in full precision.*bf16-mixed"):
        toy.loop("half", loop={"precision": "bf16-true", "ema_decay": 0.9})


class TwoNetworks(Method):
    """Cross-entropy; the second stage starts afresh."""

    def stages(self, epochs):
        return [Stage("first", 1), Stage("second", epochs - 1, fresh_model=True)]

    def loss(self, step, update_state):
        return MethodLoss(nn.functional.cross_entropy(step.logits, step.labels), {})


class Images(Backbone):
    def __init__(self) -> None:
        layers = (nn.Unflatten(1, (2, 1, 3)), nn.Conv2d(2, 8, (1, 3)), nn.Flatten())
        super().__init__(nn.Sequential(*layers), feature_dim=8, num_classes=4)


def test_a_fresh_network_of_a_later_stage_has_the_memory_format_of_the_run(toy):
    """A resumed run begins with a network in that format; the uninterrupted one must compute in it too."""
    loop = toy.loop(method=TwoNetworks(toy.task()), network=Images(), machine={"memory_format": "channels_last"})
    loop._new_network = Images
    first = loop.network
    loop.run()
    assert loop.network is not first
    for network in (first, loop.network):
        assert (
            network.encoder[1].weight.stride()
            == Images().to(memory_format=torch.channels_last).encoder[1].weight.stride()
        )


def test_a_finished_run_is_freed_at_once(toy):
    """Without a search for circles, which comes after dozens of runs in a process with many modules."""
    loop = toy.loop()
    loop.run()
    kept = [weakref.ref(loop), weakref.ref(loop.network), weakref.ref(loop.loaders)]
    gc.disable()
    try:
        del loop
        assert [reference() for reference in kept] == [None] * 3
    finally:
        gc.enable()
