"""The HTML report of a finished training run as an artifact of the trackers that the run logged to.

During training :mod:`classmargin.training.loggers` sends scalars and the class table; the report exists only when the run has
been tested, after those loggers were closed. Here each tracker's own record of that run is opened again and given the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from classmargin._checks import require_extra

PROJECT, MLFLOW_RUN_FILE = "classmargin", "mlflow_run_id.txt"  # as in training.loggers


def send_run_report(
    names: Sequence[str], folder: Path, report: Path, say: Callable[[str], None]
) -> list[str]:
    """Give the report of a run to its trackers and return the names of those that have it.

    A tracker that fails costs its copy of the report, with a line that says why, and nothing else: the run is finished.

    Args:
        names: Loggers of the run: ``tensorboard``, ``wandb``, ``mlflow``.
        folder: The run folder.
        report: The HTML file.
        say: Prints one line.
    """
    senders = {"tensorboard": _to_tensorboard, "wandb": _to_wandb, "mlflow": _to_mlflow}
    sent = []
    for name in names:
        try:
            senders[name](folder, report)
        except Exception as error:
            say(f"{report.name} was not sent to {name}: {error}")
        else:
            sent.append(name)
    return sent


def _to_tensorboard(folder: Path, report: Path) -> None:
    module = require_extra("torch.utils.tensorboard", "tensorboard", "the TensorBoard logger")
    # TensorBoard keeps no files of others: it is told where the report is.
    with module.SummaryWriter(str(folder / "tensorboard")) as writer:
        writer.add_text("report", f"The report of this run is {report.name} in the run folder {folder.name}.")


def _to_wandb(folder: Path, report: Path) -> None:
    wandb = require_extra("wandb", "wandb", "the W&B logger")
    mode = os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(project=PROJECT, id=wandb_run_id(folder), resume="allow", dir=str(folder), mode=mode)
    artifact = wandb.Artifact(f"report-{run.id}", type="report")
    artifact.add_file(str(report))
    run.log_artifact(artifact)
    run.finish()


def wandb_run_id(folder: Path) -> str:
    """Return the id of the newest W&B run in a run folder, from the file ``wandb/offline-run-DATE-.../run-ID.wandb``.

    The file, not its folder: a folder begun in the same second as another has a number after the id.

    Raises:
        FileNotFoundError: There is none.
    """
    found = sorted((folder / "wandb").glob("*run-*/run-*.wandb"), key=lambda path: path.parent.name)
    if not found:
        raise FileNotFoundError(f"no W&B run in {folder / 'wandb'}")
    return found[-1].stem.removeprefix("run-")


def _to_mlflow(folder: Path, report: Path) -> None:
    mlflow: Any = require_extra("mlflow", "mlflow", "the MLflow logger")
    inside = "MLFLOW_TRACKING_URI" not in os.environ
    place = f"sqlite:///{(folder / 'mlflow.db').resolve()}" if inside else None
    run_id = (folder / MLFLOW_RUN_FILE).read_text(encoding="utf-8").strip()
    mlflow.MlflowClient(tracking_uri=place).log_artifact(run_id, str(report), artifact_path="report")
