"""``record.json``: what a recipe came to, small enough to be kept in a repository; and its tables.

It holds what was asked, what ran (settings, hashes, versions, command), the scores of every run, means with intervals, paired
changes against the baseline, and cost; no weights, no data, no sample. Pages and tables are made from records alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from classmargin._files import read_json
from classmargin.evaluation.json_values import to_plain
from classmargin.report.tables import NO_VALUE, Column, Kind, Table, is_missing

FORMAT = "classmargin-record"
VERSION = 1
# Name of a comparison that is not a recipe: runs of the user's own choice.
CUSTOM = "custom"
# Four digits of a fraction are a hundredth of a percentage point.
_DIGITS = 5
# A list of plain values, each of them on a line of its own.
_PLAIN_LIST = r"\[\s+((?:(?:-?[\d.eE+-]+|null|true|false|\"(?:[^\"\\]|\\.)*\"),?\s+)+)\]"

Estimate = tuple[float, float, float]
"""Value and both ends of its interval."""


@dataclass(frozen=True)
class RunScore:
    """One finished run: seed, hash of its configuration, accuracies on the test set, steps and seconds."""

    seed: int
    identity: str
    scores: Mapping[str, float]
    steps: int
    seconds: float | None
    seconds_per_step: float | None


@dataclass(frozen=True)
class Change:
    """A row against the baseline of its block, on the same samples."""

    crossfit: Mapping[str, Estimate]  # thirds ranked on one half of the samples, measured on the other
    own: Mapping[str, Estimate]  # each model's own thirds, as in the paper
    verdict: str
    gained: int  # classes, at a false discovery rate of 5 %
    lost: int
    runs: tuple[int, int]  # of baseline and row


@dataclass(frozen=True)
class RowResult:
    """All runs of one row."""

    key: str
    title: str
    method: str
    settings: Mapping[str, Mapping[str, Any]]  # what differs from the baseline of the block
    runs: tuple[RunScore, ...]
    values: Mapping[str, Estimate]  # means over runs, own-ranked thirds, intervals over samples and seeds
    crossfit: Mapping[str, Estimate]  # the same with cross-fitted thirds
    std: Mapping[str, float]  # over runs; empty with one run
    by_class: tuple[float, ...]  # accuracy, mean over runs, in label order
    relative_cost: float | None = None  # time of a whole run relative to the baseline's
    change: Change | None = None  # None for the baseline itself
    paper: Mapping[str, Any] | None = None  # what the paper prints for this row
    extras: Mapping[str, Any] = field(default_factory=dict)  # further numbers that the recipe asks for


@dataclass(frozen=True)
class BlockResult:
    """One data set and network; the first row is the baseline."""

    key: str
    title: str
    settings: Mapping[str, Mapping[str, Any]]  # what differs from a run with all defaults
    class_names: tuple[str, ...]  # in label order
    num_samples: int  # of the test set
    rows: tuple[RowResult, ...]
    printed_for: str = ""  # what the paper's values belong to
    # What the comparison lacks for an equal footing of its methods; None in older records, which do not say.
    lacks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Record:
    """What a recipe came to."""

    recipe: str
    source: str
    question: str
    scale: str  # CUSTOM for runs made elsewhere
    note: str  # what was run
    command: str  # words that make the record again
    session: Mapping[str, Any]  # time, versions, machine and git state
    blocks: tuple[BlockResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # not run or unfinished, with the reason
    failed: Mapping[str, str] = field(default_factory=dict)  # runs that did not end, with the error
    doubts: tuple[str, ...] = ()  # where the paper contradicts itself
    figure: Mapping[str, Any] | None = None  # data of the figure, for recipes that draw one

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, numbers rounded to what can be seen."""
        return {"format": FORMAT, "version": VERSION, **_rounded(to_plain(dataclasses.asdict(self)))}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


def write_record(record: Record, path: Path) -> Path:
    """Write the record atomically and return where it is; lists of plain values take one line each, for readable diffs."""
    from classmargin.training.run_folder import write_text

    text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    compact = re.sub(_PLAIN_LIST, lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]).strip() + "]", text)
    write_text(path, compact + "\n")
    return path


