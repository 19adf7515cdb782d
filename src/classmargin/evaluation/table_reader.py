"""Reading predictions from ``.csv`` and ``.parquet`` tables.

Columns: ``label`` and ``prediction`` (class names or class numbers; ``labels`` and ``predictions`` are the same), or ``p_<class>`` /
``logit_<class>`` for every class; optional ``sample_id``. The classes are those of the ``p_``/``logit_`` columns (the head) or of
``class_names`` (the caller).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._parquet_files import read_parquet_table
from classmargin.evaluation.inputs import AnyArray
from classmargin.evaluation.npz_reader import PredictionFileError

SINGLE = ("label", "labels", "prediction", "predictions", "sample_id")
PREFIXES = {"logit_": "logits", "p_": "probabilities"}
MOST_NAMED = 30  # a table of a thousand classes has a thousand columns
MOST_LETTERS = 80  # of a cell in a message


def read_csv(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a comma-separated file with a header line."""
    import pandas as pd

    if path.stat().st_size > max_bytes:
        raise PredictionFileError(
            f"{path} has {path.stat().st_size} bytes, more than the limit of {max_bytes}"
        )
    # compression=None: a renamed gzip must not be unpacked behind our back.
    options: dict[str, Any] = {"compression": None, "keep_default_na": False, "skipinitialspace": True}
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, **options).iloc[0].tolist()
        # Classes and identities stay as they are written: 007 and 7, or true and True, need not be the same.
        frame = pd.read_csv(path, dtype_backend="numpy_nullable", dtype=dict.fromkeys(SINGLE, str), **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, ValueError) as error:
        raise PredictionFileError(f"{path} is not a readable .csv table ({error})") from error
    times = Counter(str(name) for name in header)
    twice = next((name for name, count in times.items() if count > 1 and _is_known(name)), None)
    if twice is not None:  # pandas would call the second one "p_cat.1", another class
        raise PredictionFileError(f"{path} must have every column once, got {twice!r} more than once")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    return _arrays(path, columns, class_names, list(columns))


