"""``classmargin train``: a data set and a method in, a model, its predictions and an audit out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable
from classmargin.cli import _run_options as options
from classmargin.cli._shared import MaxMemoryOption

DIVERGED = 3


def train(
    data: options.Data = None,
    backbone: options.BackboneName = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", metavar="NAME", help=f"Method (classmargin list methods). Default: {options.METHOD}."
        ),
    ] = None,
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Weights, order, augmentation.")] = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    overrides: options.Overrides = None,
    config: options.ConfigFile = None,
    devices: options.Devices = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=0, help="Threads of each process; 0: 1 on the CPU.")
    ] = None,
    compile_network: Annotated[
        bool | None, typer.Option("--compile", help="Compile the network with torch.compile.")
    ] = None,
    root: options.Root = None,
    download: options.Download = None,
    skip_corrupt: options.SkipCorrupt = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN", help="Run folder (default: runs/NAMES-HASH).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in the folder.")] = False,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Train a network on a data set with a method, and audit what came out."""
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.train_run import default_folder, exit_code_of_rank, is_helper_process
    from classmargin.recipes.train_run import train as train_run
    from classmargin.training.run_folder import RunFolder
    from classmargin.training.stopping import DivergedError, StoppedError

    flags = options.run_tables(
        data=data,
        backbone=backbone,
        method=method,
        epochs=epochs,
        fraction=fraction,
        imbalance=imbalance,
        root=root,
        download=download,
        skip_corrupt=skip_corrupt,
        seed=seed,
        compile_network=compile_network,
        devices=devices,
        threads=threads,
    )
    begun = RunFolder(out) if out is not None and resume else None
    base = begun.read_config() if begun is not None and begun.started else None
    settings = [value for part, table in flags.items() if part != "machine" for value in table.values()]
    if begun is not None and base is None and not any([overrides, preset, config, *settings]):
        # A run killed before it wrote its settings: resuming with the defaults would be another run.
        raise ValueError(f"{out} holds no run to resume; give its settings as at its first start")
    run = gather_config(flags=flags, overrides=overrides or (), preset=preset, file=config, base=base)
    folder = out if out is not None else default_folder(run)
    try:
        summary = train_run(run, folder, resume=resume)
    except DivergedError as error:
        typer.echo(f"classmargin: error: {printable(str(error))}", err=True)
        raise typer.Exit(DIVERGED) from error
    except StoppedError as error:
        if not is_helper_process():
            typer.echo(f"classmargin: {printable(str(error))}", err=True)
        raise typer.Exit(exit_code_of_rank(error.exit_code)) from error
    if is_helper_process():
        return
    # A third without classes (of two, or where test samples lack) has no accuracy.
    values = "  ".join(
        f"{name} {100 * value:.1f}" if value == value else f"{name} –"
        for name, value in summary["test"].items()
    )
    typer.echo(f"{printable(str(folder))}: {values}")