def read_record(path: str | Path) -> Record:
    """Read a record from a file, or from the folder that holds ``record.json``."""
    place = Path(path)
    place = place / "record.json" if place.is_dir() else place
    try:
        values = read_json(place)
    except FileNotFoundError as error:
        raise ValueError(f"there is no record at {place}") from error
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{place} is not a record: {error}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(f"{place} is not a record of classmargin: no format {FORMAT!r}")
    if values.get("version") != VERSION:
        raise ValueError(f"{place} has version {values.get('version')!r}; this package reads {VERSION}")
    fields = {key: value for key, value in values.items() if key not in ("format", "version")}
    try:
        blocks = tuple(_block(block) for block in fields["blocks"])
        return Record(**{**fields, "blocks": blocks, "doubts": tuple(fields["doubts"])})
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{place} is damaged: {error!r}") from error


def _block(values: Mapping[str, Any]) -> BlockResult:
    lacks = None if values.get("lacks") is None else tuple(map(str, values["lacks"]))
    rows, names = tuple(_row(row) for row in values["rows"]), tuple(values["class_names"])
    return BlockResult(**{**values, "rows": rows, "class_names": names, "lacks": lacks})


def _row(values: Mapping[str, Any]) -> RowResult:
    change = values["change"]
    if change is not None:
        deltas = {rule: _estimates(change[rule]) for rule in ("crossfit", "own")}
        change = Change(**{**change, **deltas, "runs": tuple(change["runs"])})
    typed = {
        "runs": tuple(RunScore(**run) for run in values["runs"]),
        "values": _estimates(values["values"]),
        "crossfit": _estimates(values["crossfit"]),
        "by_class": tuple(_number(value) for value in values["by_class"]),
        "change": change,
    }
    return RowResult(**{**values, **typed})


def _estimates(values: Mapping[str, Any]) -> dict[str, Estimate]:
    return {name: (_number(v), _number(low), _number(high)) for name, (v, low, high) in values.items()}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


# Tables: ours beside the paper's, changes against the baseline, thirds by both rules, cost

SHOWN = ("overall", "easy", "medium", "hard", "worst")
PRINTED = ("overall", "easy", "medium", "hard")
Line = Callable[[BlockResult, RowResult], "dict[str, Any] | None"]


def default_tables(record: Record) -> list[Table]:
    """Return the tables that every recipe of accuracies shows."""
    tables = [accuracy_table(record)]
    if any(row.change for block in record.blocks for row in block.rows):
        tables += [change_table(record), own_change_table(record)]
    note = (
        "The same runs with thirds ranked on one half of the test samples and measured on the other, which takes the "
        "noise of the ranking out of the thirds."
    )
    crossfit = _fair_table("Cross-fitted thirds", record, _OURS, lambda _, row: _shown(row.crossfit, percent), note)
    return [*tables, crossfit, cost_table(record)]


def accuracy_table(record: Record) -> Table:
    """Return one line per row: our accuracies with intervals, and the paper's."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        cells = _paper_cells(row, {name: f"{value:.1f}" for name, value in printed(row).items()})
        return {"seeds": len(row.runs), **_shown(row.values, percent), **cells}

    note = (
        "Test accuracy in percent, mean over seeds, with 95 % intervals over test samples and seeds. Easy, medium and "
        "hard are the thirds of the classes ranked by each run's own accuracies, as in the paper; worst is the lowest "
        "class. “Paper” columns are as printed there."
    )
    columns = (Column("seeds", "Seeds", "count"), *_OURS, *_papers(record))
    return _fair_table("Accuracy on the test set", record, columns, line, note)


def change_table(record: Record) -> Table:
    """Return one line per row but the first: paired changes with cross-fitted thirds."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any] | None:
        if (found := row.change) is None:
            return None
        return {**_shown(found.crossfit, points), "classes": f"{found.gained} / {found.lost}"}

    note = (
        "Percentage points against the first row, paired on the same test samples, cross-fitted thirds, 95 % intervals "
        "over samples and seeds (* excludes zero). Classes gained and lost: false discovery rate 5 % over all rows."
    )
    columns = (*_OURS, Column("classes", "Classes gained / lost", "value"))
    return _fair_table("Change against the first row", record, columns, line, note)


def own_change_table(record: Record) -> Table:
    """Return changes with own-ranked thirds, ours and the paper's."""

    def line(block: BlockResult, row: RowResult) -> dict[str, Any] | None:
        if row.change is None:
            return None
        base, paper = printed(block.rows[0]), printed(row)
        changes = {name: f"{paper[name] - base[name]:+.1f}" for name in paper if name in base}
        return {**_shown(row.change.own, points), **_paper_cells(row, changes)}

    note = (
        "Percentage points against the first row with each model's own thirds of its mean accuracies, beside the changes "
        "that the paper prints."
    )
    title = "Change against the first row, own-ranked thirds"
    return _fair_table(title, record, (*_OURS, *_papers(record)), line, note)


