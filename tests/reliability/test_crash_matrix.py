"""Killed runs end bit-identical; the harness that says so can tell."""

from __future__ import annotations

import numpy as np
import pytest
from soak.crash_matrix import SIGNALS, Tally
from soak.same_run import differences, leftovers

from classmargin.cli.main import main


def test_runs_killed_by_signals_and_inside_their_writes_end_bit_identical(soak):
    numbers = soak("crash_matrix", "--quick")
    assert numbers["kills"] >= 4, "two of them inside the writing of predictions, two of the mark"
    assert numbers["runs compared bit for bit"] == 3
    assert numbers["cut short"] == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_over_one_and_two_processes_are_survived(soak):
    numbers = soak("crash_matrix", "--seed", "1")
    assert numbers["kills"] >= 50
    assert numbers["totals"]["kills survived, runs of two processes"] >= 10
    for name in (*(number.name for number in SIGNALS), "kill-before", "kill-half", "kill-after"):
        assert any(name in scenario for scenario in numbers["kills by scenario"]), name
    for place in ("predictions", "audit", "report", "done", "metrics", "checkpoint"):
        assert any(place in operation for operation in numbers["file operations hit"]), place


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_either_of_two_processes_may_be_killed_at_any_step(soak):
    numbers = soak("step_kills", "--quick")
    assert numbers["kills"] == 3
    assert numbers["cut short"] == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_commands_that_train_many_runs_survive_kills_of_themselves_and_of_their_workers(soak):
    assert soak("pool_kills", "--quick")["kills"] >= 2


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    from soak.tiny_task import train_words, write_features

    folder = tmp_path_factory.mktemp("two")
    data = write_features(folder / "features.npz")
    for name in ("one", "other"):
        assert main(train_words(data, "erm", folder / name, epochs=1)) == 0
    return folder / "one", folder / "other"


def test_equal_runs_have_no_differences(two_runs):
    assert differences(*two_runs) == []
    assert leftovers(two_runs[0]) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "predictions.npz", "checkpoint"])
def test_a_single_changed_number_is_seen(two_runs, tmp_path, name):
    import shutil

    one, other = two_runs
    changed = tmp_path / "changed"
    shutil.copytree(other, changed)
    if name == "metrics.jsonl":
        text = (changed / name).read_text()
        (changed / name).write_text(text.replace("0.", "0.1", 1))
    elif name == "predictions.npz":
        with np.load(changed / name) as arrays:
            content = dict(arrays)
        content["logits"][0, 0] = np.nextafter(content["logits"][0, 0], np.float32(9))
        np.savez(changed / name, **content)
    else:
        file = sorted((changed / name).glob("step-*"))[-1] / "tensors.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
    assert len(differences(one, changed)) == 1


def test_files_of_killed_writers_are_seen(two_runs, tmp_path):
    (tmp_path / "checkpoint" / ".step-00000004.writing").mkdir(parents=True)
    (tmp_path / ".done.part-abc").write_text("")
    (tmp_path / ".lock").write_text("")
    assert leftovers(tmp_path) == [".done.part-abc", "checkpoint/.step-00000004.writing"]


def test_counts_add_up():
    tally = Tally()
    tally.kills["a"] += 2
    tally.faults["b"] += 1
    assert (tally.as_dict()["kills"], tally.as_dict()["file faults"]) == (2, 1)
