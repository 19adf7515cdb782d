"""Hostile and random files for every reader: runs the fuzz tests with many examples and counts the inputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from soak.budget import OutOfTimeError, no_more_alarms

ROOT = Path(__file__).parents[1]
# How long the tests may take to end after they were asked to.
GRACE = 15.0


class Failed(AssertionError):
    """A reader broke on an input; the text is the report of the tests."""


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Run ``tests/reliability/test_hostile_*.py`` and return how many inputs each reader got."""
    files = sorted(map(str, (ROOT / "tests" / "reliability").glob("test_hostile_*.py")))
    if not files:
        raise Failed("there are no fuzz tests")
    count, log = folder / "count.jsonl", folder / "log"
    cut = ""
    with log.open("w", encoding="utf-8") as output:
        process = _start(files, seed, quick, count, output)
        try:
            process.wait()
        except OutOfTimeError:
            no_more_alarms()
            cut = "the fuzz tests were ended by the clock; inputs are those tried until then"
            _interrupt(process)
        finally:
            process.kill()
    report = log.read_text(encoding="utf-8", errors="replace")
    # Ended by the clock, the tests say 2; a failure before that is one all the same.
    if process.returncode not in ((0, 2, -signal.SIGKILL) if cut else (0,)) or " failed" in report[-400:]:
        raise Failed(report[-4000:])
    inputs: Counter[str] = Counter()
    for line in count.read_text().splitlines() if count.exists() else []:
        record = json.loads(line)
        inputs[record["reader"]] += record["inputs"]
    return {
        "inputs": sum(inputs.values()),
        "inputs by reader": dict(inputs),
        "tests": report.strip().splitlines()[-1],
        "cut short": cut,
        "totals": {"inputs fuzzed": sum(inputs.values())},
    }


def _start(files: list[str], seed: int, quick: bool, count: Path, output: Any) -> subprocess.Popen[bytes]:
    # As many inputs as fit beside the other parts; CLASSMARGIN_FUZZ_FACTOR asks for more.
    environment = {"CLASSMARGIN_FUZZ_FACTOR": "0.4", **os.environ, "CLASSMARGIN_FUZZ_COUNT": str(count)}
    environment["CLASSMARGIN_HYPOTHESIS"] = "explore"
    marker = "not slow" if quick else "slow"  # the others run with every make test
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marker]
    command += ["--timeout=0", f"--hypothesis-seed={seed}", *files]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
