"""The decision of the gate where pipelines show it: a JUnit file (one test per class) and a Markdown summary of a job.

classmargin gate new.csv --baseline old.csv --junit gate.xml --summary "$GITHUB_STEP_SUMMARY"
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from classmargin._atomic import atomic_path
from classmargin._printable import printable
from classmargin.evaluation.release_gate import GateResult

SUITE = "classmargin gate"
VERDICT_WORDS = {"PASS": "passed", "FAIL": "failed", "CANNOT TELL": "cannot tell"}


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
    from classmargin.report.comparison_tables import gate_tables

    lines = [f"### Gate: {VERDICT_WORDS[result.verdict]}", ""]
    lines += [f"- {_cell(reason)}" for reason in result.reasons] + [""]
    for table in gate_tables(result, top)[:1]:
        keys = [column.key for column in table.columns]
        lines += [
            f"**{_cell(table.title)}**",
            "",
            "| " + " | ".join(column.title for column in table.columns) + " |",
        ]
        lines += ["|" + "---|" * len(keys)]
        lines += ["| " + " | ".join(_cell(row.get(key)) for key in keys) + " |" for row in table.rows]
    lines += ["", _cell(result.power), *(_cell(note) for note in result.notes), ""]
    return "\n".join(lines) + "\n"


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


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # Names are data: no cell may end a table, open a tag or a link.
    text = printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("[", "\\[").replace("`", "\\`")
