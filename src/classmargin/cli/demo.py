"""``classmargin demo``: ``classmargin improve`` on the embedded data set with a small budget, in a few minutes on two cores.

Nothing is downloaded. An interrupted demo resumes; a finished one shows its answer again. Settings were chosen on the validation
samples of cross-entropy alone, so that the baseline gets the benefit and need not be tuned here.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable

DATA = "fashion-mnist-mini"
REMEDIES = ("mr2", "label-smoothing", "ensemble", "offsets")
BUDGET = "12 runs"
JOBS = 2
SETTINGS: dict[str, dict[str, object]] = {
    "data": {"augmentation": "none"},
    "backbone": {"name": "small-cnn"},
    "loop": {"epochs": 15, "batch_size": 64},
    "optimizer": {"learning_rate": 0.1, "weight_decay": 5e-4},
    "schedule": {"warmup_epochs": 1.0},
    "machine": {"accelerator": "cpu"},
}


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the runs; a second call resumes there.")
    ] = Path("runs/demo"),
) -> None:
    """Look for a remedy for the weak classes of the embedded data (a few minutes) and write a page with the answer."""
    from classmargin._checks import require_extra

    # Asked for before anything is trained: the page comes last.
    for package in ("lightning", "plotly", "jinja2"):
        require_extra(package, "demo", "classmargin demo")
    from classmargin.cli.improve import tell
    from classmargin.recipes.improve.improvement_page import PAGE_FILE
    from classmargin.recipes.improve.improving import improve

    begin = time.monotonic()
    _say(f"{', '.join(REMEDIES)} for {DATA}: {BUDGET}, {JOBS} side by side; folder {out}")
    found = improve(DATA, settings=SETTINGS, remedies=REMEDIES, budget=BUDGET, jobs=JOBS, out=out)
    tell(found)
    _say(f"{time.monotonic() - begin:.0f} s; the page is {out / PAGE_FILE}")


def _say(line: str) -> None:
    typer.echo(printable(line), err=True)
