"""One optimiser step: what the host reads of it, and who tells a broken one."""

from __future__ import annotations

import pytest
import torch

from classmargin._types import Batch
from classmargin.methods.base import Method, MethodLoss
from classmargin.training import loop as loop_module
from classmargin.training.evaluate import accuracies_of
from classmargin.training.process_state import seed_for
from classmargin.training.step import split_batch
from classmargin.training.stopping import DivergedError

READS = ("item", "tolist", "__float__", "__int__", "__bool__", "numpy", "nonzero")


@pytest.fixture
def reads(monkeypatch):
    """Counts how often a number of a tensor reaches the host."""
    counted = []

    def counting(name, original):
        def read(self, *arguments, **options):
            counted.append(name)
            return original(self, *arguments, **options)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counting(name, getattr(torch.Tensor, name)))
    return counted


def reads_of_steps(toy, monkeypatch, reads, *, every, **tables):
    """Return how often each of the twelve steps of an epoch reads from the device, were it an accelerator."""
    monkeypatch.setattr(loop_module, "steps_between_checks", lambda device: every)
    loop = toy.loop(loop={"epochs": 1, "batch_size": 4, **tables})
    counts = []
    take = loop._train_step

    def step(batch):
        before = len(reads)
        take(batch)
        counts.append(len(reads) - before)

    loop._train_step = step
    loop.run()
    return counts


@pytest.mark.parametrize("tables", [{}, {"accumulate": 2}], ids=str)
def test_the_host_reads_from_the_device_only_every_so_many_steps(toy, monkeypatch, reads, tables):
    counts = reads_of_steps(toy, monkeypatch, reads, every=5, **tables)
    assert len(counts) == 13
    assert [number for number, count in enumerate(counts, start=1) if count] == [5, 10, 13]
    assert max(counts) == 1


class BreaksAtStep(Method):
    def loss(self, step, update_state):
        total = torch.nn.functional.cross_entropy(step.logits, step.labels)
        return MethodLoss(total * float("nan") if step.global_step == 6 else total, {})


def test_a_broken_step_that_is_read_late_is_told_with_its_own_number_and_samples(toy, monkeypatch):
    broken = {}
    for every in (1, 5):
        monkeypatch.setattr(loop_module, "steps_between_checks", lambda device, every=every: every)
        loop = toy.loop(f"every {every}", method=BreaksAtStep(toy.task()), loop={"batch_size": 4})
        with pytest.raises(DivergedError, match=r"loss is nan at step 6 \(epoch 1") as caught:
            loop.run()
        broken[every] = str(caught.value).split("samples")[1].split(";")[0]
        assert loop.position.global_step == {1: 6, 5: 9}[every]
    assert broken[1] == broken[5]


def test_a_run_that_reads_rarely_ends_bit_identical(toy, monkeypatch):
    weights = []
    for every in (1, 4):
        monkeypatch.setattr(loop_module, "steps_between_checks", lambda device, every=every: every)
        loop = toy.loop(f"every {every}", loop={"batch_size": 4, "checkpoint_steps": 6})
        loop.run()
        weights.append(loop.network.head.weight.detach())
    assert torch.equal(*weights)


def test_micro_batches_weigh_what_they_hold():
    batch = Batch(torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.long), torch.arange(5))
    assert [(len(micro.batch.labels), micro.weight) for micro in split_batch(batch, 2)] == [
        (3, 0.6),
        (2, 0.4),
    ]


def test_seeds_depend_on_their_purpose_alone():
    assert seed_for(0, "weights", 1) == seed_for(0, "weights", 1) != seed_for(0, "weights", 2)


def test_accuracies_name_the_worst_class():
    found = accuracies_of(torch.tensor([9, 5, 8]), torch.tensor([10, 10, 10]))
    assert (found.worst_class, found.worst, found.easy) == (1, 0.5, 0.9)
