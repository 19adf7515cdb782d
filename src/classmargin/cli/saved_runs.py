"""Verbs for finished runs: ``classmargin predict``, ``classmargin export`` and ``classmargin ensemble``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from classmargin._printable import printable
from classmargin.cli import _shared as shared

RunArgument = Annotated[Path, Argument(metavar="RUN", exists=True, file_okay=False)]


def predict(
    run: RunArgument,
    data: Annotated[str, Argument(metavar="DATA")],
    *,
    split: Annotated[str, Option(metavar="train|validation|test|all")] = "test",
    out: Annotated[Path | None, Option(metavar="FILE.npz")] = None,
    root: Path | None = None,
    download: bool | None = None,
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Write the scores of a trained network on a data set, ready for classmargin audit.

    Options:
        data: Data set: a name, a file or a folder.
        split: Which samples.
        out: Predictions (default: RUN/predictions-DATA.npz).
    """
    from classmargin._checks import check_choice
    from classmargin.recipes.saved_model import SPLITS, load_model
    from classmargin.recipes.saved_model import predict as predict_data
    from classmargin.training.evaluate import write_predictions

    check_choice("--split", split, (*SPLITS, "all"))
    target = out if out is not None else run / f"predictions-{Path(data).stem}.npz"
    if target.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {str(target)!r}")
    arrays = predict_data(load_model(run), data, split=split, root=root, download=bool(download))
    write_predictions(target, arrays)
    right = float((arrays["logits"].argmax(axis=1) == arrays["labels"]).mean())
    typer.echo(f"{target}: {len(arrays['labels'])} samples, {100 * right:.1f} % right")


def export(
    run: RunArgument,
    *,
    file_format: Annotated[str, Option("--format", metavar="onnx|torchscript|safetensors")] = "onnx",
    out: Annotated[Path | None, Option(metavar="FILE")] = None,
) -> None:
    """Write a trained network as ONNX, TorchScript or plain weights; it is checked against the original.

    Options:
        file_format: Kind of file.
        out: File (default: RUN/exported.*).
    """
    from classmargin.recipes.saved_model import export as export_model
    from classmargin.recipes.saved_model import load_model

    typer.echo(str(export_model(load_model(run), out if out is not None else run / "exported", file_format)))


def ensemble(
    runs: Annotated[list[Path], Argument(metavar="RUN…")],
    *,
    out: Annotated[Path, Option(metavar="DIR")] = Path("runs/ensemble"),
    distill: bool = False,
    method: Annotated[str | None, Option(metavar="NAME")] = None,
    overrides: shared.OverridesOption = None,
    temperature: float = 1.0,
    onnx: Annotated[bool, Option("--onnx/--no-onnx")] = True,
    report: Annotated[bool, Option("--report/--no-report")] = True,
) -> None:
    """Average the probabilities of finished runs, audit the result, and export or distil it.

    Options:
        runs: Finished runs on the same data.
        out: Folder for predictions, audit, ONNX file and student.
        distill: Also train one network on the averaged probabilities.
        method: Method of the student (default: that of the first run).
        temperature: Of the probabilities that the student learns from.
        onnx: Write the ensemble as one ONNX file.
        report: Write an HTML report.
    """
    from classmargin.recipes.ensemble import ensemble as average_runs
    from classmargin.training.config_reader import parse_overrides

    if not distill and (method or overrides):
        raise ValueError("--method and --set are settings of the student; add --distill")
    result = average_runs(
        runs,
        out,
        distill=distill,
        method=method,
        settings=parse_overrides(overrides or ()),
        temperature=temperature,
        onnx=onnx,
        report=report,
    )
    for name, accuracies in result.rows():
        values = "  ".join(f"{key} {100 * value:.1f}" for key, value in accuracies.items() if value == value)
        typer.echo(f"{printable(name)}: {values}")
    typer.echo(f"written to {result.out}", err=True)
