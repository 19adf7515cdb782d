"""The figures of a soak on the page of promises: ``python -m soak --page`` writes them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_figures(page: Path, records: list[Record]) -> None:
    """Put the totals of each part that ran to its end into the last column of its row.

    A row begins with the command of its part, ``| `python -m soak NAME` |``. Parts that were cut short or broke leave theirs as it is.
    """
    text = page.read_text(encoding="utf-8")
    for record in records:
        if "result" in record and "cut short" not in record:
            text = with_figures(text, f"python -m soak {record['part']}", figures_of(record))
    if all("result" in record and "cut short" not in record for record in records) and len(records) > 1:
        seconds = sum(record["seconds"] for record in records)
        words = f"all of it ran, every promise held; {seconds:.0f} s ({os.cpu_count()} cores)"
        text = with_figures(text, "make soak", words)
    page.write_text(text, encoding="utf-8")


def figures_of(record: Record) -> str:
    """Return the totals of a part as words.

    Example:
        >>> figures_of({"result": {"totals": {"kills survived": 90, "runs compared": 1}}})
        '90 kills survived; 1 runs compared'
    """
    return "; ".join(f"{value} {name}" for name, value in record["result"]["totals"].items())


def with_figures(text: str, command: str, figures: str) -> str:
    """Return the page with ``figures`` in the last cell of the row of ``command``.

    Raises:
        ValueError: There is no such row, or more than one.

    Example:
        >>> with_figures("| `make soak` | all of it | old |", "make soak", "new")
        '| `make soak` | all of it | new |'
    """
    row = re.compile(rf"^(\| `{re.escape(command)}` \|[^|\n]*\|)[^|\n]*\|$", re.MULTILINE)
    if len(row.findall(text)) != 1:
        raise ValueError(f"the page must have one row of `{command}`, got {len(row.findall(text))}")
    return row.sub(lambda found: f"{found[1]} {figures} |", text)
