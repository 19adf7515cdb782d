"""A short text report of an audit in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classmargin.evaluation.audit import Audit

# No round brackets: renderers with formulas take an escaped one for the start of a formula.
_SPECIAL = str.maketrans({character: "\\" + character for character in "\\`*_[]<>&#|~"})


def audit_markdown(audit: Audit, top: int) -> str:
    """Return headline numbers, the ``top`` worst classes and the notes."""
    lines = ["| | accuracy | interval |", "|---|---|---|"]
    for name in ("overall", "easy", "medium", "hard", "worst", "gap"):
        low, high = audit.interval(name)
        lines.append(f"| {name} | {percent(getattr(audit, name))} | {percent(low)} to {percent(high)} |")
    lines += ["", *_class_lines(audit, top), "", *(f"- {escape(note)}" for note in audit.notes)]
    return "\n".join(lines) + "\n"


def _class_lines(audit: Audit, top: int) -> list[str]:
    worst = audit.by_class[audit.by_class["n"] > 0].sort_values("accuracy", kind="stable").head(top)
    rows = [
        f"| {escape(row.class_name)} | {row.n} | {percent(row.accuracy)} | {percent(row.low)} to {percent(row.high)} "
        f"| {escape(row.verdict)} |"
        for row in worst.itertuples()
    ]
    rest = int((audit.by_class["n"] > 0).sum()) - len(rows)
    tail = [f"\n… and {rest} more classes."] if rest else []
    return ["| class | n | accuracy | interval | why |", "|---|---|---|---|---|", *rows, *tail]


def percent(value: Any) -> str:
    """Return a share as text, e.g. ``56.7 %``; a dash for NaN."""
    return "–" if value != value else f"{100 * value:.1f} %"


def escape(text: object) -> str:
    r"""Return ``text`` so that Markdown (and the HTML inside it) shows it literally, on one line.

    Example:
        >>> escape("a|b <c>")
        'a\\|b \\<c\\>'
    """
    return " ".join(str(text).split()).translate(_SPECIAL)
