"""Verbs for finished runs: ``classmargin predict``, ``classmargin export`` and ``classmargin ensemble``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable
from classmargin.cli import _run_options as options
from classmargin.cli._shared import MaxMemoryOption


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", exists=True, file_okay=False)],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Data set: a name, a file or a folder.")],
    split: Annotated[
        str, typer.Option("--split", metavar="train|validation|test|all", help="Which samples.")
    ] = "test",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.npz", help="Predictions (default: RUN/predictions-DATA.npz)."),
    ] = None,
    root: options.Root = None,
    download: options.Download = None,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Write the scores of a trained network on a data set, ready for classmargin audit."""
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
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", exists=True, file_okay=False)],
    file_format: Annotated[
        str, typer.Option("--format", metavar="onnx|torchscript|safetensors", help="Kind of file.")
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File (default: RUN/exported.*).")
    ] = None,
) -> None:
    """Write a trained network as ONNX, TorchScript or plain weights; it is checked against the original."""
    from classmargin.recipes.saved_model import export as export_model
    from classmargin.recipes.saved_model import load_model

    path = export_model(load_model(run), out if out is not None else run / "exported", file_format)
    typer.echo(str(path))


def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Finished runs on the same data.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder for predictions, audit, ONNX file and student."),
    ] = Path("runs/ensemble"),
    distill: Annotated[
        bool, typer.Option("--distill", help="Also train one network on the averaged probabilities.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", metavar="NAME", help="Method of the student (default: that of the first run)."
        ),
    ] = None,
    overrides: options.Overrides = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of the probabilities that the student learns from.")
    ] = 1.0,
    onnx: Annotated[
        bool, typer.Option("--onnx/--no-onnx", help="Write the ensemble as one ONNX file.")
    ] = True,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML report.")] = True,
) -> None:
    """Average the probabilities of finished runs, audit the result, and export or distil it."""
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
