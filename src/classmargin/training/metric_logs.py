"""Where numbers go at each evaluation: to the files of the run folder and to trackers, few enough to be looked at."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from classmargin._checks import require_extra
from classmargin._files import open_regular, read_csv_header, without_waiting
from classmargin._printable import escape_markdown
from classmargin.evaluation.json_values import to_plain
from classmargin.methods.base import MethodLoss

MOST_SCALARS = 10
FILES = ("metrics.jsonl", "metrics.csv", "class_accuracy.csv")
MLFLOW_RUN_FILE = "mlflow_run_id.txt"  # so that the report of the finished run finds its place


@dataclass(frozen=True)
class Evaluation:
    """One evaluation as loggers get it: epochs and steps finished, at most ten scalars, an accuracy for each class or none."""

    epoch: int
    step: int
    scalars: Mapping[str, float]
    class_accuracy: Sequence[float]

    def rows(self, class_names: Sequence[str]) -> list[tuple[str, float]]:
        """Return each class with its accuracy."""
        return list(zip(class_names, map(float, self.class_accuracy), strict=True)) if self.class_accuracy else []


class Logger(Protocol):
    """Anything that takes evaluations."""

    def log(self, evaluation: Evaluation) -> None:
        """Take one evaluation."""

    def close(self) -> None:
        """Send what is still held."""


class LogFiles:
    """``metrics.jsonl``, ``metrics.csv`` and ``class_accuracy.csv`` of a run folder, to which lines are appended."""

    def __init__(self, folder: Path, class_names: Sequence[str]) -> None:
        self._folder = folder
        self._class_names = [safe_cell(name) for name in class_names]

    def log(self, evaluation: Evaluation) -> None:
        """Append a line to each file."""
        place = {"epoch": evaluation.epoch, "step": evaluation.step}
        row = {**place, **evaluation.scalars}
        accuracy = [float(value) for value in evaluation.class_accuracy]
        self.append("metrics.jsonl", json_line({**row, "class_accuracy": accuracy}))
        # Loss parts may differ from stage to stage; columns are those of the first line, the JSON has all.
        path = self._folder / "metrics.csv"
        if _length(path) == 0:
            self.append(path.name, csv_line(list(row)))
        self.append(path.name, csv_line([row.get(column, "") for column in read_csv_header(path)]))
        if accuracy:
            if _length(self._folder / "class_accuracy.csv") == 0:
                self.append("class_accuracy.csv", csv_line([*place, *self._class_names]))
            self.append("class_accuracy.csv", csv_line([*place.values(), *accuracy]))

    def close(self) -> None:
        """Nothing is held open."""

    def append(self, name: str, line: str) -> None:
        """Add one line; an error of the disk names the file."""
        path = self._folder / name
        try:
            with open(path, "a", encoding="utf-8", newline="", opener=without_waiting) as file:
                file.write(line)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def lengths(self) -> dict[str, int]:
        """Return the length of each file in bytes, after flushing them to the disk."""
        for path in (self._folder / name for name in FILES):
            if path.exists():
                with open_regular(path) as file:
                    os.fsync(file.fileno())
        return {name: _length(self._folder / name) for name in FILES}

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut every file back to the given length (0 where none is given)."""
        for name in FILES:
            path = self._folder / name
            if path.is_symlink():
                raise ValueError(f"{path} is a link, and a run writes only inside its own folder; remove it")
            if _length(path) > lengths.get(name, 0):
                os.truncate(path, lengths.get(name, 0))


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class TensorBoardLogger:
    """Scalars and a text table for TensorBoard, in ``RUN/tensorboard``."""

    def __init__(self, folder: Path, class_names: Sequence[str], config: Any, first_step: int) -> None:
        module = require_extra("torch.utils.tensorboard", "tensorboard", "the TensorBoard logger")
        purge = first_step + 1 if first_step else None
        self._writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=purge)
        self._class_names = class_names

    def log(self, evaluation: Evaluation) -> None:
        """Write scalars and table."""
        for name, value in evaluation.scalars.items():
            self._writer.add_scalar(name, value, evaluation.step)
        rows = evaluation.rows(self._class_names)
        if rows:
            lines = [f"| {escape_markdown(name)} | {100 * value:.1f} |" for name, value in rows]
            table = "\n".join(["| class | accuracy |", "|---|---|", *lines])
            self._writer.add_text("class accuracy", table, evaluation.step)

    def close(self) -> None:
        """Flush to the disk."""
        self._writer.close()

    @staticmethod
    def send_report(folder: Path, report: Path) -> None:
        """Say where the report is: TensorBoard keeps no files of others."""
        module = require_extra("torch.utils.tensorboard", "tensorboard", "the TensorBoard logger")
        with module.SummaryWriter(str(folder / "tensorboard")) as writer:
            writer.add_text("report", f"The report of this run is {report.name} in the run folder {folder.name}.")


