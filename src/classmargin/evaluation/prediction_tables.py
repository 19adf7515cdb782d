"""Predictions in ``.csv`` and ``.parquet`` tables.

Columns: ``label`` and ``prediction`` (class names or numbers), or ``p_<class>`` / ``logit_<class>`` for every class. The classes are those
of these columns (the head) or of ``class_names`` (the caller), and only where there are neither those that are seen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._array_files import MAPPED_FROM, ArrayFileError, read_parquet_table, spool
from classmargin._files import UnfitFileError, open_regular, read_csv_header
from classmargin._progress import progress
from classmargin.evaluation.input_checks import MOST_CLASSES, SEEN_CLASSES_NOTE, AnyArray


class PredictionFileError(ValueError):
    """A prediction file cannot be used; the message says which file and why."""


# Other names for what a file must hold; what is read by one of them is said in a note.
ALIASES = {
    "label": (
        *("y_true", "target", "targets", "true", "truth", "true_label", "true_class", "label_id"),
        *("ground_truth", "gt", "actual"),
    ),
    "prediction": (
        *("y_pred", "pred", "preds", "predicted", "predicted_label", "predicted_class", "pred_label"),
        *("pred_class", "y_hat"),
    ),
}
FACE_COLUMNS = ("image_path", "text")
SINGLE = (
    *(name for word, others in ALIASES.items() for name in (word, f"{word}s", *others)),
    *(name for word in ("sample_id", *FACE_COLUMNS) for name in (word, f"{word}s")),
)
PREFIXES = {"logit_": "logits", "p_": "probabilities"}
# compression=None: a renamed gzip must not be unpacked silently.
CSV_OPTIONS: dict[str, Any] = {"compression": None, "keep_default_na": False, "skipinitialspace": True}
MOST_NAMED = 30  # a table of a thousand classes has a thousand columns
GROUP_VALUES = 2**23  # scores unpacked at once
LONGEST_NAME = 1000  # a longer text in place of a class is a mistake or an attack
MOST_LETTERS = 80  # of a cell in a message
NUMBER = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|nan|inf(inity)?)", re.IGNORECASE)
NO_CLASS = ("must hold classes, got ", "; leave out rows without a class")


@contextmanager
def refused_as(fault: str = "") -> Iterator[None]:
    """Turn the errors of the readers into :class:`PredictionFileError`; those that do not name the file come after ``fault``."""
    try:
        yield
    except PredictionFileError:
        raise
    except (ArrayFileError, UnfitFileError) as error:
        raise PredictionFileError(str(error)) from error
    except (OSError, ValueError, NotImplementedError) as error:
        if not fault:
            raise
        raise PredictionFileError(f"{fault} ({error})") from error


def read_csv(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a comma-separated file with a header line."""
    import pandas as pd

    # Classes and identities stay as they are written: 007 and 7, or true and True, need not be the same.
    with refused_as(f"{path} is not a readable .csv table"):
        header = read_csv_header(path, max_bytes=max_bytes)
        _check_width(path, header)
        texts = {name: str for name in header if name.lower() in SINGLE}
        with open_regular(path) as file:
            frame = pd.read_csv(file, dtype_backend="numpy_nullable", dtype=texts, **CSV_OPTIONS)
    times = Counter(header)
    known = (name for name in header if name.lower() in SINGLE or name.startswith(tuple(PREFIXES)))
    twice = next((name for name in known if times[name] > 1), None)
    if twice is not None:  # pandas would call the second one "p_cat.1", another class
        raise PredictionFileError(f"{path} must have every column once, got {twice!r} more than once")
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    return _arrays(path, columns, class_names, list(columns), lambda names: _matrix(path, names, columns))


