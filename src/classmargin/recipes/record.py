"""``record.json``: what a recipe came to, small enough to be kept in a repository.

It holds what was asked, what ran (settings, hashes, versions, command), the scores of every run, means with
intervals, paired changes against the baseline, and cost; no weights, no data, no sample. Pages and tables are
made from records alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classmargin._files import read_json
from classmargin.evaluation.json_values import to_plain

FORMAT = "classmargin-record"
VERSION = 1
# Name of a comparison that is not a recipe: runs of the user's own choice.
CUSTOM = "custom"
# Four digits of a fraction are a hundredth of a percentage point.
_DIGITS = 5

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
    """A row against the baseline of its block, on the same samples.

    Attributes:
        crossfit: Differences with thirds ranked on one half of the samples and measured on the other.
        own: Differences with each model's own thirds, as in the paper.
        verdict: One sentence.
        gained: Number of classes that gained (false discovery rate 5 %).
        lost: Number of classes that lost.
        runs: Runs of baseline and row.
    """

    crossfit: Mapping[str, Estimate]
    own: Mapping[str, Estimate]
    verdict: str
    gained: int
    lost: int
    runs: tuple[int, int]


@dataclass(frozen=True)
class RowResult:
    """All runs of one row.

    Attributes:
        key: As in the recipe.
        title: Name in tables.
        method: Registry name.
        settings: What differs from the baseline of the block.
        runs: The runs.
        values: Means over runs, own-ranked thirds, with intervals over samples and seeds.
        crossfit: The same with cross-fitted thirds.
        std: Standard deviation over runs; empty with one run.
        by_class: Accuracy of each class, mean over runs, in label order.
        relative_cost: Time of a whole run relative to the baseline's.
        change: Against the baseline; None for the baseline itself.
        paper: What the paper prints for this row.
        extras: Further numbers that the recipe asks for.
    """

    key: str
    title: str
    method: str
    settings: Mapping[str, Mapping[str, Any]]
    runs: tuple[RunScore, ...]
    values: Mapping[str, Estimate]
    crossfit: Mapping[str, Estimate]
    std: Mapping[str, float]
    by_class: tuple[float, ...]
    relative_cost: float | None = None
    change: Change | None = None
    paper: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BlockResult:
    """One data set and network.

    Attributes:
        key: As in the recipe.
        title: Name in tables.
        settings: What differs from a run with all defaults.
        class_names: In label order.
        num_samples: Test samples.
        rows: The baseline first.
        printed_for: What the paper's values belong to.
        lacks: What the comparison lacks for an equal footing of its methods; None in older records, which do not say.
    """

    key: str
    title: str
    settings: Mapping[str, Mapping[str, Any]]
    class_names: tuple[str, ...]
    num_samples: int
    rows: tuple[RowResult, ...]
    printed_for: str = ""
    lacks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Record:
    """What a recipe came to.

    Attributes:
        recipe: Name of the recipe.
        source: Table or figure of the paper.
        question: Of the recipe.
        scale: ``smoke``, ``laptop``, ``paper``, or ``custom`` for runs made elsewhere.
        note: What was run.
        command: Words that make the record again.
        session: Time, versions, machine and git state.
        blocks: Results.
        left_out: Blocks that were not run, and unfinished runs that were found, with the reason.
        failed: Runs that did not end, with the error.
        doubts: Where the paper contradicts itself.
        figure: Data of the figure, for recipes that draw one.
    """

    recipe: str
    source: str
    question: str
    scale: str
    note: str
    command: str
    session: Mapping[str, Any]
    blocks: tuple[BlockResult, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    figure: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, numbers rounded to what can be seen."""
        return {"format": FORMAT, "version": VERSION, **_rounded(to_plain(dataclasses.asdict(self)))}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value


def write_record(record: Record, path: str | Path) -> Path:
    """Write the record atomically and return where it is."""
    from classmargin.training.run_folder import write_text

    text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    write_text(Path(path), _compact(text) + "\n")
    return Path(path)


def _compact(text: str) -> str:
    """Return JSON with lists of plain values on one line each, so that changes can be read as a diff."""
    import re

    inside = r"\[\s+((?:(?:-?[\d.eE+-]+|null|true|false|\"(?:[^\"\\]|\\.)*\"),?\s+)+)\]"
    return re.sub(inside, lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]).strip() + "]", text)


def read_record(path: str | Path) -> Record:
    """Read a record.

    Args:
        path: The file, or a folder that holds ``record.json``.

    Raises:
        ValueError: Not a record, or one of a later version.
    """
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
    try:
        return _record(values)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{place} is damaged: {error!r}") from error


def _record(values: Mapping[str, Any]) -> Record:
    fields = {key: value for key, value in values.items() if key not in ("format", "version")}
    fields["blocks"] = tuple(_block(block) for block in fields["blocks"])
    fields["doubts"] = tuple(fields["doubts"])
    return Record(**fields)


def _block(values: Mapping[str, Any]) -> BlockResult:
    lacks = values.get("lacks")
    typed = {
        "class_names": tuple(values["class_names"]),
        "rows": tuple(_row(row) for row in values["rows"]),
        "lacks": None if lacks is None else tuple(map(str, lacks)),
    }
    return BlockResult(**{**values, **typed})


def _row(values: Mapping[str, Any]) -> RowResult:
    change = values["change"]
    typed = {
        "runs": tuple(RunScore(**run) for run in values["runs"]),
        "values": _estimates(values["values"]),
        "crossfit": _estimates(values["crossfit"]),
        "by_class": tuple(_number(value) for value in values["by_class"]),
        "change": None if change is None else _change(change),
    }
    return RowResult(**{**values, **typed})


def _change(values: Mapping[str, Any]) -> Change:
    typed = {
        "crossfit": _estimates(values["crossfit"]),
        "own": _estimates(values["own"]),
        "runs": tuple(values["runs"]),
    }
    return Change(**{**values, **typed})


def _estimates(values: Mapping[str, Any]) -> dict[str, Estimate]:
    return {name: (_number(v), _number(low), _number(high)) for name, (v, low, high) in values.items()}


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
