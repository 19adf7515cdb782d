"""Prediction files for the command line, and ways to call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from classmargin.cli.main import main


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


def draw_arrays(num_classes: int = 5, per_class: int = 40, *, noise: float = 1.0) -> dict[str, Any]:
    """Return predictions in which the classes differ in difficulty; less noise is a better model of the same samples."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(num_classes), per_class)
    difficulty = np.linspace(0.4, 1.6, num_classes)[labels]
    scores = rng.normal(size=(len(labels), num_classes)) * difficulty[:, None] * noise
    scores[np.arange(len(labels)), labels] += 1.5
    return {"labels": labels, "logits": scores.astype(np.float32)}


@pytest.fixture
def arrays() -> Callable[..., dict[str, Any]]:
    return draw_arrays


@pytest.fixture
def predictions(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a prediction file; arguments replace or add arrays, None removes one."""

    def write(name: str = "model", *, noise: float = 1.0, **changes: Any) -> Path:
        content = {**draw_arrays(noise=noise), **changes}
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: value for key, value in content.items() if value is not None})
        return path

    return write


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs the command in this process."""

    def call(*words: Any) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def run_process() -> Callable[..., Outcome]:
    """Return a function that runs ``python -m classmargin`` in a process of its own."""

    def call(*words: Any, env: dict[str, str] | None = None) -> Outcome:
        command = [sys.executable, "-m", "classmargin", *(str(word) for word in words)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call
