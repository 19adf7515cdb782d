"""Tables, once, and the ways to show them: terminal, Markdown, LaTeX (and HTML, by the templates).

A :class:`Table` holds raw values, and only the last step turns them into text, so every format shows the same digits.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from classmargin._printable import escape_markdown, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

# "percent" and "interval" hold fractions, shown as percent; "points" and "points_interval" differences of fractions; "value" numbers that
# are text already; "count" a number of things, or its mean over runs.
Kind = Literal["text", "value", "count", "percent", "points", "number", "p_value", "interval", "points_interval"]
NO_VALUE = "–"


@dataclass(frozen=True)
class Column:
    """One column."""

    key: str  # where a row keeps the value
    title: str  # words above the column
    kind: Kind = "text"
    hint: str = ""  # A longer explanation, for formats with room for it

    @property
    def is_text(self) -> bool:
        """Whether the column reads from the left (numbers are set flush right)."""
        return self.kind == "text"


def columns(text: str) -> tuple[Column, ...]:
    """Return columns that are written one per line: ``key | title | kind | hint``, without the last two where there are none."""
    lines = [[" ".join(field.split()) for field in line.split("|")] for line in text.strip().splitlines()]
    return tuple(Column(*fields) for fields in lines)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Table:
    """A titled table of raw values."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """Return the texts of one row, column by column."""
        return [format_value(row.get(column.key), column.kind) for column in self.columns]


def format_value(value: Any, kind: Kind) -> str:
    """Return ``value`` as a reader wants it."""
    if is_missing(value) or (kind in ("interval", "points_interval") and any(map(is_missing, value))):
        return NO_VALUE
    if kind == "interval":
        return f"{100 * value[0]:.1f}–{100 * value[1]:.1f}%"
    if kind == "points_interval":
        return f"{_format_points(value[0])} to {_format_points(value[1])}"
    if kind in ("text", "value"):
        return printable(str(value))
    if kind == "count":  # means over several runs need not be whole
        return f"{value:.1f}".removesuffix(".0")
    if kind == "percent":
        return f"{100 * float(value):.1f}%"
    if kind == "points":
        return _format_points(float(value))
    if kind == "p_value":
        return "<0.001" if float(value) < 0.001 else f"{float(value):.3f}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _format_points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding zero turns -0.0 into 0.0


def frame_rows(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a data frame as dictionaries, with ``low`` and ``high`` as a pair, too."""
    rows = [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
    if {"low", "high"} <= set(frame.columns):
        for row in rows:
            row["interval"] = (row["low"], row["high"])
    return rows


def is_missing(value: Any) -> bool:
    """Return whether there is nothing to show: ``None``, NaN or pandas' NA."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except TypeError:  # pandas.NA refuses to be a truth value; importing pandas to ask costs half a second
        return True


def to_rich(table: Table) -> RichTable:
    """Return the table for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    caption = Text(table.note) if table.note else None
    shown = RichTable(title=Text(table.title), caption=caption, box=box.SIMPLE_HEAD, title_style="bold")
    shown.title_justify = shown.caption_justify = "left"
    for column in table.columns:
        shown.add_column(Text(column.title), justify="left" if column.is_text else "right", overflow="fold")
    for row in table.rows:
        # Text objects, because a string would be read as markup: a class may be called "[red]".
        shown.add_row(*(Text(cell) for cell in table.cells(row)))
    return shown


def to_markdown(table: Table) -> str:
    """Return the table in Markdown (GitHub's pipes), with everything of the data escaped."""
    lines = [f"**{escape_markdown(table.title)}**", ""] if table.title else []
    head, *rows = (
        "| " + " | ".join(map(escape_markdown, cells)) + " |"
        for cells in ([column.title for column in table.columns], *map(table.cells, table.rows))
    )
    under = "|" + "|".join(":---" if column.is_text else "---:" for column in table.columns) + "|"
    lines += [head, under, *rows]
    if table.note:
        lines += ["", escape_markdown(table.note)]
    return "\n".join(lines)


def to_html(table: Table) -> str:
    """Return the table as a piece of HTML, with everything of the data escaped."""

    def line(tag: str, texts: Iterable[str]) -> str:
        cells = "".join(f"<{tag} style='text-align:left'>{html.escape(text)}</{tag}>" for text in texts)
        return f"<tr>{cells}</tr>"

    head = line("th", (column.title for column in table.columns))
    rows = "".join(line("td", table.cells(row)) for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{note}"


def to_latex(table: Table) -> str:
    """Return the table in LaTeX (package ``booktabs``), with everything of the data escaped."""
    alignment = "".join("l" if column.is_text else "r" for column in table.columns)
    head, *rows = (
        " & ".join(map(_escape_latex, cells)) + r" \\"
        for cells in ([column.title for column in table.columns], *map(table.cells, table.rows))
    )
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escape_latex(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", head, r"\midrule", *rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.note:
        lines.append(rf"\par\smallskip {_escape_latex(table.note)}")
    return "\n".join([*lines, r"\end{table}"])


_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: rf"\text{name}{{}}" for sign, name in {"~": "asciitilde", "^": "asciicircum", "|": "bar"}.items()},
    **{sign: rf"\text{name}{{}}" for sign, name in {"<": "less", ">": "greater", '"': "quotedbl"}.items()},
    **{letter: rf"$\{name}$" for letter, name in {"α": "alpha", "γ": "gamma", "δ": "delta"}.items()},
    **{letter: rf"$\{name}$" for letter, name in {"λ": "lambda", "Λ": "Lambda", "‖": "Vert"}.items()},
}
_LATEX |= {"∞": r"$\infty$", "→": r"$\rightarrow$", "²": "$^2$", "°": r"$^\circ$", "–": "--", "−": "$-$"}
_LATEX |= {"μ\u0302": r"$\hat{\mu}$", "c\u0304": r"$\bar{c}$"}  # letters with a combining accent count as one
_LATEX_SPECIAL = re.compile("|".join(map(re.escape, sorted(_LATEX, key=len, reverse=True))))


def _escape_latex(text: str) -> str:
    return _LATEX_SPECIAL.sub(lambda found: _LATEX[found[0]], text)


# Without a terminal there is no width to respect: a table in a pipe or a log is never broken or cut.
_PIPED_WIDTH = 10_000


def markdown_report(verdict: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return verdict (if there is one), tables and notes in Markdown."""
    parts = [*([escape_markdown(verdict)] if verdict else []), *(to_markdown(table) for table in tables)]
    if notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in notes))
    return "\n\n".join(parts)


def latex_report(verdict: str, tables: Sequence[Table], notes: Sequence[str] = ()) -> str:
    """Return the tables in LaTeX, with verdict and notes as comments."""
    comments = [f"% {printable(words)}" for words in (verdict, *notes)]
    return "\n".join(comments) + "\n\n" + "\n\n".join(to_latex(table) for table in tables)


def terminal(stream: IO[str] | None = None) -> Console:
    """Return a console that writes colours and fits the width only where a person looks at it."""
    from rich.console import Console

    options: Any = {"file": stream or sys.stdout, "highlight": False, "markup": False, "emoji": False}
    console = Console(**options)
    return console if console.is_terminal else Console(**options, width=_PIPED_WIDTH)


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
