"""``classmargin demo``: ERM against MR² on the embedded data set, three seeds each, in a few minutes on two cores.

Nothing is downloaded. An interrupted demo resumes; a finished one shows its table again. Settings were chosen on the
validation samples of ERM alone, so that the baseline gets the benefit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable

METHODS = ("erm", "mr2")
SEEDS = 3
JOBS = 2
SETTINGS: dict[str, dict[str, object]] = {
    "data": {"name": "fashion-mnist-mini", "augmentation": "none"},
    "backbone": {"name": "small-cnn"},
    "loop": {"epochs": 15, "batch_size": 64},
    "optimizer": {"learning_rate": 0.1, "weight_decay": 5e-4},
    "schedule": {"warmup_epochs": 1.0},
    "machine": {"accelerator": "cpu"},
}
SOME_FAILED = 3


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the runs; a second call resumes there.")
    ] = Path("runs/demo"),
) -> None:
    """Train ERM and MR² side by side on the embedded data (a few minutes) and write a report."""
    from classmargin._checks import require_extra

    # Asked for before anything is trained: the report comes last.
    for package in ("lightning", "plotly", "jinja2"):
        require_extra(package, "demo", "classmargin demo")
    from classmargin.recipes.recipe_plan import plan_comparison
    from classmargin.recipes.record_pages import tables_of, verdict_of, write_comparison
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.run_recipe import compare_methods
    from classmargin.report.tables import print_report

    begin = time.monotonic()
    block = plan_comparison(
        gather_config(flags=SETTINGS), METHODS, SEEDS, out, {"mr2": {"preset": "recommended"}}
    )
    _say(f"ERM and MR² on fashion-mnist-mini, {SEEDS} seeds each, {JOBS} runs side by side; folder {out}")
    outcome = compare_methods(block, jobs=JOBS)
    written = write_comparison(outcome, out, title="ERM against MR² on fashion-mnist-mini")
    print_report(verdict_of(outcome.record), tables_of(outcome.record))
    _say(f"{time.monotonic() - begin:.0f} s; the report is {written[-1]}")
    for title, error in outcome.record.failed.items():
        _say(f"{title} failed: {error}")
    if outcome.record.failed:
        raise typer.Exit(SOME_FAILED)


def _say(line: str) -> None:
    typer.echo(printable(line), err=True)
