"""Checkpoints: whole or not there, checked when read, never the only copy."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from classmargin.training import checkpoint
from classmargin.training.checkpoint import (
    CheckpointStore,
    CorruptCheckpointError,
    pack,
    read_tree,
    unpack,
)
from trees import same


def tree(value: float) -> dict:
    return {"w": torch.full((3,), value), "step": 7, "nested": {"list": [1.5, None, True, "text"]}}


def test_any_nest_of_numbers_and_tensors_comes_back_bit_for_bit():
    state = {
        "floats": [0.1, 1e-300, float("inf"), -0.0],
        "by number": {0: {"momentum": torch.randn(2, 3)}, 1: {"momentum": None}},
        "tuple": (1, (2.0, "x")),
        "types": [
            torch.tensor(3),
            torch.tensor([True]),
            torch.zeros(2, dtype=torch.float16),
            torch.zeros(0, 4),
        ],
        "__tensor__": "a key like our marks",
    }
    tensors, structure = pack(state)
    again = unpack(tensors, json.loads(json.dumps(structure)))
    assert same(state, again)
    assert again["tuple"] == (1, (2.0, "x"))
    assert list(again["by number"]) == [0, 1]


def test_same_sees_a_single_bit():
    left, right = {"a": torch.ones(4)}, {"a": torch.ones(4)}
    right["a"][2] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert same(left, {"a": torch.ones(4)})
    assert not same(left, right)
    assert same({"a": torch.tensor(float("nan"))}, {"a": torch.tensor(float("nan"))})


def test_tensors_that_share_memory_can_be_saved(tmp_path):
    base = torch.arange(6.0)
    store = CheckpointStore(tmp_path)
    store.save(1, {"whole": base, "view": base[2:4], "transposed": base.view(2, 3).T})
    _, again = store.load_newest()
    assert again["view"].tolist() == [2.0, 3.0]
    assert again["transposed"].tolist() == base.view(2, 3).T.tolist()


def test_what_is_not_plain_state_is_refused():
    with pytest.raises(TypeError, match=r"state at 'a\.b' must be numbers, text or tensors, got object"):
        pack({"a": {"b": object()}})


def test_the_newest_two_are_kept(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        store.save(step, tree(step))
    assert [path.name for path in store.paths()] == ["step-00000003", "step-00000002"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"], "no leftovers"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "tensors.safetensors").unlink(),
        lambda path: (path / "state.json").write_text("{"),
        lambda path: (path / "state.json").write_text("[]"),
        lambda path: os.truncate(path / "tensors.safetensors", 50),
        lambda path: flip_bit(path / "tensors.safetensors"),
        lambda path: (path / "state.json").write_text(json.dumps({"format": 99})),
    ],
    ids=["tensors gone", "json cut", "json wrong", "tensors cut", "bit flipped", "other format"],
)
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(tmp_path, damage):
    said: list[str] = []
    store = CheckpointStore(tmp_path, said.append)
    store.save(1, tree(1.0))
    damage(store.save(2, tree(2.0)))
    step, state = store.load_newest()
    assert step == 1
    assert same(state, tree(1.0))
    assert len(said) == 1
    assert "step-00000002 is damaged" in said[0]
    assert "falling back" in said[0]


def flip_bit(path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_checkpoint_that_the_system_does_not_let_read_is_not_passed_over(tmp_path, monkeypatch):
    """Going on from the one before would end with the good one deleted."""
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": torch.ones(1)})
    store.save(2, {"a": torch.ones(1)})

    def failing(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint, "_checksum", failing)
    with pytest.raises(OSError, match=r"step-00000002 cannot be read .*Input/output error.*try again"):
        store.load_newest()
    assert len(store.paths()) == 2


def test_no_checkpoint_is_none(tmp_path):
    assert CheckpointStore(tmp_path / "nowhere").load_newest() is None


def test_saving_after_a_fallback_replaces_the_damaged_one(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, tree(1.0))
    flip_bit(store.save(2, tree(2.0)) / "tensors.safetensors")
    store.save(2, tree(3.0))
    assert same(store.load_newest()[1], tree(3.0))


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_full_disk_leaves_the_earlier_checkpoint_intact(tmp_path, monkeypatch, function):
    store = CheckpointStore(tmp_path)
    store.save(1, tree(1.0))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, function, full)
    with pytest.raises(OSError, match=r"could not save checkpoint .*No space left.* step-00000001 before it is intact"):
        store.save(2, tree(2.0))
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_write_that_the_system_refuses_leaves_the_earlier_checkpoint_intact(tmp_path):
    CheckpointStore(tmp_path).save(1, tree(1.0))
    script = f"""
        import resource, signal, torch
        from classmargin.training.checkpoint import CheckpointStore
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            CheckpointStore({str(tmp_path)!r}).save(2, {{"w": torch.zeros(100_000)}})
        except OSError as error:
            print("refused:", error)
    """
    assert resource.RLIMIT_FSIZE is not None
    assert signal.SIGXFSZ
    answer = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert "refused:" in answer.stdout
    assert "step-00000001 before it is intact" in answer.stdout
    store = CheckpointStore(tmp_path)
    assert same(store.load_newest()[1], tree(1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_reading_something_else_is_an_error_with_words(tmp_path):
    with pytest.raises(CorruptCheckpointError, match="FileNotFoundError"):
        read_tree(tmp_path)


@pytest.mark.parametrize(("words", "number"), [("I/O error: No space left on device (os error 28)", 28), ("odd", None)])
def test_a_failed_write_of_the_library_is_told_with_its_number_or_none(tmp_path, monkeypatch, words, number):
    import safetensors
    import safetensors.torch

    def fail(*_):
        raise safetensors.SafetensorError(words)

    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="could not save checkpoint") as caught:
        CheckpointStore(tmp_path).save(1, {"weight": torch.ones(1)})
    assert caught.value.errno == number
    assert "Errno None" not in str(caught.value)


@pytest.mark.parametrize(("stage", "beyond"), [(0, 3), (0, 7), (1, 1)])
def test_a_checkpoint_beyond_the_end_of_its_stage_is_refused(toy, stage, beyond):
    """The end of the stage would never come."""
    toy.run_until(toy.loop(loop={"checkpoint_steps": 1}), 1)
    resumed = toy.loop()
    load = resumed._load
    resumed._load = lambda tree: load({**tree, "position": {**tree["position"], "stage": stage, "stage_epoch": beyond}})
    with pytest.raises(ValueError, match=f"stage_epoch in the checkpoint must be at most .*, got {beyond}"):
        resumed.run()
