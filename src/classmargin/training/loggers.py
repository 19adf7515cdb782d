"""Where numbers go during training: always to the files of the run folder, and to the services people use.

At each evaluation a logger gets at most ten scalars and one table with a row a class: enough to see what
happens, few enough to be looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from classmargin._checks import require_extra
from classmargin.evaluation.markdown import escape
from classmargin.training.log_files import LogFiles, csv_line, json_line, safe_cell

MOST_SCALARS = 10
FILES = ("metrics.jsonl", "metrics.csv", "class_accuracy.csv")
MLFLOW_RUN_FILE = "mlflow_run_id.txt"  # so that the report of the finished run finds its place


@dataclass(frozen=True)
class Evaluation:
    """One evaluation as loggers get it.

    Attributes:
        epoch: Epochs finished.
        step: Optimiser steps finished.
        scalars: At most ten numbers by name.
        class_accuracy: Accuracy of each class, in class order; empty where there are no validation samples.
    """

    epoch: int
    step: int
    scalars: Mapping[str, float]
    class_accuracy: Sequence[float]


class Logger(Protocol):
    """Anything that takes evaluations."""

    def log(self, evaluation: Evaluation) -> None:
        """Take one evaluation."""

    def close(self) -> None:
        """Send what is still held."""


class FileLogger:
    """``metrics.jsonl``, ``metrics.csv`` and ``class_accuracy.csv`` of the run folder."""

    def __init__(self, files: LogFiles, class_names: Sequence[str]) -> None:
        self._files = files
        self._class_names = [safe_cell(name) for name in class_names]

    def log(self, evaluation: Evaluation) -> None:
        """Append a line to each file."""
        row = {"epoch": evaluation.epoch, "step": evaluation.step, **evaluation.scalars}
        accuracy = [float(value) for value in evaluation.class_accuracy]
        self._files.append("metrics.jsonl", json_line({**row, "class_accuracy": accuracy}))
        self._csv("metrics.csv", row)
        if accuracy:
            self._csv(
                "class_accuracy.csv",
                dict(
                    zip(
                        ["epoch", "step", *self._class_names],
                        [evaluation.epoch, evaluation.step, *accuracy],
                        strict=True,
                    )
                ),
            )

    def _csv(self, name: str, row: Mapping[str, Any]) -> None:
        # Loss parts may differ from stage to stage; columns are those of the first line, the JSON has all.
        if self._files.is_empty(name):
            self._files.append(name, csv_line(list(row)))
        self._files.append(name, csv_line([row.get(column, "") for column in self._files.csv_header(name)]))

    def close(self) -> None:
        """Nothing is held open."""


class TensorBoardLogger:
    """Scalars and a text table for TensorBoard, in ``RUN/tensorboard``."""

    def __init__(self, folder: Path, class_names: Sequence[str], *, first_step: int) -> None:
        module = require_extra("torch.utils.tensorboard", "tensorboard", "the TensorBoard logger")
        self._writer = module.SummaryWriter(
            str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None
        )
        self._class_names = list(class_names)

    def log(self, evaluation: Evaluation) -> None:
        """Write scalars and table."""
        for name, value in evaluation.scalars.items():
            self._writer.add_scalar(name, value, evaluation.step)
        if not evaluation.class_accuracy:
            return
        rows = [
            f"| {escape(name)} | {100 * value:.1f} |"
            for name, value in zip(self._class_names, evaluation.class_accuracy, strict=True)
        ]
        self._writer.add_text(
            "class accuracy", "\n".join(["| class | accuracy |", "|---|---|", *rows]), evaluation.step
        )

    def close(self) -> None:
        """Flush to the disk."""
        self._writer.close()


class WandbLogger:
    """Scalars and a table for Weights & Biases; offline unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, folder: Path, class_names: Sequence[str], *, config: Mapping[str, Any]) -> None:
        self._wandb = require_extra("wandb", "wandb", "the W&B logger")
        mode = os.environ.get("WANDB_MODE", "offline")  # nothing leaves the machine unless asked for
        self._run = self._wandb.init(
            project="classmargin", name=folder.name, dir=str(folder), config=dict(config), mode=mode
        )
        self._class_names = list(class_names)

    def log(self, evaluation: Evaluation) -> None:
        """Send scalars and table."""
        record: dict[str, Any] = dict(evaluation.scalars)
        if evaluation.class_accuracy:
            rows = [
                [name, float(value)]
                for name, value in zip(self._class_names, evaluation.class_accuracy, strict=True)
            ]
            record["class_accuracy"] = self._wandb.Table(columns=["class", "accuracy"], data=rows)
        self._run.log(record, step=evaluation.step)

    def close(self) -> None:
        """End the W&B run."""
        self._run.finish()


