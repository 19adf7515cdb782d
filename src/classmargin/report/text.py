"""Short reports as text: a verdict and a few tables, for terminals, Markdown and LaTeX."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from classmargin._printable import printable
from classmargin.report.tables import Table, escape_markdown, to_latex, to_markdown, to_rich

if TYPE_CHECKING:
    from rich.console import Console

# Without a terminal there is no width to respect: a table in a pipe or a log is never broken or cut.
_PIPED_WIDTH = 10_000


def markdown_report(verdict: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return verdict, tables and notes in Markdown."""
    parts = [escape_markdown(printable(verdict)), *(to_markdown(table) for table in tables)]
    if notes:
        parts.append("\n".join(f"- {escape_markdown(printable(note))}" for note in notes))
    return "\n\n".join(parts)


def latex_report(verdict: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return the tables in LaTeX, with verdict and notes as comments."""
    comments = [f"% {printable(words)}" for words in (verdict, *notes)]
    return "\n".join(comments) + "\n\n" + "\n\n".join(to_latex(table) for table in tables)


def terminal(stream: IO[str] | None = None) -> Console:
    """Return a console that writes colours and fits the width only where a person looks at it."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(file=stream, highlight=False, markup=False, emoji=False, width=_PIPED_WIDTH)
    return console


def print_report(verdict: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> None:
    """Print verdict, tables and notes to standard output."""
    from rich.text import Text

    console = terminal()
    console.print(Text(printable(verdict), style="bold"))
    for table in tables:
        console.print()
        console.print(to_rich(table))
    for note in notes:
        console.print(Text(f"· {printable(note)}", style="dim"))
