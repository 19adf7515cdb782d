"""What the report says about a comparison and about a gate: tables, and the decision of the gate where pipelines show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from classmargin._atomic import atomic_path
from classmargin._printable import escape_markdown, printable
from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.evaluation.release_gate import GateResult
from classmargin.report.audit_tables import HEADLINES, more_classes
from classmargin.report.tables import Column, Table, columns, frame_rows, is_missing, markdown_report

SUITE = "classmargin gate"
SHOWN_DIGITS = (("baseline", ".4f"), ("candidate", ".4f"), ("n", ".0f"), ("q_value", ".3g"))
VERDICT_WORDS = {"PASS": "passed", "FAIL": "failed", "CANNOT TELL": "cannot tell"}

CLASS_COLUMNS = columns("""
    class_name | Class
    n | n | count | Test samples of the class
    baseline | Baseline | percent | Accuracy of the baseline
    candidate | Candidate | percent | Accuracy of the candidate
    difference | Change | points | Candidate minus baseline, in percentage points
    gained_samples | Only candidate right | count | Samples that only the candidate classifies right
    lost_samples | Only baseline right | count | Samples that only the baseline classifies right
    p_value | p | p_value | Exact McNemar test
    q_value | q | p_value | p after Benjamini–Hochberg control over all classes
    outcome | Outcome | text | Gained or lost where q is small enough, otherwise it may be noise
""")
GATE_COLUMNS = columns("""
    class_name | Class
    n | n | count
    baseline | Baseline | percent
    candidate | Candidate | percent
    difference | Change | points
    p_value | p | p_value | One-sided exact McNemar test of the drop
    q_value | Adjusted p | p_value | p of the drop, adjusted by Holm for all tests
    q_value_minimum | Adjusted p, minimum | p_value | Exact binomial test against the minimum, adjusted by Holm
    reason | Reason
