"""What is chosen for the machine at hand."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from classmargin.training import machine
from classmargin.training.config import RunConfig
from classmargin.training.machine import choose_precision


@pytest.fixture
def processor(monkeypatch):
    """Return a function that pretends to a processor with or without bfloat16 instructions, and no GPU."""

    def pretend(*, native: bool) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)

    return pretend


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_bfloat16_is_chosen_only_where_the_processor_has_it(processor, native, chosen):
    processor(native=native)
    assert choose_precision("auto", "cpu") == chosen
    assert choose_precision("auto", "auto") == chosen


@pytest.mark.parametrize(("native", "chosen"), [(True, "bf16-mixed"), (False, "32-true")])
def test_a_graphics_card_is_asked_before_the_processor(processor, monkeypatch, native, chosen):
    processor(native=not native)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert choose_precision("auto", "auto") == chosen
    assert choose_precision("auto", "cpu") != chosen


def test_a_precision_that_was_asked_for_is_used(processor):
    processor(native=False)
    assert choose_precision("bf16-mixed", "cpu") == "bf16-mixed"


def test_a_group_of_processes_outlives_what_ended_it(monkeypatch, tmp_path):
    """A network in a traceback must not be the last to know its group: to let go of both could then take for ever."""
    formed = []

    def start(config):
        store = tmp_path / f"store{len(formed)}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        formed.append(dist.group.WORLD)

    def train_and_fail():
        network = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        raise ValueError(f"stopped with {type(network).__name__}")

    monkeypatch.setattr(machine, "start", start)
    for attempt in range(2):
        with pytest.raises(ValueError, match="stopped with"), machine.started(RunConfig()):
            train_and_fail()
        assert not dist.is_initialized()
        assert machine._former_group == [formed[attempt]], "this one, and none before it"
