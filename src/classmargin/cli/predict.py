"""``classmargin predict``: scores of a trained network on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classmargin.cli import _run_options as options


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
) -> None:
    """Write the scores of a trained network on a data set, ready for classmargin audit."""
    from classmargin._checks import check_choice
    from classmargin.recipes.predict import SPLITS
    from classmargin.recipes.predict import predict as predict_data
    from classmargin.recipes.saved_model import load_model
    from classmargin.training.finish import write_predictions

    check_choice("--split", split, (*SPLITS, "all"))
    target = out if out is not None else run / f"predictions-{Path(data).stem}.npz"
    if target.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {str(target)!r}")
    arrays = predict_data(load_model(run), data, split=split, root=root, download=bool(download))
    write_predictions(target, arrays)
    right = float((arrays["logits"].argmax(axis=1) == arrays["labels"]).mean())
    typer.echo(f"{target}: {len(arrays['labels'])} samples, {100 * right:.1f} % right")
