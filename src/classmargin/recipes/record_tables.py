"""The tables of a record: ours beside the paper's, changes against the baseline, thirds by both rules, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from classmargin.recipes.record import BlockResult, Estimate, Record, RowResult
from classmargin.report.tables import NO_VALUE, Column, Table, is_missing

UNEQUAL = "not on equal footing"
SHOWN = ("overall", "easy", "medium", "hard", "worst")
PRINTED = ("overall", "easy", "medium", "hard")

ACCURACY_NOTE = (
    "Test accuracy in percent, mean over seeds, with 95 % intervals over test samples and seeds. Easy, medium and "
    "hard are the thirds of the classes ranked by each run's own accuracies, as in the paper; worst is the lowest "
    "class. “Paper” columns are as printed there."
)
CROSSFIT_NOTE = (
    "The same runs with thirds ranked on one half of the test samples and measured on the other, which takes the "
    "noise of the ranking out of the thirds."
)
CHANGE_NOTE = (
    "Percentage points against the first row, paired on the same test samples, cross-fitted thirds, 95 % intervals "
    "over samples and seeds (* excludes zero). Classes gained and lost: false discovery rate 5 % over all rows."
)
OWN_CHANGE_NOTE = (
    "Percentage points against the first row with each model's own thirds of its mean accuracies, beside the changes "
    "that the paper prints."
)
COST_NOTE = (
    "Wall time of training and evaluation as it was, on one thread unless the settings say otherwise; relative: a "
    "whole run against one of the first row. Other work on the machine is in these numbers."
)


def default_tables(record: Record) -> list[Table]:
    """Return the tables that every recipe of accuracies shows."""
    tables = [accuracy_table(record)]
    if any(row.change for block in record.blocks for row in block.rows):
        tables += [change_table(record), own_change_table(record)]
    return [*tables, crossfit_table(record), cost_table(record)]


def accuracy_table(record: Record) -> Table:
    """Return one line per row: our accuracies with intervals, and the paper's."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        ours = {name: percent(row.values[name]) for name in SHOWN}
        return {"seeds": len(row.runs), **ours, **paper_cells(row.paper)}

    columns = (Column("seeds", "Seeds", "count"), *_ours(SHOWN), *_papers(record))
    return table_of(fair_title("Accuracy on the test set", record), record, columns, line, ACCURACY_NOTE)


def crossfit_table(record: Record) -> Table:
    """Return our accuracies with cross-fitted thirds."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        return {name: percent(row.crossfit[name]) for name in SHOWN}

    return table_of(fair_title("Cross-fitted thirds", record), record, _ours(SHOWN), line, CROSSFIT_NOTE)


def change_table(record: Record) -> Table:
    """Return one line per row but the first: paired changes with cross-fitted thirds."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any] | None:
        if row.change is None:
            return None
        classes = f"{row.change.gained} / {row.change.lost}"
        return {**{name: points(row.change.crossfit[name]) for name in SHOWN}, "classes": classes}

    columns = (*_ours(SHOWN), Column("classes", "Classes gained / lost", "value"))
    title = fair_title("Change against the first row", record)
    return table_of(title, record, columns, line, CHANGE_NOTE)


def own_change_table(record: Record) -> Table:
    """Return changes with own-ranked thirds, ours and the paper's."""

    def line(block: BlockResult, row: RowResult) -> dict[str, Any] | None:
        if row.change is None:
            return None
        ours = {name: points(row.change.own[name]) for name in SHOWN}
        return {**ours, **paper_changes(block.rows[0].paper, row.paper)}

    columns = (*_ours(SHOWN), *_papers(record))
    title = fair_title("Change against the first row, own-ranked thirds", record)
    return table_of(title, record, columns, line, OWN_CHANGE_NOTE)


