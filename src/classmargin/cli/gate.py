"""``classmargin gate``: may this model be released in place of that one?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from classmargin.cli import _shared
from classmargin.cli._shared import OutputFormat

# The answer "no" of a gate; bad input is 2.
FAILED = 1
MOST_REASONS = 5


def gate(
    candidate: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help=_shared.PREDICTIONS_HELP, show_default=False)
    ],
    baseline: Annotated[
        Path,
        typer.Option("--baseline", help="Predictions of the model in use, same samples.", show_default=False),
    ],
    max_drop: Annotated[
        float, typer.Option("--max-drop", help="Largest tolerated drop of accuracy (0.02 = 2 points).")
    ] = 0.02,
    min_worst: Annotated[
        float | None,
        typer.Option(
            "--min-worst",
            help="Fail if a class is below this accuracy and its samples support that; others below it are named in a note.",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Error rate after control over all classes.")
    ] = 0.05,
    output: _shared.FormatOption = OutputFormat.table,
    class_names: _shared.ClassNamesOption = None,
    num_classes: _shared.NumClassesOption = None,
    top: _shared.TopOption = 10,
) -> None:
    """Fail (exit code 1) on drops, or classes below a minimum, that the data support; pass otherwise."""
    from classmargin.evaluation.gate import gate as decide
    from classmargin.report.comparison_view import gate_tables

    old = _shared.audit_file(baseline, class_names, num_classes=num_classes)
    new = _shared.audit_file(candidate, class_names, num_classes=num_classes)
    result = decide(new, old, max_drop=max_drop, min_worst=min_worst, alpha=alpha)
    verdict = "PASS" if result.passed else f"FAIL: {_in_short(result.reasons)}"
    _shared.show(
        output,
        verdict=verdict,
        tables=gate_tables(result, top),
        notes=[result.power, *result.notes],
        data={"verdict": verdict, **result.to_dict()},
    )
    if not result.passed:
        raise typer.Exit(FAILED)


def _in_short(reasons: Sequence[str]) -> str:
    rest = len(reasons) - MOST_REASONS
    return "; ".join(reasons[:MOST_REASONS]) + (f"; and {rest} more" if rest > 0 else "")
