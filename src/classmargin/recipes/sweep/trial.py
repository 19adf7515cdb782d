"""One trial: a training that is watched on validation, stopped when it falls behind, and never tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classmargin.recipes.sweep.objective import METRICS
from classmargin.recipes.train_run import train
from classmargin.training.config import RunConfig
from classmargin.training.loggers import Evaluation
from classmargin.training.run_folder import RunFolder

# Told epoch and accuracies of each evaluation; returns whether the trial may go on.
Report = Callable[[int, dict[str, float]], bool]


class FellBehindError(RuntimeError):
    """The trial was stopped because others are better at the same epoch."""


@dataclass(frozen=True)
class Watcher:
    """Hands evaluations to whoever decides about a trial."""

    report: Report

    def log(self, evaluation: Evaluation) -> None:
        """Tell an evaluation; stop the training if the answer is no."""
        if not self.report(evaluation.epoch, dict(evaluation.scalars)):
            raise FellBehindError(f"worse than the others after epoch {evaluation.epoch}")

    def close(self) -> None:
        """Nothing is held open."""


def train_trial(config: RunConfig, folder: Path, report: Report) -> dict[str, float]:
    """Train, or go on with, one trial and return the accuracies on validation of the weights that count.

    Raises:
        FellBehindError: ``report`` said no.
        DivergedError, StoppedError, OSError, ValueError: As :func:`~classmargin.recipes.train_run.train`.
    """
    summary = train(config, folder, resume=True, show=False, test=False, observers=[Watcher(report)])
    return validation_accuracies(folder, summary["selected_epoch"])


def validation_accuracies(folder: str | Path, epoch: int | None = None) -> dict[str, float]:
    """Return the accuracies on validation that a run logged, at an epoch or last of all.

    Raises:
        ValueError: It never looked at validation samples.
    """
    records = read_evaluations(folder)
    kept = [record for record in records if epoch is None or record.get("epoch") == epoch]
    if not kept or kept[-1].get("overall") is None:
        raise ValueError(f"{folder} has no evaluation on validation samples to choose by")
    return {metric: kept[-1][metric] for metric in METRICS if kept[-1].get(metric) is not None}


def read_evaluations(folder: str | Path) -> list[dict[str, Any]]:
    """Return every whole line of a run's ``metrics.jsonl``; a killed writer may leave half a line."""
    file = RunFolder(folder).metrics_file
    if not file.exists():
        return []
    records = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
