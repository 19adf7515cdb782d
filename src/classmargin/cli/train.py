"""``classmargin train``: a data set and a method in, a model, its predictions and an audit out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from classmargin._printable import printable
from classmargin.cli._options import MaxMemoryOption, RunFlags

DIVERGED = 3


def train(
    *,
    method: Annotated[str | None, Option(metavar="NAME")] = None,
    flags: RunFlags,
    seed: Annotated[int | None, Option(min=0)] = None,
    threads: Annotated[int | None, Option(min=0)] = None,
    compile_network: Annotated[bool | None, Option("--compile")] = None,
    skip_corrupt: bool | None = None,
    out: Annotated[Path | None, Option(metavar="RUN")] = None,
    resume: bool = False,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Train a network on a data set with a method, and audit what came out.

    Options:
        method: Method (classmargin list methods). Default: erm.
        seed: Weights, order, augmentation.
        threads: Threads of each process; 0: 1 on the CPU.
        compile_network: Compile the network with torch.compile.
        skip_corrupt: Leave unreadable files out instead of stopping.
        out: Run folder (default: runs/NAMES-HASH).
        resume: Resume the run in the folder.
    """
    from classmargin.recipes.train_run import default_folder, exit_code_of_rank, is_helper_process
    from classmargin.recipes.train_run import train as train_run
    from classmargin.training.run_folder import RunFolder
    from classmargin.training.stopping import DivergedError, StoppedError

    tables = flags.tables(
        method=method, allow_download=flags.download, skip_corrupt=skip_corrupt, seed=seed,
        compile_network=compile_network, threads=threads,
    )  # fmt: skip
    begun = RunFolder(out) if out is not None and resume else None
    base = begun.read_config() if begun is not None and begun.started else None
    given = flags.overrides or flags.preset or flags.config or tables.keys() - {"machine"}
    if begun is not None and base is None and not given:
        # A run killed before it wrote its settings: resuming with the defaults would be another run.
        raise ValueError(f"{out} holds no run to resume; give its settings as at its first start")
    run = flags.gather(tables, base=base)
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
