"""``classmargin gate``: may this model be released in place of that one? ``classmargin plan``: how many samples and seeds tell that?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Option

from classmargin.cli import _shared as shared

# The answers of a gate that is not passed; bad input is 2.
EXIT_CODES = {"PASS": 0, "FAIL": 1, "CANNOT TELL": 3}
MOST_REASONS = 5
GateFormat = Literal["table", "json", "markdown", "latex", "github"]


def gate(
    candidate: Path,
    *,
    baseline: Path | None = None,
    max_drop: float = 0.02,
    min_worst: float | None = None,
    alpha: float = 0.05,
    must_see: float | None = None,
    allow_blind: bool = False,
    no_drop_beyond: float | None = None,
    output: Annotated[GateFormat, Option("--format")] = "table",
    class_names: shared.ClassNamesOption = None,
    num_classes: shared.NumClassesOption = None,
    top: shared.TopOption = 10,
    max_memory: shared.MaxMemoryOption = None,
    junit: Annotated[Path | None, Option(metavar="FILE.xml")] = None,
    summary: Annotated[Path | None, Option(metavar="FILE.md")] = None,
) -> None:
    """PASS (exit code 0), FAIL (1) on drops beyond the limit that the data show, CANNOT TELL (3) where samples are too few.

    Options:
        candidate: Predictions: .npz (labels and logits, probabilities or predictions), .parquet or .csv (columns label and
            logit_<class> or p_<class> for every class, or prediction), or a run folder.
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
    old = None if baseline is None else shared.read(baseline, class_names).audit(num_classes=num_classes)
    new = shared.read(candidate, class_names).audit(num_classes=num_classes)
    result = decide(
        new,
        old,
        max_drop=max_drop,
        min_worst=min_worst,
        must_see=must_see,
        no_drop_beyond=no_drop_beyond,
        allow_blind=allow_blind,
        alpha=alpha,
    )
    page = summary or (os.environ.get("GITHUB_STEP_SUMMARY") if output == "github" else None)
    if junit is not None:
        pages.write_junit(result, junit)
    if page:
        pages.append_summary(result, page, top)
    verdict = result.verdict + (f": {_in_short(result.reasons)}" if result.reasons else "")
    if output == "github":
        for line in pages.github_annotations(result):
            typer.echo(line)
        if not page:
            typer.echo(pages.github_summary(result, top))
        typer.echo(verdict)
    else:
        # The sentence is for people; the field "verdict" of the result is the one for programs.
        data = {**result.to_dict(), "sentence": verdict}
        tables, notes = pages.gate_tables(result, top), [result.power, *result.notes]
        shared.show(output, verdict=verdict, tables=tables, notes=notes, data=data)
    if EXIT_CODES[result.verdict]:
        raise typer.Exit(EXIT_CODES[result.verdict])


def _in_short(reasons: Sequence[str]) -> str:
    rest = len(reasons) - MOST_REASONS
    return "; ".join([*reasons[:MOST_REASONS], *([f"and {rest} more"] if rest > 0 else [])])


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
    output: shared.FormatOption = "table",
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
    from classmargin.report.tables import Table, columns

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
    needs = {
        f"interval of a class accuracy of ± {see:g} points": f"{found.interval_samples} samples per class",
        f"gate that catches a drop of {see:g} points in one class": f"{found.gate_samples} samples per class",
        f"comparison of two methods that sees {see:g} points": f"{found.seeds} seeds of each",
    }
    rows = [{"aim": aim, "need": need} for aim, need in needs.items()]
    verdict = (
        f"To see {see:g} points with {classes} classes: {found.gate_samples} samples per class, {found.seeds} seeds."
    )
    table = Table("Plan", columns("aim | For\nneed | It takes"), rows)
    shared.show(output, verdict=verdict, tables=[table], notes=found.notes, data=asdict(found))