""")


def pairs_of(comparison: Comparison | ComparisonSet) -> tuple[Comparison, ...]:
    """Return the comparisons of every candidate with the baseline."""
    return comparison.comparisons if isinstance(comparison, ComparisonSet) else (comparison,)


def summary_table(comparison: Comparison | ComparisonSet) -> Table:
    """Return the headline values before and after, one row per value, or one per value of each of several candidates."""
    pairs = pairs_of(comparison)
    rows = [
        {**row, "model": pair.candidate_name, "words": HEADLINES[row["metric"]]}
        for pair in pairs
        for row in frame_rows(pair.summary)
    ]
    several = len(pairs) > 1
    shown = (
        *([Column("model", "Model")] if several else []),
        Column("words", "Accuracy of"),
        Column("baseline", pairs[0].baseline_name, "percent"),
        Column("candidate", "Value" if several else pairs[0].candidate_name, "percent"),
        Column("difference", "Change", "points"),
        Column("interval", "Interval of the change", "points_interval"),
    )
    note = "Changes are in percentage points."
    if several:
        note += " Each pair is measured on thirds of its own, so the first model's differ."
    return Table("Summary", shown, rows, note)


def change_table(comparison: Comparison, top: int | None = None) -> Table:
    """Return every class, greatest loss first, or the ``top`` classes with the smallest q value and how many more there are."""
    title, note, frame = "Classes", "", comparison.by_class.sort_values("difference", kind="stable")
    if top is not None:
        frame = comparison.by_class[comparison.by_class["n"] > 0]
        title, note = "Strongest changes", more_classes(max(len(frame) - top, 0))
        frame = frame.assign(size=-frame["difference"].abs())
        frame = frame.sort_values(["q_value", "p_value", "size"], kind="stable").head(top)
    shown = CLASS_COLUMNS
    if comparison.runs != (1, 1):
        hint = "t-test with the variance of samples and of runs"
        shown = tuple(replace(each, hint=hint) if each.key == "p_value" else each for each in shown)
    title = f"{title}, {comparison.candidate_name} against {comparison.baseline_name}"
    return Table(title, shown, frame_rows(frame), note)


def ranked_table(comparison: ComparisonSet) -> Table:
    """Return the candidates, largest overall gain first."""
    rows = frame_rows(comparison.ranked)
    for row in rows:
        row["words"] += f" {comparison.names[0]}"
        for name in ("overall", "hard"):
            row[f"{name}_interval"] = (row[f"{name}_low"], row[f"{name}_high"])
    shown = columns("""
        model | Model
        overall | Overall | points
        overall_interval | Interval | points_interval
        hard | Hard third | points
        hard_interval | Interval | points_interval
        words | Overall it is
    """)
    note = f"Changes in percentage points; intervals hold for all {len(rows)} candidates at once."
    return Table("Candidates by overall change", shown, rows, note)


def report_tables(comparison: Comparison | ComparisonSet, top: int) -> list[Table]:
    """Return the tables of the short report, for the terminal, Markdown and LaTeX."""
    tables = [summary_table(comparison), *(change_table(each, top) for each in pairs_of(comparison))]
    if isinstance(comparison, ComparisonSet) and len(comparison.comparisons) > 1:
        tables.insert(0, ranked_table(comparison))
    return tables


def gate_tables(result: GateResult, top: int) -> list[Table]:
    """Return the classes that came nearest to failing (or failed) and what the gate could have seen."""
    frame = result.by_class[result.by_class["n"] > 0]
    nearest = frame[["q_value", "q_value_minimum"]].min(axis=1)  # there is no second one without a minimum
    frame = frame.assign(passes=~frame["failed"].astype(bool), nearest=nearest)
    frame = frame.sort_values(["passes", "nearest", "p_value", "difference", "candidate"], kind="stable")
    failed = int((~frame["passes"]).sum())
    title = f"Classes that failed ({failed}) or came nearest to it" if failed else "Classes nearest to failing"
    rows = frame_rows(frame.head(top))
    # Without a baseline, or without a minimum, there is nothing in the columns about it.
    shown = [each for each in GATE_COLUMNS if each.is_text or any(not is_missing(row[each.key]) for row in rows)]
    power = columns("""
        drop | Drop | percent
        n | Samples of the class | count
        probability | Caught with probability | p_value
    """)
    tables = (
        Table(title, tuple(shown), rows, more_classes(len(frame) - len(rows))),
        Table("What this gate can see", power, frame_rows(result.power_table)),
    )
    return [table for table in tables if table.rows]


def write_junit(result: GateResult, path: str | Path) -> Path:
    """Write the gate as a JUnit file: a test for the overall accuracy and one per class, a failure for each reason."""
    present = frame_rows(result.by_class[result.by_class["n"] > 0])
    cases = [("overall accuracy", result.overall), *((f"class {row['class_name']}", row) for row in present)]
    failures = sum(bool(row["failed"]) for _, row in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts})
    for name, row in cases:
        case = ElementTree.SubElement(suite, "testcase", {"classname": SUITE, "name": _clean(name)})
        if row["failed"]:
            words = _clean(str(row["reason"]))
            ElementTree.SubElement(case, "failure", {"message": words, "type": "drop"}).text = words
        numbers = [f"{key} {row[key]:{digits}}" for key, digits in SHOWN_DIGITS if not is_missing(row[key])]
        ElementTree.SubElement(case, "system-out").text = ", ".join(numbers).replace("q_value", "adjusted p")
    ElementTree.SubElement(suite, "system-out").text = _clean("\n".join((result.power, *result.notes)))
    ElementTree.indent(root)
    with atomic_path(Path(path)) as file:
        ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)
    return Path(path)


def github_summary(result: GateResult, top: int = 10) -> str:
    """Return the gate as Markdown for the summary of a job."""
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
    """Return one workflow command per reason (``::error`` or ``::warning``), which GitHub shows beside the run."""
    kind = "error" if result.verdict == "FAIL" else "warning"
    # Names are data: a line break or a percent sign must not begin another command.
    escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    return [f"::{kind} title={SUITE}::{printable(reason).translate(escapes)}" for reason in result.reasons]


def _clean(text: str) -> str:
    """Return text without the control characters that XML forbids."""
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable())
