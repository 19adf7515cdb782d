"""``classmargin improve``: which remedy lifts the weak classes without hurting the rest, and how sure that is.

``classmargin demo`` is the same on the embedded data set with a small budget. Its settings were chosen on the validation samples of
cross-entropy alone, so that the baseline gets the benefit and need not be tuned here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from classmargin._printable import printable
from classmargin.cli import _shared as shared

if TYPE_CHECKING:
    from classmargin.recipes.improve.improvement import Improvement

DEMO_DATA = "fashion-mnist-mini"
DEMO_REMEDIES = ("mr2", "label-smoothing", "ensemble", "offsets")
DEMO_BUDGET = "12 runs"
DEMO_JOBS = 2
DEMO_SETTINGS: dict[str, dict[str, object]] = {
    "data": {"augmentation": "none"},
    "backbone": {"name": "small-cnn"},
    "loop": {"epochs": 15, "batch_size": 64},
    "optimizer": {"learning_rate": 0.1, "weight_decay": 5e-4},
    "schedule": {"warmup_epochs": 1.0},
    "machine": {"accelerator": "cpu"},
}


def improve(
    *,
    data: Annotated[str | None, Option(metavar="NAME|PATH")] = None,
    baseline: Annotated[str | None, Option(metavar="RUN|FILE|VAL,TEST")] = None,
    objective: Annotated[str, Option(metavar="NAME|FILE.csv")] = "hard",
    keep: Annotated[str, Option(metavar="NAME:POINTS")] = "easy:0.5",
    budget: Annotated[str, Option(metavar="30m|'20 runs'")] = "30m",
    remedies: Annotated[str, Option(metavar="default|all|A,B")] = "default",
    embeddings: bool = False,
    jobs: shared.JobsOption = 1,
    engine: shared.Engine = "local",
    out: Annotated[Path, Option(metavar="DIR")] = Path("runs/improve"),
    flags: shared.TrainingFlags,
    output: shared.FormatOption = "table",
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Try remedies for weak classes, choose on validation, test once, and say whether it is better, a trade, or nothing.

    An interrupted search resumes with the same command; finished runs are never lost.

    Options:
        data: Data set: a name (classmargin list data), a file or a folder.
        baseline: Your model: a run folder, predictions on the test set of --data, or predictions on validation and test
            (val.npz,test.npz; then nothing is trained).
        objective: What is to rise: hard, worst, overall, or a file of costs.
        keep: What must not lose more than so many points, beyond noise.
        budget: Time, or number of runs.
        remedies: What is tried (classmargin list remedies).
        embeddings: The data are a matrix of features: a perceptron on them (what features get anyway).
        out: Folder of runs and results; the same command resumes there.
    """
    from classmargin.recipes.improve.improving import improve as search
    from classmargin.training.config_reader import merge, parse_overrides

    if data is None and baseline is None:
        raise ValueError("--data must be a data set, or --baseline a run or predictions; got neither")
    if data is not None or "," not in str(baseline):  # two prediction files need no torch
        from classmargin.recipes.launched_ranks import serve_if_helper

        serve_if_helper()
    settings = merge(flags.tables(backbone=None), parse_overrides(flags.overrides or ()))
    found = search(
        data,
        baseline=baseline,
        objective=objective,
        keep=keep,
        budget=budget,
        remedies=remedies,
        embeddings=embeddings,
        backbone=flags.backbone,
        settings=settings,
        preset=flags.preset,
        jobs=jobs,
        engine=engine,
        out=out,
    )
    _tell(found, output)
    typer.echo(f"written to {out}", err=True)


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Look for a remedy for the weak classes of the embedded data (a few minutes) and write a page with the answer.

    Options:
        out: Folder of the runs; a second call resumes there.
    """
    from classmargin.recipes.improve.improvement_page import PAGE_FILE
    from classmargin.recipes.improve.improving import improve as search

    plan = f"{', '.join(DEMO_REMEDIES)} for {DEMO_DATA}: {DEMO_BUDGET}, {DEMO_JOBS} side by side"
    typer.echo(printable(f"{plan}; folder {out}"), err=True)
    found = search(
        DEMO_DATA, settings=DEMO_SETTINGS, remedies=DEMO_REMEDIES, budget=DEMO_BUDGET, jobs=DEMO_JOBS, out=out
    )
    _tell(found, "table")
    typer.echo(printable(f"the page is {out / PAGE_FILE}"), err=True)


def _tell(found: Improvement, output: shared.OutputFormat) -> None:
    from classmargin.recipes.improve.improvement_page import tables_of

    shared.show(output, verdict=found.verdict, tables=tables_of(found), notes=found.notes, data=found.to_dict())
