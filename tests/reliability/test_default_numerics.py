"""With nothing pinned: the same command gives the same bits whatever else runs, and arms of a comparison round alike."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from soak.determinism import fingerprint

from classmargin.training.run_folder import RunFolder

SHORT = ["--epochs", "1", "--fraction", "0.1", "--set", "machine.report=false"]


@pytest.fixture
def command(monkeypatch):
    """Run a command as a user does: in a process of its own, with no word about threads in the environment."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> None:
        call = [sys.executable, "-m", "classmargin", *map(str, words)]
        answer = subprocess.run(call, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr

    return run


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    words = [sys.executable, "-c", "print('busy', flush=True)\nwhile True: pass"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "busy\n"
            yield
        finally:
            process.kill()


def numerics(run: Path) -> dict[str, object]:
    (session,) = json.loads((run / "run.json").read_text())["sessions"]
    return session["numerics"]


def logits(run: Path) -> np.ndarray:
    with np.load(run / "predictions.npz") as arrays:
        return arrays["logits"]


def test_the_same_command_beside_other_work_gives_the_same_bits(command, tmp_path):
    words = ["train", "--method", "mr2", "--seed", "7", *SHORT]
    command(*words, "--out", tmp_path / "alone")
    with busy_process():
        command(*words, "--out", tmp_path / "beside")
    assert np.array_equal(logits(tmp_path / "alone"), logits(tmp_path / "beside"))
    assert fingerprint(tmp_path / "alone") == fingerprint(tmp_path / "beside")
    assert numerics(tmp_path / "alone") == numerics(tmp_path / "beside")


def test_all_arms_of_a_comparison_have_the_same_numerics(command, tmp_path):
    with busy_process():
        command("compare-methods", "--methods", "erm,mr2", "--seeds", "1", *SHORT, "--out", tmp_path)
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    found = [numerics(run) for run in runs]
    assert found == [found[0]] * 2
    assert found[0]["memory_format"] == "channels_last"
    assert found[0]["processes"] == found[0]["threads"] == 1
    machines = [RunFolder(run).read_config().machine for run in runs]
    assert {(own.threads, own.memory_format) for own in machines} == {(1, "channels_last")}