def read_parquet(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a Parquet file (needs ``pyarrow``); large scores are mapped from a temporary file."""
    present: list[str] = []  # of the whole file: a message must also name columns that are not read

    def singles(schema: Any) -> list[str]:
        present.extend(schema.names)
        _check_width(path, present)
        return [name for name in present if name.lower() in SINGLE]

    columns = _parquet_columns(path, singles, max_bytes)
    rows = max((len(values) for values in columns.values()), default=0)
    left = max_bytes - sum(values.nbytes for values in columns.values())

    def read(names: Sequence[str]) -> dict[str, AnyArray]:
        return _parquet_columns(path, lambda _: names, left)

    def scores(names: Sequence[str]) -> AnyArray:
        if rows * len(names) * 4 <= MAPPED_FROM:
            return _matrix(path, names, read(names))
        size = max(1, GROUP_VALUES // rows)
        with refused_as(), spool(str(path)) as file:
            groups = [names[start : start + size] for start in range(0, len(names), size)]
            for group in progress(groups, "unpacking scores"):
                found = read(group)
                for name in group:
                    file.write(_numbers(path, name, found[name]).tobytes())
            file.flush()
            return np.memmap(file, np.float32, "c", 0, (rows, len(names)), order="F")

    return _arrays(path, columns, class_names, present, scores)


def _parquet_columns(path: Path, wanted: Callable[[Any], Sequence[str]], max_bytes: int) -> dict[str, AnyArray]:
    with refused_as(f"{path} is not a readable .parquet table"):
        table = read_parquet_table(path, max_bytes=max_bytes, columns=wanted)
        return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def _check_width(path: Path, columns: Sequence[str]) -> None:
    """Refuse more columns than the largest audit has use for, before a minute is spent on parsing them."""
    most = 2 * MOST_CLASSES + len(SINGLE)
    if len(columns) > most:
        raise PredictionFileError(
            f"{path} must have at most {most} columns for {MOST_CLASSES} classes, got {len(columns)}"
        )


def _arrays(
    path: Path,
    columns: dict[str, AnyArray],
    class_names: Sequence[str] | None,
    present: Sequence[str],
    scores: Callable[[Sequence[str]], AnyArray],
) -> dict[str, Any]:
    label, prediction = _spelled(path, columns, "label"), _spelled(path, columns, "prediction")
    if label is None:
        raise PredictionFileError(f"{path} must have a column 'label', got {listed(present) or 'no columns'}")
    if len(columns[label]) == 0:
        raise PredictionFileError(f"{path} must hold at least one sample, got none")
    result: dict[str, Any] = {"notes": ()}
    names, origin = None if class_names is None else tuple(map(str, class_names)), "class_names"
    for prefix, kind in PREFIXES.items():
        found = [name[len(prefix) :] for name in present if name.startswith(prefix)]
        if found:
            names, origin = _class_order(path, found, names, prefix), f"the {prefix}<class> columns"
            result[kind] = scores([f"{prefix}{name}" for name in names])
            break  # logits tell more than probabilities; with both, the former are taken
    classes = [_ClassColumn(path, name, columns[name]) for name in (label, prediction) if name is not None]
    texts = {text for column in classes for text in column.different}
    if names is None and not all(text.isdecimal() for text in texts):
        for column in classes:
            column.refuse({""}, *NO_CLASS)
            # 1.5, -1 or nan are names only where others are words, or where -1 and 1 are the two classes.
            if not texts <= {"-1", "1"} and all(map(NUMBER.fullmatch, texts)):
                odd = [text for text in texts if not text.isdecimal()]
                column.refuse(odd, "must hold classes, got ", " among numbers")
        names = tuple(sorted(texts))
        result["notes"] = (SEEN_CLASSES_NOTE.format(len(names)),)
        longest = max(map(len, names))
        if longest > LONGEST_NAME:
            words = f"names of classes must have at most {LONGEST_NAME} letters"
            raise PredictionFileError(f"{path}: {words}, got one of {longest}")
    if names is not None:
        result["class_names"] = names
    known = _names_in_use(names, texts)
    for word, column in zip(("labels", "predictions"), classes, strict=False):
        result[word] = column.numbers(known, origin)
    if not result.keys() & {"predictions", "logits", "probabilities"}:
        raise PredictionFileError(f"{path} must have a column 'prediction' or one p_<class> or logit_<class> per class")
    for name in ("sample_id", *FACE_COLUMNS):
        spelled = _spelled(path, columns, name)
        if spelled is not None:
            result[name] = (_identities if name == "sample_id" else _texts)(columns[spelled])
    for word, read in (("prediction", prediction), ("label", label)):
        if read is not None and read.lower() in ALIASES[word]:
            result["notes"] = (f"{path}: the column {read!r} was read as {word!r}.", *result["notes"])
    return result


def _texts(values: AnyArray) -> AnyArray:
    # Objects: an array of texts would give every row the room of the longest.
    words = ["" if value is None or value != value else str(value) for value in values.tolist()]
    return np.array(words, dtype=object)


def _spelled(path: Path, columns: dict[str, AnyArray], word: str) -> str | None:
    """Return under which of its names a column is there: its own (``label`` or ``labels``), or else one of its aliases."""
    for names in ((word, f"{word}s"), ALIASES.get(word, ())):
        found = [name for name in columns if name.lower() in names]
        if len(found) > 1:
            raise PredictionFileError(f"{path} must have one column {word!r}, got {found[0]!r} and {found[1]!r}")
        if found:
            return found[0]
    return None


def listed(names: Sequence[str]) -> str:
    """Return the first of many names, and how many more there are."""
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
    odd = min(set(names) ^ set(found))
    raise PredictionFileError(f"{path}: columns {prefix}<class> and class_names must agree, {odd!r} is only in one")


def _matrix(path: Path, names: Sequence[str], columns: Mapping[str, AnyArray]) -> AnyArray:
    return np.stack([_numbers(path, name, columns[name]) for name in names], axis=1)


def _numbers(path: Path, column: str, values: AnyArray) -> AnyArray:
    import pandas as pd

    try:
        # What no float32 holds becomes infinite and is refused by name later.
        with np.errstate(over="ignore"):
            numbers = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        numbers = pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if np.isnan(numbers).any():
        row = int(np.argmax(np.isnan(numbers)))
        cell = _cell(values.tolist()[row], row)
        raise PredictionFileError(f"{path}: column {column!r} must hold numbers, got {cell}")
    return numbers


def _cell(value: Any, row: int) -> str:
    """Describe the content and the place of a cell."""
    empty = value is None or (isinstance(value, str) and not value)
    content = "an empty cell" if empty else repr(value)[:MOST_LETTERS]
    return f"{content} in row {row + 1} (counted from 1)"


class _ClassColumn:
    """A column as its different texts and, for each row, which of them it is: millions of rows, few classes."""

    def __init__(self, path: Path, name: str, values: AnyArray) -> None:
        import pandas as pd

        self.code, different = pd.factorize(values, use_na_sentinel=False)
        self.different = [_text(value) for value in different.tolist()]
        self.place = f"{path}: column {name!r}"

    def refuse(self, texts: Collection[str], before: str, after: str) -> None:
        """Raise an error about the first cell that holds one of ``texts``, if there is one."""
        found = set(texts)  # a list of a million different cells would be searched a million times
        wanted = [k for k, text in enumerate(self.different) if text in found]
        if wanted:
            row = int(np.argmax(np.isin(self.code, wanted)))
            cell = _cell(self.different[self.code[row]], row)
            raise PredictionFileError(f"{self.place} {before}{cell}{after}")

    def numbers(self, names: tuple[str, ...] | None, origin: str) -> AnyArray:
        """Turn names or numbers into class numbers ``[N]``; numbers are names where the classes are named by numbers."""
        position = _positions(names)
        outside = [text for text in self.different if text not in position]
        if names is not None and not outside:
            return np.array([position[text] for text in self.different], dtype=np.int64)[self.code]
        if all(text.isdecimal() for text in self.different):
            digits = max(map(len, self.different))
            if digits > 19 or max(map(int, self.different)) >= 2**63:
                raise PredictionFileError(f"{self.place} must hold class numbers, got one of {digits} digits")
            return np.array([int(text) for text in self.different], dtype=np.int64)[self.code]
        self.refuse({""}, *NO_CLASS)
        # Of all cells that are no class, one that is not even a number tells most.
        words = [text for text in outside if not text.isdecimal()] or outside
        known = f"the classes {listed(names or ())} (from {origin})"
        self.refuse(words, "holds ", f", which is not among {known}")
        raise AssertionError("a cell outside of the classes was found before")


def _names_in_use(names: tuple[str, ...] | None, texts: set[str]) -> tuple[str, ...] | None:
    """Return the names by which cells may be meant: with the classes 1, 2 and 3, a single 0 tells that all cells are counted from 0."""
    if names is None or not all(name.isdecimal() for name in names) or texts <= _positions(names).keys():
        return names
    return tuple(str(k) for k in range(len(names)))


def _positions(names: tuple[str, ...] | None) -> dict[str, int]:
    """Return the class number of each name; a name 007 or 7.0 is also found as 7, unless that is another class."""
    position = {_plain_number(_plain_float(name)): k for k, name in enumerate(names or ())}
    return position | {name: k for k, name in enumerate(names or ())}


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
