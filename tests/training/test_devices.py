"""What a run rounds with follows from the settings, the network and the machine, and from nothing else."""

from __future__ import annotations

import pytest
import torch

from classmargin.training import devices
from classmargin.training.config import LoopConfig, MachineConfig, RunConfig


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(devices, "usable_cores", lambda: 12)


@pytest.mark.parametrize(("images", "layout"), [(True, "channels_last"), (False, "contiguous")])
def test_settings_left_open_follow_a_rule(images, layout):
    config = devices.settled(RunConfig(machine=MachineConfig(accelerator="cpu")), images=images)
    assert (config.machine.threads, config.machine.memory_format) == (1, layout)
    assert devices.settled(config, images=not images) == config, "what is settled stays"


def test_settings_that_were_given_are_kept():
    given = RunConfig(
        machine=MachineConfig(threads=3, memory_format="contiguous"), loop=LoopConfig(precision="bf16-true")
    )
    assert devices.settled(given, images=True) == given


@pytest.mark.usefixtures("with_cuda")
def test_beside_an_accelerator_processes_share_the_cores():
    for count, threads in ((1, 12), (5, 2), (64, 1)):
        config = RunConfig(machine=MachineConfig(devices=count))
        assert devices.settled(config, images=True).machine.threads == threads
    on_cpu = RunConfig(machine=MachineConfig(accelerator="cpu"))
    assert devices.settled(on_cpu, images=True).machine.threads == 1


def test_precision_left_open_is_written_down():
    config = devices.settled(RunConfig(loop=LoopConfig(precision="auto")), images=True)
    assert config.loop.precision in ("32-true", "bf16-mixed")


@pytest.mark.usefixtures("with_cuda")
def test_the_device_is_the_one_that_computes():
    assert devices.device_kind("cpu") == "cpu"
    assert devices.device_kind("auto") == devices.device_kind("cuda") == "cuda"


def test_threads_of_the_caller_come_back():
    before = torch.get_num_threads()
    seen = []

    def fail() -> None:
        with devices.using_threads(before + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("with_cuda")
def test_accelerators_with_tf32_use_it_by_default_and_only_when_it_is_not_ruled_out(monkeypatch):
    assert devices.choose_precision("default", "auto") == "tf32"
    assert devices.choose_precision("32-true", "auto") == "32-true"
    assert devices.choose_precision("default", "cpu") == "32-true"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert devices.choose_precision("default", "auto") == "32-true"


@pytest.mark.parametrize("precision", ["tf32", "32-true"])
def test_rounding_of_products_is_set_for_the_run_and_put_back(precision):
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    config = RunConfig(loop=LoopConfig(precision=precision), machine=MachineConfig(accelerator="cpu"))
    with devices.started(config) as fabric:
        assert [switch.allow_tf32 for switch in switches] == [precision == "tf32"] * 2
        assert fabric.strategy.precision.precision == "32-true"
    assert [switch.allow_tf32 for switch in switches] == before