def cost_table(record: Record) -> Table:
    """Return one line per row: steps, time of a step and of a run (medians), time relative to the baseline."""

    def middle(values: Sequence[float | None], factor: float) -> str:
        known = [value for value in values if value is not None]
        return f"{factor * median(known):.1f}" if known else NO_VALUE

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        return {
            "steps": row.runs[0].steps,
            "milliseconds": middle([run.seconds_per_step for run in row.runs], 1000.0),
            "minutes": middle([run.seconds for run in row.runs], 1 / 60),
            "relative": NO_VALUE if row.relative_cost is None else f"{row.relative_cost:.2f}",
        }

    columns = (
        Column("steps", "Steps", "count"),
        Column("milliseconds", "Milliseconds per step", "value"),
        Column("minutes", "Minutes per run", "value"),
        Column("relative", "Relative time of a run", "value"),
    )
    note = (
        "Wall time of training and evaluation as it was, on one thread unless the settings say otherwise; relative: a "
        "whole run against one of the first row. Other work on the machine is in these numbers."
    )
    return table_of("Cost", record, columns, line, note)


def table_of(title: str, record: Record, columns: Sequence[Column], line: Line, note: str = "") -> Table:
    """Return a table with a line for each row of each block; a column names the block where there are several."""
    lines = [
        {"block": block.title, "title": row.title, **cells}
        for block in record.blocks
        for row in block.rows
        if (cells := line(block, row)) is not None
    ]
    first = (Column("block", "Setting"),) if len(record.blocks) > 1 else ()
    return Table(title, (*first, Column("title", "Method"), *columns), lines, note)


def headline_columns(names: Sequence[str], kind: Kind = "value", *, of: str = "") -> tuple[Column, ...]:
    """Return a column for each headline number, ours or those ``of`` the paper."""
    if of:
        return tuple(Column(f"{of}_{name}", f"{of.capitalize()} {name}", kind) for name in names)
    return tuple(Column(name, name.capitalize(), kind) for name in names)


def interval_bars(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Return the intervals of values as the error bars of a plotly trace."""
    ends = {"array": [high - value for value, _, high in estimates], "arrayminus": [v - low for v, low, _ in estimates]}
    return {"type": "data", "symmetric": False, **ends}


def without_paper(record: Record) -> Record:
    """Return the record without printed values, for tables whose printed values are no accuracies."""
    bare = [replace(block, rows=tuple(replace(row, paper=None) for row in block.rows)) for block in record.blocks]
    return replace(record, blocks=tuple(bare))


_OURS = headline_columns(SHOWN)


def _fair_table(title: str, record: Record, columns: Sequence[Column], line: Line, note: str) -> Table:
    """Return a table that compares methods; its title says so where they are not on an equal footing."""
    fair = all(block.lacks == () for block in record.blocks if any(row.change for row in block.rows))
    return table_of(title if fair else f"{title}, not on equal footing", record, columns, line, note)


def _shown(values: Mapping[str, Estimate], show: Callable[[Estimate], str]) -> dict[str, Any]:
    return {name: show(values[name]) for name in SHOWN}


def printed(row: RowResult) -> dict[str, float]:
    """Return the headline numbers that the paper prints for a row."""
    paper = row.paper or {}
    return {name: paper[name] for name in PRINTED if name in paper}


def _paper_cells(row: RowResult, cells: Mapping[str, str]) -> dict[str, str]:
    """Return printed numbers as cells, with a question mark where they are in doubt."""
    mark = " ?" if (row.paper or {}).get("doubt") else ""
    return {f"paper_{name}": f"{words}{mark}" for name, words in cells.items()}


def _papers(record: Record) -> tuple[Column, ...]:
    """Return a column for each number that the paper prints for some row."""
    known = {name for block in record.blocks for row in block.rows for name in printed(row)}
    return headline_columns([name for name in PRINTED if name in known], of="paper")


def percent(estimate: Estimate) -> str:
    """Return a share with its interval in percent, like ``50.0 (45.0–55.0)``."""
    value, low, high = estimate
    return NO_VALUE if is_missing(value) else f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def points(estimate: Estimate) -> str:
    """Return a difference with its interval in points, like ``+2.0* (+1.0 to +3.0)``; a star where it excludes zero."""
    value, low, high = estimate
    sure = "*" if low > 0 or high < 0 else ""
    words = f"{100 * value:+.1f}{sure} ({100 * low:+.1f} to {100 * high:+.1f})"
    return NO_VALUE if is_missing(value) else words
