"""Kills ``audit --out`` inside each of its file operations: what lies there afterwards is the old report or the new one, whole,
and the same command, given again, writes the same report.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from soak.children import fork_command, preload
from soak.file_faults import ERRORS, KILLS, Fault
from soak.same_run import BrokenPromise

PATIENCE = 300.0
OLD = b"an older report"


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Break every operation once in every way and return the counts; nothing is drawn, so the seed is not used."""
    preload()
    predictions, place = _write_predictions(folder / "predictions.npz"), folder / "reports"
    report, journal = place / "report.html", folder / "journal"
    _audit(predictions, report, journal, Fault("none", 0), (0,))
    new, operations = report.read_bytes(), journal.read_text().splitlines()
    counts: Counter[str] = Counter()
    for number, operation in enumerate(operations, 1):
        for kind in KILLS[:1] if quick else (*KILLS, "ENOSPC"):
            report.write_bytes(OLD)
            _audit(predictions, report, journal, Fault(kind, number), (-9,) if kind in KILLS else (0, 2))
            if report.read_bytes() not in (OLD, new):
                raise BrokenPromise(f"{kind} at {operation}: the report is neither the old one nor the new one")
            _audit(predictions, report, journal, Fault("none", 0), (0,))
            if report.read_bytes() != new:
                raise BrokenPromise(f"after {kind} at {operation} the same command wrote another report")
            counts["errors" if kind in ERRORS else "kills"] += 1
    return {
        "operations of a report": operations,
        "totals": {f"{kind} inside the writing of a report": count for kind, count in counts.items()},
    }


def _write_predictions(path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    np.savez(path, labels=labels, logits=rng.normal(size=(400, 4)) + 2 * np.eye(4)[labels])
    return path


def _audit(predictions: Path, report: Path, journal: Path, fault: Fault, expected: tuple[int, ...]) -> None:
    log = journal.with_name("log")
    log.unlink(missing_ok=True)
    words = ["audit", str(predictions), "--bootstrap", "100", "--out", str(report)]
    child = fork_command(words, log, fault=(fault, report.parent, journal))
    code = child.wait(PATIENCE)
    if code not in expected or "Traceback" in child.said:
        raise BrokenPromise(f"{fault} ended with {code}, not {expected}: {child.said[-2000:]}")