class WandbLogger:
    """Scalars and a table for Weights & Biases; offline unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, folder: Path, class_names: Sequence[str], config: Any, first_step: int) -> None:
        self._wandb, self._run = _wandb_run(folder, name=folder.name, config=dict(config))
        self._class_names = class_names

    def log(self, evaluation: Evaluation) -> None:
        """Send scalars and table."""
        record: dict[str, Any] = dict(evaluation.scalars)
        if rows := evaluation.rows(self._class_names):
            data = [list(row) for row in rows]
            record["class_accuracy"] = self._wandb.Table(columns=["class", "accuracy"], data=data)
        self._run.log(record, step=evaluation.step)

    def close(self) -> None:
        """End the W&B run."""
        self._run.finish()

    @staticmethod
    def send_report(folder: Path, report: Path) -> None:
        """Add the report to the newest run in the folder."""
        wandb, run = _wandb_run(folder)
        artifact = wandb.Artifact(f"report-{run.id}", type="report")
        artifact.add_file(str(report))
        run.log_artifact(artifact)
        run.finish()


def _wandb_run(folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Return W&B and a new run with these settings, or the newest run in the folder."""
    wandb = require_extra("wandb", "wandb", "the W&B logger")
    mode = os.environ.get("WANDB_MODE", "offline")  # nothing leaves the machine unless asked for
    settings = settings or {"id": wandb_run_id(folder), "resume": "allow"}
    return wandb, wandb.init(project="classmargin", dir=str(folder), mode=mode, **settings)


def wandb_run_id(folder: Path) -> str:
    """Return the id of the newest W&B run in a run folder, from its file: folders may have a number after the id."""
    found = sorted((folder / "wandb").glob("*run-*/run-*.wandb"), key=lambda path: path.parent.name)
    if not found:
        raise FileNotFoundError(f"no W&B run in {folder / 'wandb'}")
    return found[-1].stem.removeprefix("run-")


class MLflowLogger:
    """MLflow, inside ``RUN`` unless ``MLFLOW_TRACKING_URI`` is set, by a client that leaves other runs alone."""

    def __init__(self, folder: Path, class_names: Sequence[str], config: Any, first_step: int) -> None:
        self._entities, self._client, inside = _mlflow_client(folder)
        experiment = self._client.get_experiment_by_name("classmargin")
        # Without a place of their own, tables of a local database would land in the current folder.
        artifacts = (folder / "mlflow-artifacts").resolve().as_uri() if inside else None
        create = self._client.create_experiment
        number = experiment.experiment_id if experiment else create("classmargin", artifact_location=artifacts)
        self._run_id = self._client.create_run(number, run_name=folder.name).info.run_id
        (folder / MLFLOW_RUN_FILE).write_text(f"{self._run_id}\n", encoding="utf-8")
        settings = {f"{part}.{key}": value for part, table in config.items() for key, value in table.items()}
        params = [self._entities.Param(key, str(value)) for key, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)
        self._class_names = class_names

    def log(self, evaluation: Evaluation) -> None:
        """Send scalars and table."""
        make, now, scalars = self._entities.Metric, time.time_ns() // 1_000_000, evaluation.scalars.items()
        metrics = [make(name, float(value), now, evaluation.step) for name, value in scalars]
        self._client.log_batch(self._run_id, metrics=metrics)
        if rows := evaluation.rows(self._class_names):
            names, accuracies = (list(column) for column in zip(*rows, strict=True))
            table = {"class": names, "accuracy": accuracies}
            self._client.log_table(self._run_id, table, f"class_accuracy_{evaluation.step:08d}.json")

    def close(self) -> None:
        """End the MLflow run."""
        self._client.set_terminated(self._run_id)

    @staticmethod
    def send_report(folder: Path, report: Path) -> None:
        """Add the report to the run that is named in the folder."""
        _, client, _ = _mlflow_client(folder)
        run_id = (folder / MLFLOW_RUN_FILE).read_text(encoding="utf-8").strip()
        client.log_artifact(run_id, str(report), artifact_path="report")


