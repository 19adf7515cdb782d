"""Audits in experiment trackers (TensorBoard, Weights & Biases, MLflow).

    log_audit(result, SummaryWriter("runs/1"), step=epoch)      # TensorBoard
    log_audit(result, wandb.init(mode="offline"), step=epoch)   # Weights & Biases
    log_audit(result, mlflow, step=epoch)                       # MLflow, into the active run

An audit is ten scalars, one table with a row per class, and the HTML report as an artifact. The tracker is recognised by its methods,
so nothing is imported before it is used. TensorBoard has no artifacts: the report lies beside its event files.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from classmargin._checks import check_int, require_extra
from classmargin._printable import escape_markdown
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.json_values import to_plain

SCALARS = ("overall", "easy", "medium", "hard", "worst", "gap")
DISPARITY = ("worst_5", "std", "gini")
COLUMNS = ("class_name", "n", "accuracy", "low", "high", "tier", "nearest_by_confusion", "verdict")
REPORT = "audit_report.html"
Scalars = dict[str, float]
Rows = list[list[Any]]


def audit_scalars(result: Audit) -> Scalars:
    """Return the ten scalars of an audit; those that cannot be computed from its arrays are left out.

    Example:
        >>> import classmargin
        >>> result = classmargin.audit([0, 0, 1, 1], predictions=[0, 0, 1, 0], num_classes=2, bootstrap=0)
        >>> list(audit_scalars(result))
        ['overall', 'easy', 'medium', 'worst', 'worst_5', 'std', 'gini']
    """
    values = {name: getattr(result, name) for name in SCALARS}
    values |= {name: result.disparity[name] for name in DISPARITY}
    return {name: float(value) for name, value in (values | {"ece": result.ece}).items() if math.isfinite(value)}


def class_rows(result: Audit) -> Rows:
    """Return the per-class table as rows in the order of ``COLUMNS``, plain Python values."""
    frame = result.by_class[list(COLUMNS)]
    rows: Rows = to_plain(list(frame.itertuples(index=False, name=None)))
    return rows


def log_audit(result: Audit, tracker: Any, *, step: int = 0, prefix: str = "audit/", report: bool = True) -> None:
    """Send an audit to TensorBoard, Weights & Biases or MLflow.

    Args:
        result: The audit.
        tracker: A ``SummaryWriter``, a W&B run, or the module ``mlflow`` (its active run is used, or one is started).
        step: Step or epoch that the numbers belong to.
        prefix: Put before the name of every scalar.
        report: Whether to send the HTML report too (needs the extra ``report``), after scalars and table.
    """
    check_int("step", step, minimum=0)
    send = _sender(tracker)
    scalars = {prefix + name: value for name, value in audit_scalars(result).items()}
    with tempfile.TemporaryDirectory() as folder:
        # The page is made last: numbers and table are worth having without it.
        page = (result.to_html(Path(folder) / REPORT) for _ in range(report))
        send(tracker, scalars, class_rows(result), step, page)


def _sender(tracker: Any) -> Callable[[Any, Scalars, Rows, int, Iterable[Path]], None]:
    if hasattr(tracker, "add_scalar") and hasattr(tracker, "add_text"):
        return _log_to_tensorboard
    if hasattr(tracker, "log_artifact") and hasattr(tracker, "log_metrics"):
        return _log_to_mlflow
    if hasattr(tracker, "log_artifact") and hasattr(tracker, "log"):
        return _log_to_wandb
    raise TypeError(
        f"tracker must be a TensorBoard SummaryWriter, a W&B run or the module mlflow, got {type(tracker).__name__}"
    )


def _log_to_tensorboard(writer: Any, scalars: Scalars, rows: Rows, step: int, page: Iterable[Path]) -> None:
    for name, value in scalars.items():
        writer.add_scalar(name, value, step)
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    table = "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)
    writer.add_text("classes", table, step)
    for file in page:
        target = Path(writer.log_dir) / f"{file.stem}_{step}{file.suffix}"
        target.write_bytes(file.read_bytes())
        writer.add_text("report", f"The audit report is the file {target.name} beside these events.", step)


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "" if value is None else escape_markdown(str(value))


def _log_to_wandb(run: Any, scalars: Scalars, rows: Rows, step: int, page: Iterable[Path]) -> None:
    wandb = require_extra("wandb", "wandb", "logging to Weights & Biases")
    run.log({**scalars, "classes": wandb.Table(columns=list(COLUMNS), data=rows)}, step=step)
    for file in page:
        artifact = wandb.Artifact(f"audit-report-{run.id}", type="report", metadata={"step": step})
        artifact.add_file(str(file))
        run.log_artifact(artifact)


def _log_to_mlflow(mlflow: Any, scalars: Scalars, rows: Rows, step: int, page: Iterable[Path]) -> None:
    mlflow.log_metrics(scalars, step=step)
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    mlflow.log_table(columns, f"classes_{step:08d}.json")
    for file in page:
        mlflow.log_artifact(str(file), artifact_path=f"report_{step:08d}")
