"""``classmargin export``: a trained network as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from classmargin.recipes.export import export as export_model
    from classmargin.recipes.saved_model import load_model

    path = export_model(load_model(run), out if out is not None else run / "exported", file_format)
    typer.echo(str(path))
