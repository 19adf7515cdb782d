"""The harness of ``make soak`` in small, and what its tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
# The harness lies beside the package, and the reader of imports beside the tests of the architecture.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "architecture"), str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def soak(tmp_path_factory):
    """Return a function that runs one part of the harness in a process of its own and returns its numbers."""

    def run(name: str, *words: str) -> dict:
        folder = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "soak", name, "--out", str(folder / "out"), *words]
        environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr[-4000:]
        return json.loads((folder / "out" / f"{name}.json").read_text())["result"]

    return run