def _mlflow_client(folder: Path) -> tuple[Any, Any, bool]:
    mlflow = require_extra("mlflow", "mlflow", "the MLflow logger")
    inside = "MLFLOW_TRACKING_URI" not in os.environ
    place = f"sqlite:///{(folder / 'mlflow.db').resolve()}" if inside else None
    return mlflow.entities, mlflow.MlflowClient(tracking_uri=place), inside


# The services of ``machine.loggers``; a package that is missing is an ImportError that names the extra.
SERVICES: dict[str, Any] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger, "mlflow": MLflowLogger}


def send_run_report(names: Sequence[str], folder: Path, report: Path, say: Callable[[str], None]) -> list[str]:
    """Give the report of a finished run to its trackers; return those that took it, and ``say`` why others failed."""
    sent = []
    for name in names:
        try:
            SERVICES[name].send_report(folder, report)
        except Exception as error:
            say(f"{report.name} was not sent to {name}: {error}")
        else:
            sent.append(name)
    return sent


def few_scalars(accuracies: Mapping[str, float], losses: Mapping[str, float], learning_rate: float) -> dict[str, float]:
    """Return at most ten scalars: accuracies, learning rate, the loss and as many of its parts as fit."""
    scalars = {**accuracies, "learning_rate": learning_rate, **losses}
    return dict(list(scalars.items())[:MOST_SCALARS])


def json_line(record: Mapping[str, Any]) -> str:
    r"""Return a record as one line of JSON; numbers that JSON lacks become null."""
    return json.dumps(to_plain(record)) + "\n"


# The sign that makes a spreadsheet compute, in its wide form too, where a cell begins: at the start, or behind a
# separator of other locales (a comma or a line break is quoted by the writer).
_FORMULA = re.compile(r"(^|[;\t])(?=[\s\0\ufeff\u200b]*[=+\-@＝＋－＠])")


def safe_cell(text: str) -> str:
    """Return text (class names are of others) that a spreadsheet shows instead of computing it: ``'=A1``."""
    marked = _FORMULA.sub(r"\1'", text)
    return f"'{marked}" if marked.startswith(("\t", "\r", "\n")) else marked


def csv_line(values: Sequence[Any]) -> str:
    r"""Return values as one line of CSV."""
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


class LossMeter:
    """Mean of each loss part over the steps seen."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, loss: MethodLoss) -> None:
        """Take one step."""
        self._steps += 1
        for name, value in {"loss": loss.total.detach(), **loss.parts}.items():
            # float64, so that sums of long epochs lose nothing that a reader could see.
            known = self._sums.get(name)
            self._sums[name] = value.double() if known is None else known + value.double()

    def means(self) -> dict[str, float]:
        """Return the means by name, the total first; parts that merely repeat the total are left out."""
        means = {name: float(value) / max(1, self._steps) for name, value in self._sums.items()}
        return {name: value for name, value in means.items() if name == "loss" or value != means["loss"]}

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume in the middle of an epoch."""
        return {"sums": dict(self._sums), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Put a saved state back."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._steps = state["steps"]
