"""Tables, once, and the ways to show them: terminal, Markdown, LaTeX (and HTML, by the templates).

A :class:`Table` holds raw values; a column says what kind of value it holds, and only the last step turns values into text. So every
format shows the same digits. JSON has no tables: it gets the unrounded values of the result itself.
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

Kind = Literal[
    "text", "value", "count", "percent", "points", "number", "p_value", "interval", "points_interval"
]
NO_VALUE = "–"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: Where a row keeps the value.
        title: Words above the column.
        kind: What the value is: ``percent`` and ``interval`` hold fractions in [0, 1] shown as percent,
            ``points`` and ``points_interval`` differences shown in percentage points with a sign,
            ``value`` a number that is text already (a column of mixed kinds), ``count`` a number of things, or
            its mean over runs, with one decimal where it is not whole.
        hint: A longer explanation, for formats with room for it.
    """

    key: str
    title: str
    kind: Kind = "text"
    hint: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the column reads from the left (numbers are set flush right)."""
        return self.kind == "text"


@dataclass(frozen=True)
class Table:
    """A titled table of raw values.

    Example:
        >>> table = Table("Classes", (Column("name", "Class"), Column("accuracy", "Accuracy", "percent")),
        ...               [{"name": "cat", "accuracy": 0.5}])
        >>> print(to_markdown(table))
        **Classes**
        <BLANKLINE>
        | Class | Accuracy |
        |:---|---:|
        | cat | 50.0% |
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """Return the texts of one row, column by column."""
        return [format_value(row.get(column.key), column.kind) for column in self.columns]


def format_value(value: Any, kind: Kind) -> str:
    """Return ``value`` as a reader wants it.

    Example:
        >>> format_value(0.567, "percent"), format_value(-0.02, "points"), format_value(None, "number")
        ('56.7%', '-2.0', '–')
        >>> format_value((0.5, 0.625), "interval")
        '50.0–62.5%'
    """
    if kind in ("interval", "points_interval"):
        return _format_interval(value, signed=kind == "points_interval")
    if is_missing(value):
        return NO_VALUE
    if kind in ("text", "value"):
        return printable(str(value))
    if kind == "count":
        # Means over several runs need not be whole.
        return f"{value:.1f}".removesuffix(".0")
    if kind == "percent":
        return f"{100 * float(value):.1f}%"
    if kind == "points":
        return _format_points(float(value))
    if kind == "p_value":
        return "<0.001" if float(value) < 0.001 else f"{float(value):.3f}"
    return _format_number(float(value))


def _format_interval(value: Any, *, signed: bool) -> str:
    if value is None or any(is_missing(end) for end in value):
        return NO_VALUE
    low, high = (float(end) for end in value)
    if signed:
        return f"{_format_points(low)} to {_format_points(high)}"
    return f"{100 * low:.1f}–{100 * high:.1f}%"


def _format_points(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f}"  # adding zero turns -0.0 into 0.0


def _format_number(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def frame_rows(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a data frame as dictionaries."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def is_missing(value: Any) -> bool:
    """Return whether there is nothing to show: ``None``, NaN or pandas' NA."""
    if value is None:
        return True
    try:
        return bool(value != value)
    except (
        TypeError
    ):  # pandas.NA refuses to be a truth value; importing pandas for it would cost half a second
        return True


def to_rich(table: Table) -> RichTable:
    """Return the table for a terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(
        title=Text(table.title),
        caption=Text(table.note) if table.note else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
    for column in table.columns:
        shown.add_column(Text(column.title), justify="left" if column.is_text else "right", overflow="fold")
    for row in table.rows:
        # Text objects, because a string would be read as markup: a class may be called "[red]".
        shown.add_row(*(Text(cell) for cell in table.cells(row)))
    return shown


def to_markdown(table: Table) -> str:
    """Return the table in Markdown (GitHub's pipes), with everything of the data escaped."""
    lines = [f"**{escape_markdown(table.title)}**", ""] if table.title else []
    lines.append(_markdown_row(column.title for column in table.columns))
    lines.append("|" + "|".join(":---" if column.is_text else "---:" for column in table.columns) + "|")
    lines += [_markdown_row(table.cells(row)) for row in table.rows]
    if table.note:
        lines += ["", escape_markdown(table.note)]
    return "\n".join(lines)


def _markdown_row(cells: Any) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"


def to_html(table: Table) -> str:
    """Return the table as a piece of HTML, with everything of the data escaped."""

    def line(tag: str, texts: Iterable[str]) -> str:
        return "".join(
            (
                "<tr>",
                *(f"<{tag} style='text-align:left'>{html.escape(text)}</{tag}>" for text in texts),
                "</tr>",
            )
        )

    head = line("th", (column.title for column in table.columns))
    rows = "".join(line("td", table.cells(row)) for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>{note}"


def to_latex(table: Table) -> str:
    """Return the table in LaTeX (package ``booktabs``), with everything of the data escaped."""
    alignment = "".join("l" if column.is_text else "r" for column in table.columns)
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escape_latex(table.title)}}}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        _latex_row(column.title for column in table.columns),
        "\\midrule",
        *(_latex_row(table.cells(row)) for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    if table.note:
        lines.append(f"\\par\\smallskip {_escape_latex(table.note)}")
    return "\n".join([*lines, "\\end{table}"])


def _latex_row(cells: Any) -> str:
    return " & ".join(_escape_latex(cell) for cell in cells) + r" \\"


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "−": "$-$",
    "∞": r"$\infty$",
    "α": r"$\alpha$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "λ": r"$\lambda$",
    "Λ": r"$\Lambda$",
    "μ\u0302": r"$\hat{\mu}$",  # letters with a combining accent count as one
    "c\u0304": r"$\bar{c}$",
    "‖": r"$\Vert$",
    "²": "$^2$",
    "°": r"$^\circ$",
    "→": r"$\rightarrow$",
}
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
