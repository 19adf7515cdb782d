"""``classmargin sweep``: search hyper-parameters on validation, then test the chosen ones once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, MaxMemoryOption, OutputFormat, show


class Engine(str, Enum):
    """Where trials are trained; ``optuna`` is what ``local`` was called."""

    local = "local"
    ray = "ray"
    optuna = "optuna"


class Sampler(str, Enum):
    """What chooses the values of a trial."""

    tpe = "tpe"
    random = "random"
    grid = "grid"


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
    trials: Annotated[
        int, typer.Option("--trials", min=1, max=1_000_000, help="Trials of the whole study.")
    ] = 30,
    jobs: options.Jobs = 1,
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
    sampler: Annotated[
        Sampler,
        typer.Option(
            "--sampler", help="tpe learns from ended trials; grid tries every combination of values."
        ),
    ] = Sampler.tpe,
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine", help="local: processes on this machine; ray: a Ray cluster, or a local one."
        ),
    ] = Engine.local,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the search; runs have loop.seed.")
    ] = 0,
    backbone: options.BackboneName = None,
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    overrides: options.Overrides = None,
    devices: options.Devices = None,
    config: options.ConfigFile = None,
    root: options.Root = None,
    download: options.Download = None,
    output: FormatOption = OutputFormat.table,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Search hyper-parameters on validation samples; the test set is looked at once, for the chosen trial.

    The same command resumes where it was interrupted; run it on several machines with one --storage and they
    share the work.
    """
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.out_folder import removed_unless_begun
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.run_parts import download_data
    from classmargin.recipes.run_sweep import run_sweep
    from classmargin.recipes.sweep_result import notes_of, tables_of, to_dict, verdict_of, write_result
    from classmargin.recipes.sweep_space import parse_objective, parse_search
    from classmargin.recipes.sweep_study import SweepPlan, study_name

    serve_if_helper()
    flags = options.run_tables(
        data=data,
        backbone=backbone,
        method=method,
        epochs=epochs,
        fraction=fraction,
        imbalance=imbalance,
        root=root,
        devices=devices,
    )
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
        sampler=sampler.value,
    )
    if download:
        download_data(run)
    where = "ray" if engine is Engine.ray else "local"
    with removed_unless_begun(out):
        result = run_sweep(plan, out, engine=where, jobs=jobs, reference=reference, test=test)
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
        raise typer.Exit(options.SOME_FAILED)
