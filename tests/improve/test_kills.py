"""A search whose processes are killed at a chosen step of training resumes to the same choice, on every engine.

The step is counted over all runs of a worker program, so that the kill hits the same place on a slow machine and on a quick one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Python runs this before anything else, in every process that inherits the variable; it acts in worker programs alone.
KILLER = """
import os, signal, sys
if "classmargin.recipes.run_worker" in sys.orig_argv and "DIE_AT" in os.environ:
    from classmargin.training.loop import Loop
    step, made, mark = Loop._train_step, [0], os.environ["DIE_MARK"]
    def train_step(self, batch):
        step(self, batch)
        made[0] += 1
        if made[0] == int(os.environ["DIE_AT"]) and not os.path.exists(mark):
            open(mark, "w").close()
            if "DIE_WITH_PARENT" in os.environ:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
    Loop._train_step = train_step
"""
SETTINGS = ["loop.batch_size=20", "loop.checkpoint_steps=2", "machine.accelerator=cpu"]
WORDS = ["--remedies", "label-smoothing,ensemble,offsets", "--budget", "4 runs", "--epochs", "2"]


def search(features, out, folder, engine="local", **wishes):
    """Run the command and return its exit code, what it said, and the record that it wrote."""
    (folder / "sitecustomize.py").write_text(KILLER)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "DIE_MARK": str(folder / "killed"), **wishes}
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    words = ["improve", "--data", str(features), *WORDS, *settings, "--engine", engine, "--out", str(out)]
    command = [sys.executable, "-m", "classmargin", *words]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    record = out / "improvement.json"
    return ended.returncode, ended.stderr, json.loads(record.read_text()) if record.exists() else None


def told(record):
    """Return what must not depend on kills: everything but the folder of the command."""
    return {name: value for name, value in record.items() if name != "commands"}


@pytest.fixture(scope="module")
def whole(features, tmp_path_factory):
    """The record of a search that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    code, said, record = search(features, folder / "out", folder)
    assert code == 0, said
    return record


# Nine steps make an epoch, and two epochs a run: in the baseline, in the remedy after a checkpoint, at the end of its run.
@pytest.mark.parametrize("step", [5, 31, 36])
def test_a_command_killed_with_its_worker_at_a_step_resumes_to_the_same_choice(features, whole, tmp_path, step):
    code, said, none = search(features, tmp_path / "out", tmp_path, DIE_AT=str(step), DIE_WITH_PARENT="yes")
    assert (code, none) == (-9, None), said
    finished = {run: run.stat().st_mtime_ns for run in (tmp_path / "out").glob("runs/*/validation.npz")}
    code, said, resumed = search(features, tmp_path / "out", tmp_path)
    assert code == 0, said
    assert {run: run.stat().st_mtime_ns for run in finished} == finished
    assert told(resumed) == told(whole)


def test_a_search_on_ray_whose_worker_is_killed_at_a_step_ends_like_one_on_this_machine(features, whole, tmp_path):
    pytest.importorskip("ray", reason="Ray is an extra of its own: pip install 'classmargin[ray]'")
    code, said, on_ray = search(features, tmp_path / "ray", tmp_path, "ray", DIE_AT="31")
    assert code == 0, said
    assert (tmp_path / "killed").exists()
    assert "another one resumes the run" in said
    assert told(on_ray) == told(whole)
