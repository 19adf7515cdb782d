"""``classmargin plan``: how many test samples and seeds does it take to see a difference?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from classmargin.cli._options import FormatOption, OutputFormat
from classmargin.cli._shared import show


def plan(
    *,
    classes: Annotated[int, Option(min=1)],
    see: float,
    accuracy: float = 0.8,
    max_drop: float = 0.0,
    churn: float | None = None,
    run_deviation: float = 1.0,
    alpha: float = 0.05,
    power: float = 0.8,
    output: FormatOption = OutputFormat.table,
) -> None:
    """Say how many samples per class, and how many seeds, it takes to see a difference.

    Options:
        classes: Number of classes.
        see: Difference to be seen, in percentage points.
        accuracy: Expected accuracy of a class, in (0, 1).
        max_drop: Drop that the gate tolerates, in percentage points.
        churn: Share of samples that change sides between two equally good models (default: half of the errors).
        run_deviation: Standard deviation over training runs, in percentage points.
        alpha: Error rate of the gate and of the comparison.
        power: Probability of seeing what is there.
    """
    from classmargin.evaluation.planning import plan as make_plan
    from classmargin.report.tables import Column, Table

    found = make_plan(
        classes, accuracy=accuracy, see=see / 100, max_drop=max_drop / 100, churn=churn,
        run_deviation=run_deviation / 100, alpha=alpha, power=power,
    )  # fmt: skip
    aims = (
        (f"interval of a class accuracy of ± {see:g} points", f"{found.interval_samples} samples per class"),
        (
            f"gate that catches a drop of {see:g} points in one class",
            f"{found.gate_samples} samples per class",
        ),
        (f"comparison of two methods that sees {see:g} points", f"{found.seeds} seeds of each"),
    )
    rows = [{"aim": aim, "need": need} for aim, need in aims]
    show(
        output,
        verdict=f"To see {see:g} points with {classes} classes: {found.gate_samples} samples per class, {found.seeds} seeds.",
        tables=[Table("Plan", (Column("aim", "For"), Column("need", "It takes")), rows)],
        notes=found.notes,
        data=asdict(found),
    )
