"""``classmargin sweep``: search hyper-parameters on validation, then test the chosen ones once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable
from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, OutputFormat, show

SOME_FAILED = 3


class Engine(str, Enum):
    """Who runs the trials."""

    optuna = "optuna"
    ray = "ray"


class Pruner(str, Enum):
    """What stops trials that fall behind."""

    median = "median"
    none = "none"


def sweep(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the sweep.")],
    data: options.Data = None,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help="Method (classmargin list methods).")
    ] = "mr2",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="KEY=VALUES",
            help="What varies: mean_margin=1,2,3 or optimizer.weight_decay=1e-5:1e-2:log. Plain names are "
            "hyper-parameters of the method. Default: the method's own ranges.",
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="NAME",
            help="overall, easy, medium, hard, worst, or a mix like hard:0.7,overall:0.3.",
        ),
    ] = "hard",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of the whole study.")] = 30,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trials side by side, one thread each.")] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Shared data base: sqlite:///FILE or postgresql://… (default: DIR/study.db).",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="Name in the storage (default: by what is asked).")
    ] = None,
    keep_easy: Annotated[
        bool,
        typer.Option("--keep-easy/--free-easy", help="Choose only trials whose easy third does not drop."),
    ] = True,
    easy_slack: Annotated[
        float, typer.Option("--easy-slack", min=0.0, help="Points that the easy third may lose.")
    ] = 0.0,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference", metavar="RUN", help="Finished run to keep the easy third of (default: ERM)."
        ),
    ] = None,
    pruner: Annotated[
        Pruner,
        typer.Option(
            "--pruner", help="Stops trials that fall behind; never those of methods that train in stages."
        ),
    ] = Pruner.median,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Try the chosen trial on the test set, once, at the end.")
    ] = True,
    engine: Annotated[Engine, typer.Option("--engine", help="optuna, or ray for clusters.")] = Engine.optuna,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the search; runs have loop.seed.")] = 0,
    backbone: options.BackboneName = None,
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    overrides: options.Overrides = None,
    config: options.ConfigFile = None,
    root: options.Root = None,
    download: options.Download = None,
    output: FormatOption = OutputFormat.table,
) -> None:
    """Search hyper-parameters on validation samples; the test set is looked at once, for the chosen trial.

    The same command goes on where it was interrupted; run it on several machines with one --storage and they
    share the work.
    """
    from classmargin.recipes.out_folder import removed_unless_begun
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.session import download_data
    from classmargin.recipes.sweep.objective import parse_objective
    from classmargin.recipes.sweep.pages import notes_of, tables_of, verdict_of, write_result
    from classmargin.recipes.sweep.plan import SweepPlan, study_name
    from classmargin.recipes.sweep.result import to_dict
    from classmargin.recipes.sweep.run import WorkersFailedError, run_sweep
    from classmargin.recipes.sweep.space import parse_search

    flags: dict[str, dict[str, object]] = {
        "data": {
            "name": data,
            "fraction": fraction,
            "imbalance": imbalance,
            "root": None if root is None else str(root),
        },
        "backbone": {"name": backbone},
        "method": {"name": method},
        "loop": {"epochs": epochs},
    }
    wanted = parse_objective(objective)
    run = gather_config(flags=flags, overrides=overrides or (), preset=preset, file=config)
    parameters = parse_search(search or (), run)
    plan = SweepPlan(
        config=run,
        parameters=parameters,
        objective=wanted,
        trials=trials,
        study=study or study_name(run, parameters, wanted),
        storage=storage or f"sqlite:///{(out / 'study.db').resolve()}",
        seed=seed,
        pruner=pruner.value,
        keep_easy=keep_easy,
        easy_slack=easy_slack / 100,
    )
    if download:
        download_data(run)
    try:
        with removed_unless_begun(out):
            if engine is Engine.ray:
                from classmargin.recipes.sweep.ray_engine import run_ray_sweep

                result = run_ray_sweep(plan, out, jobs=jobs, reference=reference, test=test)
            else:
                result = run_sweep(plan, out, jobs=jobs, reference=reference, test=test)
    except WorkersFailedError as error:
        typer.echo(f"classmargin: error: {printable(str(error))}", err=True)
        raise typer.Exit(SOME_FAILED) from error
    write_result(result, out)
    show(
        output,
        verdict=verdict_of(result),
        tables=tables_of(result),
        notes=notes_of(result),
        data=to_dict(result),
    )
    typer.echo(f"written to {out}", err=True)
    if result.best is None:
        raise typer.Exit(SOME_FAILED)
