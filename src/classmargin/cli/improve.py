"""``classmargin improve``: which remedy lifts the weak classes without hurting the rest, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, MaxMemoryOption, OutputFormat, show

if TYPE_CHECKING:
    from classmargin.recipes.improve.improvement import Improvement


def improve(
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="NAME|PATH",
            help="Data set: a name (classmargin list data), a file or a folder.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="RUN|FILE|VAL,TEST",
            help="Your model: a run folder, predictions on the test set of --data, or predictions on validation and test "
            "(val.npz,test.npz; then nothing is trained).",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="NAME|FILE.csv",
            help="What is to rise: hard, worst, overall, or a file of costs.",
        ),
    ] = "hard",
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="NAME:POINTS", help="What must not lose more than so many points, beyond noise."
        ),
    ] = "easy:0.5",
    budget: Annotated[
        str, typer.Option("--budget", metavar="30m|'20 runs'", help="Time, or number of runs.")
    ] = "30m",
    remedies: Annotated[
        str,
        typer.Option(
            "--remedies", metavar="default|all|A,B", help="What is tried (classmargin list remedies)."
        ),
    ] = "default",
    backbone: options.BackboneName = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="The data are a matrix of features: a perceptron on them (what features get anyway).",
        ),
    ] = False,
    jobs: options.Jobs = 1,
    engine: options.EngineName = options.Engine.local,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Folder of runs and results; the same command resumes there."
        ),
    ] = Path("runs/improve"),
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    devices: options.Devices = None,
    overrides: options.Overrides = None,
    root: options.Root = None,
    output: FormatOption = OutputFormat.table,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Try remedies for weak classes, choose on validation, test once, and say whether it is better, a trade, or nothing.

    An interrupted search resumes with the same command; finished runs are never lost.
    """
    from classmargin.recipes.improve.improving import improve as search
    from classmargin.training.config_reader import merge, parse_overrides

    if data is None and baseline is None:
        raise ValueError("--data must be a data set, or --baseline a run or predictions; got neither")
    if data is not None or "," not in str(baseline):  # two prediction files need no torch
        from classmargin.recipes.launched_ranks import serve_if_helper

        serve_if_helper()
    tables = options.run_tables(
        epochs=epochs, fraction=fraction, imbalance=imbalance, root=root, devices=devices
    )
    found = search(
        data,
        baseline=baseline,
        objective=objective,
        keep=keep,
        budget=budget,
        remedies=remedies,
        backbone=backbone,
        embeddings=embeddings,
        settings=merge(tables, parse_overrides(overrides or ())),
        preset=preset,
        jobs=jobs,
        engine=engine.value,
        out=out,
    )
    tell(found, output)
    typer.echo(f"written to {out}", err=True)


def tell(found: Improvement, output: OutputFormat = OutputFormat.table) -> None:
    """Print the answer in the chosen format."""
    from classmargin.recipes.improve.improvement_page import tables_of

    show(output, verdict=found.verdict, tables=tables_of(found), notes=found.notes, data=found.to_dict())
