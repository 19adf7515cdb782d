"""Hostile and random files for every reader: runs the fuzz tests with many examples and counts the inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Failed(AssertionError):
    """A reader broke on an input; the text is the report of the tests."""


def run(
    folder: Path, *, seed: int = 0, quick: bool = False, deadline: float = float("inf")
) -> dict[str, Any]:
    """Run ``tests/reliability/test_hostile_*.py`` and return how many inputs each reader got."""
    files = sorted(map(str, (ROOT / "tests" / "reliability").glob("test_hostile_*.py")))
    if not files:
        raise Failed("there are no fuzz tests")
    count = folder / "count.jsonl"
    environment = {**os.environ, "CLASSMARGIN_FUZZ_COUNT": str(count)}
    marker = "not slow" if quick else ""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marker]
    seconds = max(30.0, min(300.0, deadline - time.monotonic()))
    answer = subprocess.run(
        [*command, f"--hypothesis-seed={seed}", *files],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if answer.returncode:
        raise Failed(answer.stdout[-4000:])
    inputs: Counter[str] = Counter()
    for line in count.read_text().splitlines() if count.exists() else []:
        record = json.loads(line)
        inputs[record["reader"]] += record["inputs"]
    return {
        "inputs": sum(inputs.values()),
        "inputs by reader": dict(inputs),
        "tests": answer.stdout.strip().splitlines()[-1],
    }
