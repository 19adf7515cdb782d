"""What the report says about a comparison and about a gate: tables, and the decision of the gate where pipelines show it.

classmargin gate new.csv --baseline old.csv --junit gate.xml --summary "$GITHUB_STEP_SUMMARY"
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from classmargin._atomic import atomic_path
from classmargin._printable import escape_markdown, printable
from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.evaluation.release_gate import GateResult
from classmargin.report.audit_tables import HEADLINES, more_classes
from classmargin.report.tables import Column, Table, frame_rows, is_missing, markdown_report

SUITE = "classmargin gate"
VERDICT_WORDS = {"PASS": "passed", "FAIL": "failed", "CANNOT TELL": "cannot tell"}

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


def write_junit(result: GateResult, path: str | Path) -> Path:
    """Write the gate as a JUnit file: a test for the overall accuracy and one per class, a failure for each reason.

    Args:
        result: Decision of :func:`classmargin.evaluation.release_gate.gate`.
        path: File to write.

    Example:
        >>> import tempfile
        >>> from classmargin.evaluation import audit
        >>> from classmargin.evaluation.release_gate import gate
        >>> old = audit([0, 1] * 50, predictions=[0, 1] * 50, num_classes=2, bootstrap=0)
        >>> file = write_junit(gate(old, old), Path(tempfile.mkdtemp()) / "gate.xml")
        >>> ElementTree.parse(file).getroot().get("tests")
        '3'
    """
    cases: list[tuple[str, dict[str, Any]]] = [("overall accuracy", dict(result.overall))]
    present = result.by_class[result.by_class["n"] > 0]
    cases += [
        (f"class {row['class_name']}", {str(key): value for key, value in row.items()})
        for row in present.to_dict("records")
    ]
    failures = sum(bool(row["failed"]) for _, row in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    for name, row in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": SUITE, "name": _clean(name)})
        if row["failed"]:
            words = _clean(str(row["reason"]))
            ElementTree.SubElement(case, "failure", {"message": words, "type": "drop"}).text = words
        ElementTree.SubElement(case, "system-out").text = _accuracies(row)
    ElementTree.SubElement(suite, "system-out").text = _clean("\n".join((result.power, *result.notes)))
    ElementTree.indent(root)
    with atomic_path(Path(path)) as file:
        ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    return Path(path)


def github_summary(result: GateResult, top: int = 10) -> str:
    """Return the gate as Markdown for the summary of a job.

    Args:
        result: Decision of the gate.
        top: Most classes in the table, those that failed or came nearest to it.
    """
    verdict = f"### Gate: {VERDICT_WORDS[result.verdict]}"
    reasons = [f"- {escape_markdown(reason)}" for reason in result.reasons]
    report = markdown_report("", gate_tables(result, top)[:1], [result.power, *result.notes])
    return "\n".join([verdict, "", *reasons, "", report, ""])


def append_summary(result: GateResult, path: str | Path, top: int = 10) -> Path:
    """Append the gate as Markdown to a file, made if missing, e.g. the one that ``GITHUB_STEP_SUMMARY`` names."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(github_summary(result, top))
    return Path(path)


def github_annotations(result: GateResult) -> list[str]:
    """Return one workflow command per reason (``::error`` or ``::warning``), which GitHub shows beside the run.

    Example:
        >>> from classmargin.evaluation import audit, gate
        >>> old = audit([0, 1] * 3, predictions=[0, 1] * 3, num_classes=2, bootstrap=0)
        >>> github_annotations(gate(old, old))[0][:35]
        '::warning title=classmargin gate::a'
    """
    kind = "error" if result.verdict == "FAIL" else "warning"
    return [f"::{kind} title={SUITE}::{_command_text(reason)}" for reason in result.reasons]


def _command_text(text: str) -> str:
    # Names are data: a line break or a percent sign must not begin another command.
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _accuracies(row: dict[str, Any]) -> str:
    values = [("baseline", ".4f"), ("candidate", ".4f"), ("n", ".0f"), ("q_value", ".3g")]
    words = [f"{key} {row[key]:{digits}}" for key, digits in values if row[key] == row[key]]
    return ", ".join(words).replace("q_value", "adjusted p")


def _clean(text: str) -> str:
    """Return text without the control characters that XML forbids."""
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable())