class MLflowLogger:
    """Scalars and a table for MLflow; all inside ``RUN`` unless ``MLFLOW_TRACKING_URI`` says otherwise.

    Through a client of its own: ``mlflow.set_tracking_uri`` and ``mlflow.start_run`` would change what the rest of the
    process, a next run among it, logs to.
    """

    def __init__(self, folder: Path, class_names: Sequence[str], *, config: Mapping[str, Any]) -> None:
        mlflow = require_extra("mlflow", "mlflow", "the MLflow logger")
        self._entities = mlflow.entities
        inside = "MLFLOW_TRACKING_URI" not in os.environ
        place = f"sqlite:///{(folder / 'mlflow.db').resolve()}" if inside else None
        self._client = mlflow.MlflowClient(tracking_uri=place)
        experiment = self._client.get_experiment_by_name("classmargin")
        if experiment is None:
            # Without a place of their own, tables of a local database would land in the current folder.
            artifacts = (folder / "mlflow-artifacts").resolve().as_uri() if inside else None
            experiment_id = self._client.create_experiment("classmargin", artifact_location=artifacts)
        else:
            experiment_id = experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=folder.name).info.run_id
        (folder / MLFLOW_RUN_FILE).write_text(f"{self._run_id}\n", encoding="utf-8")
        settings = {f"{part}.{key}": value for part, table in config.items() for key, value in table.items()}
        self._client.log_batch(
            self._run_id, params=[self._entities.Param(key, str(value)) for key, value in settings.items()]
        )
        self._class_names = list(class_names)

    def log(self, evaluation: Evaluation) -> None:
        """Send scalars and table."""
        now = time.time_ns() // 1_000_000
        metrics = [
            self._entities.Metric(name, float(value), now, evaluation.step)
            for name, value in evaluation.scalars.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)
        if not evaluation.class_accuracy:
            return
        table = {
            "class": self._class_names,
            "accuracy": [float(value) for value in evaluation.class_accuracy],
        }
        self._client.log_table(self._run_id, table, f"class_accuracy_{evaluation.step:08d}.json")

    def close(self) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self._run_id)


def make_loggers(
    names: Sequence[str],
    folder: Path,
    files: LogFiles,
    class_names: Sequence[str],
    config: Mapping[str, Any],
    first_step: int,
) -> list[Logger]:
    """Return the file logger and those of ``names``.

    Raises:
        ImportError: The package of a named logger is missing; the message names the extra.
    """
    loggers: list[Logger] = [FileLogger(files, class_names)]
    for name in names:
        if name == "tensorboard":
            loggers.append(TensorBoardLogger(folder, class_names, first_step=first_step))
        elif name == "wandb":
            loggers.append(WandbLogger(folder, class_names, config=config))
        else:
            loggers.append(MLflowLogger(folder, class_names, config=config))
    return loggers


def few_scalars(
    accuracies: Mapping[str, float], losses: Mapping[str, float], learning_rate: float
) -> dict[str, float]:
    """Return at most ten scalars: accuracies, learning rate, the loss and as many of its parts as fit.

    Example:
        >>> few_scalars({"overall": 0.5}, {"loss": 1.0}, 0.1)
        {'overall': 0.5, 'learning_rate': 0.1, 'loss': 1.0}
    """
    scalars = {**accuracies, "learning_rate": learning_rate, **losses}
    return dict(list(scalars.items())[:MOST_SCALARS])
