"""The runner on a real local Ray with two workers: the same records as with local processes, even when workers are killed.

Run where the extra ``ray`` is installed: ``make test-ray``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is an extra of its own: pip install 'classmargin[ray]'")
psutil = pytest.importorskip("psutil")
# Ray itself leaves sockets and files to the garbage collector, and warns about its own future.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

# Inherited by Ray's node and by the worker programs that it starts.
MARK = "CLASSMARGIN_TEST_FOLDER"
LONG = ["--set", "loop.checkpoint_steps=3", "--set", "loop.batch_size=40", "--set", "data.validation=0.3"]
LONG += ["--set", "machine.accelerator=cpu", "--backbone", "linear", "--epochs", "60"]


def commands(toy_features):
    data = ["--data", str(toy_features), *LONG]
    smoke = ["--scale", "smoke", "--seeds", "1", "--epochs", "30", "--set", "loop.checkpoint_steps=1"]
    search = ["--search", "mean_margin=1,2,3", "--pruner", "none"]
    return {
        "compare-methods": ["compare-methods", *data, "--seeds", "2"],
        "reproduce": ["reproduce", "table-long-tail", *smoke],
        "sweep": ["sweep", *data, *search],
    }


def start(words, out, engine):
    command = [
        sys.executable,
        "-m",
        "classmargin",
        *words,
        "--jobs",
        "2",
        "--engine",
        engine,
        "--out",
        str(out),
    ]
    marked = {**os.environ, MARK: str(out)}
    return subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def training_workers(out):
    """Return the worker programs of the command that was started with a folder, and of nobody else on this machine."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if "classmargin.recipes.run_worker" in (process.info["cmdline"] or [])
        and (process.info["environ"] or {}).get(MARK) == str(out)
    ]


def results_of(out):
    """Return everything that must not depend on engine or kills: scores of every sample, by run or by settings."""
    found = {}
    for file in sorted(out.glob("runs/*/metrics.jsonl")):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        config = file.with_name("config.toml").read_text().replace(str(out), "OUT")
        predictions = file.with_name("predictions.npz")
        scores = None
        if predictions.exists():
            with np.load(predictions) as arrays:
                scores = arrays["logits"].tobytes()
        found[config] = (records[-1]["overall"], records[-1]["step"], scores)
    return found


@pytest.mark.parametrize("name", ["compare-methods", "reproduce", "sweep"])
def test_a_command_on_ray_survives_a_killed_worker_and_ends_like_one_on_this_machine(
    name, toy_features, tmp_path, wait_until
):
    words = commands(toy_features)[name]
    process = start(words, tmp_path / "ray", "ray")
    wait_until(lambda: list((tmp_path / "ray").glob("runs/*/checkpoint/step-*")), process)
    victims = training_workers(tmp_path / "ray")
    assert victims, "the runs are trained by worker programs"
    os.kill(victims[0].pid, signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "another one resumes the run" in err
    local = start(words, tmp_path / "local", "local")
    _, errors = local.communicate()
    assert local.returncode == 0, errors
    assert results_of(tmp_path / "ray") == results_of(tmp_path / "local")


def test_ctrl_c_ends_ray_with_every_run_saved_and_the_same_command_resumes(toy_features, tmp_path, wait_until):
    words = commands(toy_features)["compare-methods"]
    process = start(words, tmp_path / "out", "ray")
    wait_until(lambda: list((tmp_path / "out").glob("runs/*/checkpoint/step-*")), process)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "the same command resumes" in err
    again = start(words, tmp_path / "out", "ray")
    _, err = again.communicate()
    assert again.returncode == 0, err
    assert len(list((tmp_path / "out").glob("runs/*/done"))) == 4
