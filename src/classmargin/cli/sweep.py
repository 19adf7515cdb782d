"""``classmargin sweep``: search hyper-parameters on validation, then test the chosen ones once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from classmargin.cli import _shared as shared

# ``optuna`` is what ``local`` was called.
SweepEngine = Literal["local", "ray", "optuna"]
Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "none"]


def sweep(
    *,
    out: Annotated[Path, Option(metavar="DIR")],
    method: Annotated[str, Option(metavar="NAME")] = "mr2",
    search: Annotated[list[str] | None, Option(metavar="KEY=VALUES")] = None,
    objective: Annotated[str, Option(metavar="NAME")] = "hard",
    trials: Annotated[int, Option(min=1, max=1_000_000)] = 30,
    jobs: shared.JobsOption = 1,
    storage: Annotated[str | None, Option(metavar="URL")] = None,
    study: str | None = None,
    keep_easy: Annotated[bool, Option("--keep-easy/--free-easy")] = True,
    easy_slack: Annotated[float, Option(min=0.0)] = 0.0,
    reference: Annotated[Path | None, Option(metavar="RUN")] = None,
    pruner: Pruner = "median",
    test: Annotated[bool, Option("--test/--no-test")] = True,
    sampler: Sampler = "tpe",
    engine: SweepEngine = "local",
    seed: Annotated[int, Option(min=0, max=2**32 - 1)] = 0,
    flags: shared.RunFlags,
    output: shared.FormatOption = "table",
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Search hyper-parameters on validation samples; the test set is looked at once, for the chosen trial.

    The same command resumes where it was interrupted; run it on several machines with one --storage and they
    share the work.

    Options:
        out: Folder of the sweep.
        method: Method (classmargin list methods).
        search: What varies: mean_margin=1,2,3 or optimizer.weight_decay=1e-5:1e-2:log. Plain names are hyper-parameters of the
            method. Default: the method's own ranges.
        objective: overall, easy, medium, hard, worst, or a mix like hard:0.7,overall:0.3.
        trials: Trials of the whole study.
        storage: Shared data base: sqlite:///FILE or postgresql://… (default: DIR/study.db).
        study: Name in the storage (default: by what is asked).
        keep_easy: Choose only trials whose easy third does not drop.
        easy_slack: Points that the easy third may lose.
        reference: Finished run to keep the easy third of (default: ERM).
        pruner: Stops trials that fall behind; never those of methods that train in stages.
        test: Try the chosen trial on the test set, once, at the end.
        sampler: tpe learns from ended trials; grid tries every combination of values.
        engine: local: processes on this machine; ray: a Ray cluster, or a local one.
        seed: Of the search; runs have loop.seed.
    """
    from classmargin.recipes import sweep_result as pages
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.out_folder import removed_unless_begun
    from classmargin.recipes.run_parts import download_data
    from classmargin.recipes.run_sweep import run_sweep
    from classmargin.recipes.sweep_space import parse_objective, parse_search
    from classmargin.recipes.sweep_study import SweepPlan, study_name

    serve_if_helper()
    wanted = parse_objective(objective)
    run = flags.gather(flags.tables(method=method))
    parameters = parse_search(search or (), run)
    plan = SweepPlan(
        config=run,
        parameters=parameters,
        objective=wanted,
        trials=trials,
        seed=seed,
        study=study or study_name(run, parameters, wanted),
        storage=storage or f"sqlite:///{(out / 'study.db').resolve()}",
        pruner=pruner,
        sampler=sampler,
        keep_easy=keep_easy,
        easy_slack=easy_slack / 100,
    )
    if flags.download:
        download_data(run)
    where = "ray" if engine == "ray" else "local"
    with removed_unless_begun(out):
        result = run_sweep(plan, out, engine=where, jobs=jobs, reference=reference, test=test)
    pages.write_result(result, out)
    tables, notes, data = pages.tables_of(result), pages.notes_of(result), pages.to_dict(result)
    shared.show(output, verdict=pages.verdict_of(result), tables=tables, notes=notes, data=data)
    typer.echo(f"written to {out}", err=True)
    if result.best is None:
        raise typer.Exit(shared.SOME_FAILED)
