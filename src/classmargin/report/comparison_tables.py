"""What the report says about a comparison and about a gate: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.evaluation.release_gate import GateResult
from classmargin.report.audit_tables import HEADLINES, more_classes
from classmargin.report.tables import Column, Table, frame_rows, is_missing

CLASS_COLUMNS = (
    Column("class_name", "Class"),
    Column("n", "n", "count", "Test samples of the class"),
    Column("baseline", "Baseline", "percent", "Accuracy of the baseline"),
    Column("candidate", "Candidate", "percent", "Accuracy of the candidate"),
    Column("difference", "Change", "points", "Candidate minus baseline, in percentage points"),
    Column(
        "gained_samples", "Only candidate right", "count", "Samples that only the candidate classifies right"
    ),
    Column("lost_samples", "Only baseline right", "count", "Samples that only the baseline classifies right"),
    Column("p_value", "p", "p_value", "Exact McNemar test"),
    Column("q_value", "q", "p_value", "p after Benjamini–Hochberg control over all classes"),
    Column("outcome", "Outcome", "text", "Gained or lost where q is small enough, otherwise it may be noise"),
)


def pairs_of(comparison: Comparison | ComparisonSet) -> tuple[Comparison, ...]:
    """Return the comparisons of every candidate with the baseline."""
    return comparison.comparisons if isinstance(comparison, ComparisonSet) else (comparison,)


def summary_table(comparison: Comparison | ComparisonSet) -> Table:
    """Return the headline values before and after, one row per value, or a value of each candidate."""
    pairs = pairs_of(comparison)
    if len(pairs) == 1:
        return pair_summary_table(pairs[0])
    rows = [
        {"model": pair.candidate_name, **_summary_row(row)}
        for pair in pairs
        for row in frame_rows(pair.summary)
    ]
    columns = (
        Column("model", "Model"),
        Column("words", "Accuracy of"),
        Column("baseline", pairs[0].baseline_name, "percent"),
        Column("candidate", "Value", "percent"),
        Column("difference", "Change", "points"),
        Column("interval", "Interval of the change", "points_interval"),
    )
    note = "Changes are in percentage points. Each pair is measured on thirds of its own, so the first model's differ."
    return Table("Summary", columns, rows, note)


def _summary_row(row: dict[str, Any]) -> dict[str, Any]:
    interval = None if is_missing(row["low"]) else (row["low"], row["high"])
    return {**row, "words": HEADLINES.get(row["metric"], row["metric"]), "interval": interval}


def pair_summary_table(comparison: Comparison) -> Table:
    """Return the headline values of two models side by side, one row per value."""
    rows = [_summary_row(row) for row in frame_rows(comparison.summary)]
    columns = (
        Column("words", "Accuracy of"),
        Column("baseline", comparison.baseline_name, "percent"),
        Column("candidate", comparison.candidate_name, "percent"),
        Column("difference", "Change", "points"),
        Column("interval", "Interval of the change", "points_interval"),
    )
    return Table("Summary", columns, rows, "Changes are in percentage points.")


def change_table(comparison: Comparison) -> Table:
    """Return every class, greatest loss first, with the change of its accuracy and what to think of it."""
    title = f"Classes, {comparison.candidate_name} against {comparison.baseline_name}"
    rows = frame_rows(comparison.by_class.sort_values("difference", kind="stable"))
    return Table(title, _class_columns(comparison), rows)


def _class_columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns of the classes; several runs are tested differently from one run per model."""
    if comparison.runs == (1, 1):
        return CLASS_COLUMNS
    hint = "t-test with the variance of samples and of runs"
    return tuple(
        replace(column, hint=hint) if column.key == "p_value" else column for column in CLASS_COLUMNS
    )


def top_changes_table(comparison: Comparison, top: int) -> Table:
    """Return the ``top`` classes with the smallest q value, and how many more there are."""
    frame = comparison.by_class
    frame = frame[frame["n"] > 0]
    strongest = frame.assign(size=-frame["difference"].abs()).sort_values(
        ["q_value", "p_value", "size"], kind="stable"
    )
    note = more_classes(len(frame) - min(top, len(frame)))
    title = f"Strongest changes, {comparison.candidate_name} against {comparison.baseline_name}"
    return Table(title, _class_columns(comparison), frame_rows(strongest.head(top)), note)


def ranked_table(comparison: ComparisonSet) -> Table:
    """Return the candidates, largest overall gain first."""
    rows = [
        {
            **row,
            "overall_interval": (row["overall_low"], row["overall_high"]),
            "hard_interval": None if is_missing(row["hard_low"]) else (row["hard_low"], row["hard_high"]),
            "words": f"{row['words']} {comparison.names[0]}",
        }
        for row in frame_rows(comparison.ranked)
    ]
    columns = (
        Column("model", "Model"),
        Column("overall", "Overall", "points"),
        Column("overall_interval", "Interval", "points_interval"),
        Column("hard", "Hard third", "points"),
        Column("hard_interval", "Interval", "points_interval"),
        Column("words", "Overall it is"),
    )
    note = f"Changes in percentage points; intervals hold for all {len(rows)} candidates at once."
    return Table("Candidates by overall change", columns, rows, note)


def report_tables(comparison: Comparison | ComparisonSet, top: int) -> list[Table]:
    """Return the tables of the short report, for the terminal, Markdown and LaTeX."""
    changes = [top_changes_table(each, top) for each in pairs_of(comparison)]
    tables = [summary_table(comparison), *changes]
    if isinstance(comparison, ComparisonSet) and len(comparison.comparisons) > 1:
        tables.insert(0, ranked_table(comparison))
    return tables


def gate_tables(result: GateResult, top: int) -> list[Table]:
    """Return the classes that came nearest to failing (or failed) and what the gate could have seen."""
    minimum = Column(
        "q_value_minimum",
        "Adjusted p, minimum",
        "p_value",
        "Exact binomial test against the minimum, adjusted by Holm",
    )
    columns = (
        Column("class_name", "Class"),
        Column("n", "n", "count"),
        Column("baseline", "Baseline", "percent"),
        Column("candidate", "Candidate", "percent"),
        Column("difference", "Change", "points"),
        Column("p_value", "p", "p_value", "One-sided exact McNemar test of the drop"),
        Column("q_value", "Adjusted p", "p_value", "p of the drop, adjusted by Holm for all tests"),
        *((minimum,) if result.min_worst is not None else ()),
        Column("reason", "Reason"),
    )
    frame = result.by_class[result.by_class["n"] > 0]
    nearest = frame[["q_value", "q_value_minimum"]].min(axis=1)  # there is no second one without a minimum
    frame = frame.assign(passes=~frame["failed"].astype(bool), nearest=nearest)
    frame = frame.sort_values(["passes", "nearest", "p_value", "difference", "candidate"], kind="stable")
    failed = int((~frame["passes"]).sum())
    title = (
        f"Classes that failed ({failed}) or came nearest to it" if failed else "Classes nearest to failing"
    )
    rows = frame_rows(frame.head(top))
    columns = tuple(
        column for column in columns if column.is_text or any(not is_missing(row[column.key]) for row in rows)
    )
    note = more_classes(len(frame) - len(rows))
    power = Table(
        "What this gate can see",
        (
            Column("drop", "Drop", "percent"),
            Column("n", "Samples of the class", "count"),
            Column("probability", "Caught with probability", "p_value"),  # a tiny one needs no digits either
        ),
        frame_rows(result.power_table),
    )
    return [table for table in (Table(title, columns, rows, note), power) if table.rows]
