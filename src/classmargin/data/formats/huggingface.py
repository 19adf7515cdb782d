"""Hugging Face data sets: folders written by ``save_to_disk``, parquet files, and names on the hub.

Everything ends as an Arrow table with an image column (encoded bytes) or a column of number lists, and a
label column. Parquet is read with pyarrow directly: ``datasets`` would first write a second copy of it into
its cache.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._array_files import ArrayFileError
from classmargin._checks import require_extra
from classmargin._parquet_files import read_parquet_table
from classmargin.data.errors import DataError, DataNotFoundError
from classmargin.data.image_source import EncodedImages
from classmargin.data.raw import RawData, RawPart

HUB_PREFIX = "hf:"
_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "y")
_PURPOSE = "reading Hugging Face data sets"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# Tables live in memory; what is larger than this belongs into files that are streamed.
MAX_BYTES = 64 * 2**30


def looks_like_saved_dataset(folder: Path) -> bool:
    """Return whether ``folder`` was written by ``save_to_disk``."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def looks_like_parquet(place: Path) -> bool:
    """Return whether ``place`` is a parquet file or a folder with some."""
    return bool(_parquet_files(place))


def read_saved_dataset(folder: Path) -> RawData:
    """Read a folder written by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``."""
    datasets = require_extra("datasets", "data", _PURPOSE)
    try:
        content = datasets.load_from_disk(str(folder))
        splits = content if isinstance(content, dict) else {"train": content}
        # The Arrow view keeps images encoded; without a format the library would decode each of them.
        tables = {name: split.with_format("arrow")[:] for name, split in splits.items()}
    except Exception as error:  # a damaged folder makes the library raise nearly anything
        raise DataError(
            f"{folder} is not a readable folder of save_to_disk: {type(error).__name__}: {error}"
        ) from error
    return tables_to_raw(tables, str(folder))


def read_parquet(place: Path) -> RawData:
    """Read parquet files; the part is in the name of the file or its folder (``train-00000-of-00002``)."""
    arrow = require_extra("pyarrow", "data", _PURPOSE)
    grouped: dict[str, list[Any]] = {}
    for file in _parquet_files(place):
        try:
            table = read_parquet_table(file, max_bytes=MAX_BYTES)
        except (ArrayFileError, OSError) as error:
            raise DataError(f"{error}") from error
        grouped.setdefault(_split_of(file, place), []).append(table)
    try:
        joined = {name: arrow.concat_tables(tables) for name, tables in grouped.items()}
    except arrow.ArrowException as error:
        raise DataError(f"the parquet files of {place} do not fit together: {error}") from error
    return tables_to_raw(joined, str(place))


def hub_folder(root: Path, name: str) -> Path:
    """Return where a hub data set is kept after its download.

    Raises:
        ValueError: Not a name of the hub; it could point anywhere on the disk.
    """
    if not _HUB_NAME.fullmatch(name) or set(name) <= {"."}:
        raise DataError(f"a hub data set is named NAME or OWNER/NAME, got {name!r}")
    return root / "hub" / name.replace("/", "--")


def read_hub(name: str, root: Path, *, download: bool) -> RawData:
    """Read a data set of the hub from its copy below ``root``; only ``download`` fetches it, once."""
    folder = hub_folder(root, name)
    if not looks_like_saved_dataset(folder):
        if not download:
            raise DataNotFoundError(
                f"the hub data set {name!r} is not on this machine. Allow its download (download=True, "
                "--download), which needs the extra 'data', or put a folder written by save_to_disk at "
                f"{folder}"
            )
        datasets = require_extra("datasets", "data", _PURPOSE)
        unfinished = folder.with_name(f".{folder.name}.part")  # killed here, it must not look like the whole
        shutil.rmtree(unfinished, ignore_errors=True)
        datasets.load_dataset(name).save_to_disk(str(unfinished))
        unfinished.rename(folder)
    return read_saved_dataset(folder)


