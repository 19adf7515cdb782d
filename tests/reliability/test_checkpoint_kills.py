"""Kills and errors inside every file operation of a checkpoint save, and the shim that causes them."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from soak.file_faults import Fault, FaultyFiles

from classmargin.training.checkpoint import CheckpointStore
from trees import same


@pytest.fixture(scope="module")
def numbers(soak):
    return soak("checkpoint_kills", "--quick")


def test_no_kill_or_error_inside_a_save_costs_a_checkpoint(numbers):
    assert numbers["kills inside a save"] >= 36
    assert numbers["errors inside a save"] >= 12


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(numbers):
    """The order of flushes and the rename, as the shim sees it: content, folder, name, folder of the name."""
    steps = [tuple(line.split()) for line in numbers["operations of a save"]]
    named = steps.index(("rename", "/step-00000002"))
    before, after = steps[:named], steps[named + 1 :]
    for part in ("/tensors.safetensors", "/state.json", ""):
        place = f"/.step-00000002.writing{part}"
        assert ("fsync", place) in before
        if part:
            assert before.index(("write", place)) < before.index(("fsync", place))
    assert ("fsync", "/") in after


@pytest.mark.slow
def test_no_kill_or_error_inside_any_save_costs_a_checkpoint(soak):
    numbers = soak("checkpoint_kills")
    assert numbers["kills inside a save"] >= 90
    assert numbers["errors inside a save"] >= 90


@pytest.mark.parametrize("kind", ["ENOSPC", "EIO", "short-write"])
def test_the_shim_breaks_the_chosen_operation_and_no_other(tmp_path, kind):
    files = FaultyFiles(Fault(kind, 2), tmp_path / "run", tmp_path / "journal")
    done = []
    act = lambda name: files.run("write", tmp_path / "run" / name, lambda: done.append(name))
    files.run("write", tmp_path / "elsewhere", lambda: done.append("elsewhere"))
    act("first")
    with pytest.raises(OSError) as caught:
        act("second")
    act("third")
    assert caught.value.errno == (errno.EIO if kind == "EIO" else errno.ENOSPC)
    assert done == ["elsewhere", "first", "third"]


def test_a_lasting_fault_refuses_growth_and_lets_files_go(tmp_path):
    files = FaultyFiles(Fault("ENOSPC", 1, lasting=True), tmp_path / "run", tmp_path / "journal")
    for name in ("write", "fsync"):
        with pytest.raises(OSError, match="No space"):
            files.run(name, tmp_path / "run" / "x", lambda: None)
    assert files.run("unlink", tmp_path / "run" / "x", lambda: "gone") == "gone"


def state(value):
    return {"w": torch.full((3,), float(value))}


def test_a_half_written_checkpoint_is_cleared_away(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, state(1))
    (tmp_path / ".step-00000002.writing").mkdir()
    (tmp_path / ".step-00000002.writing" / "tensors.safetensors").write_bytes(b"half")
    store.repair()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_checkpoint_set_aside_takes_its_name_back_unless_the_new_one_has_it(tmp_path, replaced):
    store = CheckpointStore(tmp_path)
    store.save(2, state(1))
    os.rename(tmp_path / "step-00000002", tmp_path / ".step-00000002.stale")
    if replaced:
        store.save(2, state(2))
        (tmp_path / ".step-00000002.stale").mkdir(exist_ok=True)
    store.repair()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert same(store.load_newest()[1], state(2 if replaced else 1))