def cost_table(record: Record) -> Table:
    """Return one line per row: steps, time of a step and of a run (medians), time relative to the baseline."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        return {
            "steps": row.runs[0].steps,
            "milliseconds": _median([run.seconds_per_step for run in row.runs], 1000.0),
            "minutes": _median([run.seconds for run in row.runs], 1 / 60),
            "relative": NO_VALUE if row.relative_cost is None else f"{row.relative_cost:.2f}",
        }

    columns = (
        Column("steps", "Steps", "count"),
        Column("milliseconds", "Milliseconds per step", "value"),
        Column("minutes", "Minutes per run", "value"),
        Column("relative", "Relative time of a run", "value"),
    )
    return table_of("Cost", record, columns, line, COST_NOTE)


def _median(values: Sequence[float | None], factor: float) -> str:
    known = [value for value in values if value is not None]
    return f"{factor * median(known):.1f}" if known else NO_VALUE


def fair_title(title: str, record: Record) -> str:
    """Return the title of a table that compares methods; it says so where they are not on an equal footing."""
    compared = [block for block in record.blocks if any(row.change for row in block.rows)]
    return title if all(block.lacks == () for block in compared) else f"{title}, {UNEQUAL}"


Line = Callable[[BlockResult, RowResult], "dict[str, Any] | None"]


def table_of(title: str, record: Record, columns: Sequence[Column], line: Line, note: str = "") -> Table:
    """Return a table with a line for each row of each block; a column names the block where there are several."""
    several = len(record.blocks) > 1
    lines = []
    for block in record.blocks:
        for row in block.rows:
            cells = line(block, row)
            if cells is not None:
                lines.append({"block": block.title, "title": row.title, **cells})
    first = (Column("block", "Setting"),) if several else ()
    return Table(title, (*first, Column("title", "Method"), *columns), lines, note)


def _ours(names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(name, name.capitalize(), "value") for name in names)


def _papers(record: Record) -> tuple[Column, ...]:
    """Return a column for each number that the paper prints for some row."""
    printed = {
        name for block in record.blocks for row in block.rows for name in (row.paper or {}) if name in PRINTED
    }
    return tuple(Column(f"paper_{name}", f"Paper {name}", "value") for name in PRINTED if name in printed)


def paper_cells(paper: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the printed numbers of a row, with a question mark where they are in doubt."""
    if not paper:
        return {}
    mark = " ?" if paper.get("doubt") else ""
    return {f"paper_{name}": f"{paper[name]:.1f}{mark}" for name in PRINTED if name in paper}


def paper_changes(base: Mapping[str, Any] | None, paper: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the printed differences of a row against the first one."""
    if not base or not paper:
        return {}
    mark = " ?" if paper.get("doubt") else ""
    return {
        f"paper_{name}": f"{paper[name] - base[name]:+.1f}{mark}"
        for name in PRINTED
        if name in paper and name in base
    }


def interval_bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the intervals of values as the error bars of a plotly trace."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - value for value, _, high in estimates],
        "arrayminus": [value - low for value, low, _ in estimates],
    }


def without_paper(record: Record) -> Record:
    """Return the record without printed values, for tables whose printed values are no accuracies."""
    blocks = tuple(
        replace(block, rows=tuple(replace(row, paper=None) for row in block.rows)) for block in record.blocks
    )
    return replace(record, blocks=blocks)


def percent(estimate: Estimate) -> str:
    """Return a share with its interval in percent.

    Example:
        >>> percent((0.5, 0.45, 0.55))
        '50.0 (45.0–55.0)'
    """
    value, low, high = estimate
    if is_missing(value):
        return NO_VALUE
    return f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def points(estimate: Estimate) -> str:
    """Return a difference with its interval in percentage points; a star where the interval excludes zero.

    Example:
        >>> points((0.02, 0.01, 0.03))
        '+2.0* (+1.0 to +3.0)'
    """
    value, low, high = estimate
    if is_missing(value):
        return NO_VALUE
    sure = "*" if low > 0 or high < 0 else ""
    return f"{100 * value:+.1f}{sure} ({100 * low:+.1f} to {100 * high:+.1f})"
