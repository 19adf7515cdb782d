"""Reading predictions from ``.csv`` and ``.parquet`` tables.

Columns: ``label`` and ``prediction`` (class names or class numbers), or ``p_<class>`` / ``logit_<class>`` for every class;
optional ``sample_id``. The classes are those of the ``p_``/``logit_`` columns (the head) or of ``class_names`` (the caller).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._parquet_files import read_parquet_table
from classmargin.evaluation.inputs import AnyArray
from classmargin.evaluation.npz_reader import PredictionFileError

PREFIXES = {"logit_": "logits", "p_": "probabilities"}


def read_csv(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a comma-separated file with a header line."""
    import pandas as pd

    if path.stat().st_size > max_bytes:
        raise PredictionFileError(
            f"{path} has {path.stat().st_size} bytes, more than the limit of {max_bytes}"
        )
    try:
        # compression=None: a renamed gzip must not be unpacked behind our back.
        frame = pd.read_csv(path, compression=None, keep_default_na=False, dtype_backend="numpy_nullable")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, ValueError) as error:
        raise PredictionFileError(f"{path} is not a readable .csv table ({error})") from error
    return _arrays(path, {str(name): frame[name].to_numpy() for name in frame.columns}, class_names)


def read_parquet(path: Path, class_names: Sequence[str] | None, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of a Parquet file (needs ``pyarrow``)."""
    try:
        table = read_parquet_table(path, max_bytes=max_bytes, columns=_is_known)
        columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    except (ValueError, NotImplementedError) as error:
        raise PredictionFileError(f"{path} is not a readable .parquet table ({error})") from error
    return _arrays(path, columns, class_names)


def _is_known(name: str) -> bool:
    return name in ("label", "prediction", "sample_id") or name.startswith(tuple(PREFIXES))


def _arrays(path: Path, columns: dict[str, AnyArray], class_names: Sequence[str] | None) -> dict[str, Any]:
    if "label" not in columns:
        raise PredictionFileError(
            f"{path} must have a column 'label', got {', '.join(columns) or 'no columns'}"
        )
    if len(columns["label"]) == 0:
        raise PredictionFileError(f"{path} must hold at least one sample, got none")
    result: dict[str, Any] = {}
    names = None if class_names is None else tuple(str(name) for name in class_names)
    for prefix, kind in PREFIXES.items():
        found = {name[len(prefix) :]: values for name, values in columns.items() if name.startswith(prefix)}
        if found:
            names = _class_order(path, list(found), names, prefix)
            result[kind] = _matrix(path, [found[name] for name in names], prefix)
            break  # logits tell more than probabilities; with both, the former are taken
    if names is not None:
        result["class_names"] = names
    result["labels"] = _class_numbers(path, "label", columns["label"], names)
    if "prediction" in columns:
        result["predictions"] = _class_numbers(path, "prediction", columns["prediction"], names)
    elif "logits" not in result and "probabilities" not in result:
        raise PredictionFileError(
            f"{path} must have a column 'prediction' or one p_<class> or logit_<class> a class"
        )
    if "sample_id" in columns:
        result["sample_id"] = _identities(columns["sample_id"])
    return result


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


def _matrix(path: Path, columns: list[AnyArray], prefix: str) -> AnyArray:
    try:
        with np.errstate(
            over="ignore"
        ):  # what no float32 holds becomes infinite and is refused by name later
            return np.stack([np.asarray(column, dtype=np.float32) for column in columns], axis=1)
    except (TypeError, ValueError) as error:
        raise PredictionFileError(f"{path}: columns {prefix}<class> must hold numbers ({error})") from error


def _class_numbers(path: Path, column: str, values: AnyArray, names: tuple[str, ...] | None) -> AnyArray:
    """Turn names or numbers into class numbers; numbers are names where the classes are named by numbers."""
    text = [_text(value) for value in values.tolist()]
    position = {name: k for k, name in enumerate(names or ())}
    if names is not None and all(name in position for name in set(text)):
        return np.array([position[name] for name in text], dtype=np.int64)
    if all(name.isdecimal() for name in set(text)):
        return _as_int64(path, column, text)
    if names is None:
        raise PredictionFileError(
            f"{path} names its classes but has no p_<class> or logit_<class> columns, so their number and order are not "
            "known from it (a class may be absent from the labels): give class_names"
        )
    unknown = sorted(name for name in set(text) if name not in position)[0]
    raise PredictionFileError(f"{path}: column {column!r} must hold class names or numbers, got {unknown!r}")


def _as_int64(path: Path, column: str, text: list[str]) -> AnyArray:
    try:
        return np.array([int(name) for name in text], dtype=np.int64)
    except (OverflowError, ValueError) as error:
        raise PredictionFileError(
            f"{path}: column {column!r} must hold class numbers, got one of {max(map(len, text))} digits"
        ) from error


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _identities(values: AnyArray) -> AnyArray:
    return values if values.dtype.kind in "iu" else np.array([str(value) for value in values.tolist()])
