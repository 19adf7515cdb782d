"""``classmargin gate``: may this model be released in place of that one? ``classmargin plan``: how many samples and seeds tell that?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from classmargin.cli import _options as options
from classmargin.cli import _shared

# The answers of a gate that is not passed; bad input is 2.
EXIT_CODES = {"PASS": 0, "FAIL": 1, "CANNOT TELL": 3}
MOST_REASONS = 5


class GateFormat(str, Enum):
    """How the decision is printed."""

    table, json, markdown, latex, github = "table", "json", "markdown", "latex", "github"


def gate(
    candidate: options.PredictionsFile,
    *,
    baseline: Path | None = None,
    max_drop: float = 0.02,
    min_worst: float | None = None,
    alpha: float = 0.05,
    must_see: float | None = None,
    allow_blind: bool = False,
    no_drop_beyond: float | None = None,
    output: Annotated[GateFormat, Option("--format")] = GateFormat.table,
    class_names: options.ClassNamesOption = None,
    num_classes: options.NumClassesOption = None,
    top: options.TopOption = 10,
    max_memory: options.MaxMemoryOption = None,
    junit: Annotated[Path | None, Option(metavar="FILE.xml")] = None,
    summary: Annotated[Path | None, Option(metavar="FILE.md")] = None,
) -> None:
    """PASS (exit code 0), FAIL (1) on drops beyond the limit that the data show, CANNOT TELL (3) where samples are too few.

    Options:
        baseline: Predictions of the model in use, same samples; without them only --min-worst decides.
        max_drop: Largest tolerated drop of accuracy (0.02 = 2 points).
        min_worst: Fail if a class is below this accuracy and its samples support that; others below it are named in a note.
        alpha: Error rate after control over all classes.
        must_see: Drop that must be caught with probability 0.8 in a class of median size, or the answer is CANNOT TELL (default:
            --max-drop plus 0.1).
        allow_blind: Pass (code 0) even when such a drop could not be seen.
        no_drop_beyond: Non-inferiority: pass only if every class is shown not to have dropped by more than this.
        output: How to print the results; github: annotations and a summary.
        junit: Also write a JUnit file, one test per class.
        summary: Also append a Markdown summary, e.g. to the file that GITHUB_STEP_SUMMARY names.
    """
    from classmargin.evaluation.release_gate import gate as decide
    from classmargin.report import comparison_tables as pages

    if baseline is None and min_worst is None:
        raise ValueError("give --baseline or --min-worst, got neither")
    old = None if baseline is None else _shared.audit_file(baseline, class_names, num_classes=num_classes)
    new = _shared.audit_file(candidate, class_names, num_classes=num_classes)
    result = decide(
        new, old, max_drop=max_drop, min_worst=min_worst, must_see=must_see,
        no_drop_beyond=no_drop_beyond, allow_blind=allow_blind, alpha=alpha,
    )  # fmt: skip
    if junit is not None:
        pages.write_junit(result, junit)
    if summary is not None:
        pages.append_summary(result, summary, top)
    verdict = result.verdict + (f": {_in_short(result.reasons)}" if result.reasons else "")
    if output is GateFormat.github:
        for line in pages.github_annotations(result):
            typer.echo(line)
        step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if step_summary and summary is None:
            pages.append_summary(result, step_summary, top)
        elif summary is None:
            typer.echo(pages.github_summary(result, top))
        typer.echo(verdict)
    else:
        _shared.show(
            options.OutputFormat(output.value),
            verdict=verdict,
            tables=pages.gate_tables(result, top),
            notes=[result.power, *result.notes],
            # The sentence for people; the field "verdict" of the result is the one for programs.
            data={**result.to_dict(), "sentence": verdict},
        )
    if EXIT_CODES[result.verdict]:
        raise typer.Exit(EXIT_CODES[result.verdict])


def _in_short(reasons: Sequence[str]) -> str:
    rest = len(reasons) - MOST_REASONS
    return "; ".join(reasons[:MOST_REASONS]) + (f"; and {rest} more" if rest > 0 else "")


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
    output: options.FormatOption = options.OutputFormat.table,
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
    from classmargin.evaluation.release_gate import plan as make_plan
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
    _shared.show(
        output,
        verdict=f"To see {see:g} points with {classes} classes: {found.gate_samples} samples per class, {found.seeds} seeds.",
        tables=[Table("Plan", (Column("aim", "For"), Column("need", "It takes")), rows)],
        notes=found.notes,
        data=asdict(found),
    )