def tables_to_raw(tables: dict[str, Any], place: str) -> RawData:
    """Return the parts held by Arrow tables named after their splits."""
    named = {_SPLIT_NAMES[name]: table for name, table in tables.items() if name in _SPLIT_NAMES}
    if not named and len(tables) == 1:
        named = {"train": next(iter(tables.values()))}
    if "train" not in named:
        raise DataError(f"{place} must have a part called train, got {', '.join(tables) or 'nothing'}")
    features = _features(named["train"])
    label = _label_column(named["train"], features, place)
    parts = {name: _part(table, label, f"{place} ({name})") for name, table in named.items()}
    notes: tuple[str, ...] = ()
    if "test" in parts and len(parts["test"]) and np.all(parts["test"].labels == -1):
        del parts["test"]
        notes = ("the test part has no labels and is left aside",)
    names = features.get(label, {}).get("names")
    if names is not None and not isinstance(names, list):
        raise DataError(f"{place}: the names of the classes must be a list, got {type(names).__name__}")
    return RawData(
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        class_names=None if names is None else tuple(str(name) for name in names),
        notes=notes,
    )


def _parquet_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place] if place.suffix == ".parquet" else []
    patterns = ("*.parquet", "*/*.parquet")
    return sorted(file for pattern in patterns for file in place.glob(pattern))


def _split_of(file: Path, place: Path) -> str:
    for word in (
        file.stem.split("-")[0].split("_")[0].split(".")[0],
        file.parent.name if file.parent != place else "",
    ):
        if word in _SPLIT_NAMES:
            return word
    return "train"


def _features(table: Any) -> dict[str, Any]:
    """Return what the Hugging Face metadata of the table say about its columns."""
    metadata = (table.schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(metadata)["info"]["features"] if metadata else {}
        return {name: kind for name, kind in features.items() if isinstance(kind, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # a note for another program; the columns speak for themselves


def _label_column(table: Any, features: dict[str, Any], place: str) -> str:
    labelled = [name for name, kind in features.items() if kind.get("_type") == "ClassLabel"]
    for name in (*(name for name in _LABEL_NAMES if name in labelled), *labelled, *_LABEL_NAMES):
        if name in table.column_names:
            return name
    raise DataError(
        f"{place} has no label column ({', '.join(_LABEL_NAMES)}); its columns are {table.column_names}"
    )


def _part(table: Any, label: str, place: str) -> RawPart:
    if label not in table.column_names:
        raise DataError(f"{place} has no column {label!r}; its columns are {table.column_names}")
    if table[label].null_count:
        raise DataError(f"{place}: {table[label].null_count} labels are missing")
    types = require_extra("pyarrow", "data", _PURPOSE).types
    if not types.is_integer(table.schema.field(label).type):
        raise DataError(f"{place}: labels must be integers, got {table.schema.field(label).type}")
    labels = table[label].to_numpy()
    for name in table.column_names:
        kind = table.schema.field(name).type
        if name == label:
            continue
        if types.is_struct(kind) and any(field.name == "bytes" for field in kind):
            return RawPart(labels=labels, images=_encoded(table[name], place))
        if _is_number_list(types, kind):
            return RawPart(labels=labels, inputs=_matrix(table[name], place))
    raise DataError(f"{place} has neither images nor lists of numbers; its columns are {table.column_names}")


def _encoded(column: Any, place: str) -> EncodedImages:
    content = _one_array(column).field("bytes")
    if content.null_count:
        raise DataError(
            f"{place}: {content.null_count} images are given by path only; save them with embedded bytes"
        )
    return EncodedImages(content, place)


def _is_number_list(types: Any, kind: Any) -> bool:
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and types.is_floating(kind.value_type))


def _matrix(column: Any, place: str) -> np.ndarray[Any, Any]:
    array = _one_array(column)
    with np.errstate(over="ignore"):  # what no float32 holds becomes infinite, and check_raw names its row
        values = array.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False) if len(array) else np.array([0])
    if array.null_count or len(set(lengths.tolist())) != 1:
        raise DataError(f"{place}: all lists of numbers must have the same length")
    matrix: np.ndarray[Any, Any] = values.reshape(len(array), -1)
    return matrix


def _one_array(column: Any) -> Any:
    combined = column.combine_chunks()
    arrow = require_extra("pyarrow", "data", _PURPOSE)
    return arrow.concat_arrays(combined.chunks) if isinstance(combined, arrow.ChunkedArray) else combined