def read_parquet(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a Parquet file (needs ``pyarrow``)."""
    present: list[str] = []  # of the whole file: a message must also name columns that are not read

    def wanted(name: str) -> bool:
        present.append(name)
        return _is_known(name)

    try:
        table = read_parquet_table(path, max_bytes=max_bytes, columns=wanted)
        columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    except (ValueError, NotImplementedError) as error:
        raise PredictionFileError(f"{path} is not a readable .parquet table ({error})") from error
    return _arrays(path, columns, class_names, present)


def _is_known(name: str) -> bool:
    return name in SINGLE or name.startswith(tuple(PREFIXES))


def _arrays(
    path: Path, columns: dict[str, AnyArray], class_names: Sequence[str] | None, present: Sequence[str]
) -> dict[str, Any]:
    label, prediction = _spelled(path, columns, "label"), _spelled(path, columns, "prediction")
    if label is None:
        raise PredictionFileError(
            f"{path} must have a column 'label', got {_listed(present) or 'no columns'}"
        )
    if len(columns[label]) == 0:
        raise PredictionFileError(f"{path} must hold at least one sample, got none")
    result: dict[str, Any] = {}
    names = None if class_names is None else tuple(str(name) for name in class_names)
    origin = "class_names"
    for prefix, kind in PREFIXES.items():
        found = [name[len(prefix) :] for name in columns if name.startswith(prefix)]
        if found:
            names, origin = _class_order(path, found, names, prefix), f"the {prefix}<class> columns"
            result[kind] = _matrix(path, {f"{prefix}{name}": columns[f"{prefix}{name}"] for name in names})
            break  # logits tell more than probabilities; with both, the former are taken
    if names is not None:
        result["class_names"] = names
    classes = {column: _texts(columns[column]) for column in (label, prediction) if column is not None}
    known = _names_in_use(names, classes.values())
    result["labels"] = _class_numbers(path, label, classes[label], known, origin)
    if prediction is not None:
        result["predictions"] = _class_numbers(path, prediction, classes[prediction], known, origin)
    elif "logits" not in result and "probabilities" not in result:
        raise PredictionFileError(
            f"{path} must have a column 'prediction' or one p_<class> or logit_<class> a class"
        )
    if "sample_id" in columns:
        result["sample_id"] = _identities(columns["sample_id"])
    return result


def _spelled(path: Path, columns: dict[str, AnyArray], word: str) -> str | None:
    """Return under which of its two names (``label`` or ``labels``) a column is there."""
    found = [name for name in (word, f"{word}s") if name in columns]
    if len(found) > 1:
        raise PredictionFileError(f"{path} must have one column {word!r}, got {found[0]!r} and {found[1]!r}")
    return found[0] if found else None


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _class_order(path: Path, found: list[str], names: tuple[str, ...] | None, prefix: str) -> tuple[str, ...]:
    if names is None:
        return tuple(sorted(found, key=int)) if all(name.isdecimal() for name in found) else tuple(found)
    if set(found) == set(names):
        return names
    if sorted(found) == sorted(str(k) for k in range(len(names))):
        raise PredictionFileError(
            f"{path} numbers its {prefix}<class> columns but class_names names the classes; rename the columns"
        )
    missing = sorted(set(names) ^ set(found))[0]
    raise PredictionFileError(
        f"{path}: columns {prefix}<class> and class_names must agree, {missing!r} is only in one"
    )


def _matrix(path: Path, columns: dict[str, AnyArray]) -> AnyArray:
    return np.stack([_numbers(path, name, values) for name, values in columns.items()], axis=1)


def _numbers(path: Path, column: str, values: AnyArray) -> AnyArray:
    try:
        # What no float32 holds becomes infinite and is refused by name later.
        with np.errstate(over="ignore"):
            numbers = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_number(path, column, values) from error
    if np.isnan(numbers).any():
        raise _no_number(path, column, values)
    return numbers


def _no_number(path: Path, column: str, values: AnyArray) -> PredictionFileError:
    cells = values.tolist()
    row = next((k for k, value in enumerate(cells) if not _is_number(value)), 0)
    return PredictionFileError(f"{path}: column {column!r} must hold numbers, got {_cell(cells[row], row)}")


def _is_number(value: Any) -> bool:
    try:
        return not math.isnan(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _cell(value: Any, row: int) -> str:
    """Say what stands in a cell, and where."""
    empty = value is None or (isinstance(value, str) and not value)
    content = "an empty cell" if empty else repr(value)[:MOST_LETTERS]
    return f"{content} in row {row + 1} (counted from 1)"


def _texts(values: AnyArray) -> list[str]:
    return [_text(value) for value in values.tolist()]


def _names_in_use(names: tuple[str, ...] | None, columns: Iterable[list[str]]) -> tuple[str, ...] | None:
    """Return the names by which cells may be meant.

    Where the classes are named by numbers, a number is a name if all cells of all columns can be: with the classes 1, 2 and 3, a single
    0 tells that labels and predictions alike are counted from 0, and then the names are those of the count.
    """
    if names is None or not all(name.isdecimal() for name in names):
        return names
    position = _positions(names)
    if all(text in position for column in columns for text in set(column)):
        return names
    return tuple(str(k) for k in range(len(names)))


def _positions(names: tuple[str, ...] | None) -> dict[str, int]:
    """Return the class number of each name; a name 007 or 7.0 is also found as 7, unless that is another class."""
    position = {_plain_number(_plain_float(name)): k for k, name in enumerate(names or ())}
    return position | {name: k for k, name in enumerate(names or ())}


def _class_numbers(
    path: Path, column: str, text: list[str], names: tuple[str, ...] | None, origin: str
) -> AnyArray:
    """Turn names or numbers into class numbers; numbers are names where the classes are named by numbers.

    Args:
        path: The table, for messages.
        column: The column, for messages.
        text: Its cells ``[N]``.
        names: Names in class order, or ``None`` where they are not known.
        origin: Where the names come from, for messages.
    """
    position = _positions(names)
    if names is not None and all(name in position for name in set(text)):
        return np.array([position[name] for name in text], dtype=np.int64)
    if all(name.isdecimal() for name in set(text)):
        return _as_int64(path, column, text)
    outside = [k for k, name in enumerate(text) if name not in position]
    # Of all cells that are no class, an empty one tells most, then one that is not even a number.
    row = min(outside, key=lambda k: (text[k] != "", text[k].isdecimal()))
    cell = _cell(text[row], row)
    if not text[row]:
        raise PredictionFileError(f"{path}: column {column!r} must hold classes, got {cell}")
    if names is None:
        raise PredictionFileError(
            f"{path}: column {column!r} holds {cell}, so it names its classes, but without p_<class> or logit_<class> columns "
            "their number and order are not known (a class may be absent from the labels): give class_names"
        )
    raise PredictionFileError(
        f"{path}: column {column!r} holds {cell}, which is not among the classes {_listed(names)} (from {origin})"
    )


def _as_int64(path: Path, column: str, text: list[str]) -> AnyArray:
    try:
        return np.array([int(name) for name in text], dtype=np.int64)
    except (OverflowError, ValueError) as error:
        raise PredictionFileError(
            f"{path}: column {column!r} must hold class numbers, got one of {max(map(len, text))} digits"
        ) from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return _plain_float(value.strip())
    if isinstance(value, float):
        if math.isnan(value):
            return ""  # how a Parquet column of numbers marks an empty cell
        if value.is_integer():
            return str(int(value))
    return "" if value is None else str(value)


def _plain_float(text: str) -> str:
    """Return ``2.0`` as ``2``: what data frames make of whole numbers beside an empty cell."""
    whole, point, rest = text.partition(".")
    return whole if point and whole.isdecimal() and not rest.strip("0") else text


def _plain_number(text: str) -> str:
    return (text.lstrip("0") or "0") if text.isdecimal() else text


def _identities(values: AnyArray) -> AnyArray:
    if values.dtype.kind in "iu":
        return values
    text = [str(value).strip() for value in values.tolist()]
    # Numbers that are written as numbers are, so that they stay small, and sort as they count.
    if all(len(name) < 19 and name.isdecimal() and name == _plain_number(name) for name in text):
        return np.array(text, dtype=np.int64)
    return np.array(text)
