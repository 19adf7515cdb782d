"""``classmargin plan``: how many test samples and seeds does it take to see a difference?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from classmargin.cli import _shared
from classmargin.cli._shared import OutputFormat


def plan(
    classes: Annotated[int, typer.Option("--classes", min=1, help="Number of classes.", show_default=False)],
    see: Annotated[
        float, typer.Option("--see", help="Difference to be seen, in percentage points.", show_default=False)
    ],
    accuracy: Annotated[
        float, typer.Option("--accuracy", help="Expected accuracy of a class, in (0, 1).")
    ] = 0.8,
    max_drop: Annotated[
        float, typer.Option("--max-drop", help="Drop that the gate tolerates, in percentage points.")
    ] = 0.0,
    churn: Annotated[
        float | None,
        typer.Option(
            "--churn",
            help="Share of samples that change sides between two equally good models (default: half of the errors).",
            show_default=False,
        ),
    ] = None,
    run_deviation: Annotated[
        float,
        typer.Option("--run-deviation", help="Standard deviation over training runs, in percentage points."),
    ] = 1.0,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Error rate of the gate and of the comparison.")
    ] = 0.05,
    power: Annotated[float, typer.Option("--power", help="Probability of seeing what is there.")] = 0.8,
    output: _shared.FormatOption = OutputFormat.table,
) -> None:
    """Say how many samples per class, and how many seeds, it takes to see a difference."""
    from classmargin.evaluation.planning import plan as make_plan
    from classmargin.report.tables import Column, Table

    found = make_plan(
        classes,
        accuracy=accuracy,
        see=see / 100,
        max_drop=max_drop / 100,
        churn=churn,
        run_deviation=run_deviation / 100,
        alpha=alpha,
        power=power,
    )
    rows = [
        {
            "aim": f"interval of a class accuracy of ± {see:g} points",
            "need": f"{found.interval_samples} samples per class",
        },
        {
            "aim": f"gate that catches a drop of {see:g} points in one class",
            "need": f"{found.gate_samples} samples per class",
        },
        {
            "aim": f"comparison of two methods that sees {see:g} points",
            "need": f"{found.seeds} seeds of each",
        },
    ]
    _shared.show(
        output,
        verdict=f"To see {see:g} points with {classes} classes: {found.gate_samples} samples per class, {found.seeds} seeds.",
        tables=[Table("Plan", (Column("aim", "For"), Column("need", "It takes")), rows)],
        notes=found.notes,
        data=asdict(found),
    )
