"""``classmargin train``: a data set and a method in, a model, its predictions and an audit out.

``classmargin compare-methods`` does that for several methods and seeds, and compares them in pairs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from classmargin._printable import printable
from classmargin.cli import _shared as shared

DIVERGED = 3


def train(
    *,
    method: Annotated[str | None, Option(metavar="NAME")] = None,
    flags: shared.RunFlags,
    seed: Annotated[int | None, Option(min=0)] = None,
    threads: Annotated[int | None, Option(min=0)] = None,
    compile_network: Annotated[bool | None, Option("--compile")] = None,
    skip_corrupt: bool | None = None,
    out: Annotated[Path | None, Option(metavar="RUN")] = None,
    resume: bool = False,
    max_memory: shared.MaxMemoryOption = None,
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
        method=method,
        allow_download=flags.download,
        skip_corrupt=skip_corrupt,
        seed=seed,
        compile_network=compile_network,
        threads=threads,
    )
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
        if is_helper_process():
            raise typer.Exit(exit_code_of_rank(error.exit_code)) from error
        raise
    if is_helper_process():
        return
    # A third without classes (of two, or where test samples lack) has no accuracy.
    shown = {name: f"{100 * value:.1f}" if value == value else "–" for name, value in summary["test"].items()}
    values = "  ".join(f"{name} {value}" for name, value in shown.items())
    typer.echo(f"{printable(str(folder))}: {values}")


def compare_methods(
    *,
    out: Annotated[Path, Option(metavar="DIR")],
    methods: Annotated[str, Option(metavar="A,B,…")] = "erm,mr2",
    seeds: Annotated[int, Option(min=1, max=10_000)] = 3,
    jobs: shared.JobsOption = 1,
    engine: shared.Engine = "local",
    equal_footing: shared.EqualFootingOption = 0,
    flags: shared.RunFlags,
    output: shared.FormatOption = "table",
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Train methods with several seeds (finished runs are skipped, interrupted ones resume) and compare them.

    Hyper-parameters of one method: --set mr2.mean_margin=2.

    Options:
        out: Folder of the comparison.
        methods: Methods, the baseline first; or all.
        seeds: Runs of each method.
    """
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.recipe_plan import plan_comparison
    from classmargin.recipes.record_pages import comparison_dict, write_comparison
    from classmargin.recipes.run_options import method_names, split_overrides
    from classmargin.recipes.run_parts import download_data
    from classmargin.recipes.run_recipe import run_plan

    serve_if_helper()
    names = method_names(methods)
    if not names:
        raise ValueError(f"--methods must name at least one method, got {methods!r}")
    common, own = split_overrides(flags.overrides or (), names)
    run = flags.gather(flags.tables(), common)
    plan = plan_comparison(run, names, seeds, out, own)
    if flags.download:
        download_data(run)
    outcome = run_plan(plan, out, trials=equal_footing, engine=engine, jobs=jobs)
    write_comparison(outcome, out, title=f"Methods on {run.data.name}")
    shared.show_record(output, outcome.record, out, comparison_dict(outcome))
