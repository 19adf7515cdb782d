"""Hugging Face data sets: folders written by ``save_to_disk``, parquet files, and names on the hub.

Everything ends as an Arrow table with an image column (encoded bytes) or a column of number lists, and a label column.
Parquet is read with pyarrow: ``datasets`` would first write a copy into its cache.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._array_files import read_parquet_table
from classmargin._checks import require_extra
from classmargin._files import check_folder, memory_budget
from classmargin.data.images import EncodedImages
from classmargin.data.raw import LARGEST, DataError, DataNotFoundError, RawData, RawPart, name_some

HUB_PREFIX = "hf:"
_SPLIT_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev"), "validation"
)
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class", "y")
_PURPOSE = "reading Hugging Face data sets"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def looks_like_saved_dataset(folder: Path) -> bool:
    """Return whether ``folder`` was written by ``save_to_disk``."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_saved_dataset(folder: Path) -> RawData:
    """Read a folder written by ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk``."""
    datasets = require_extra("datasets", "data", _PURPOSE)
    try:
        check_folder(folder)
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
    """Read parquet files; those whose name (or folder) names no part are the training part, or ignored if others name it."""
    arrow = require_extra("pyarrow", "data", _PURPOSE)

    def used(schema: Any) -> list[str]:  # all other columns are not even read
        label = _label_column(schema, str(file))
        return [name for name in schema.names if name in {label, *_input_columns(schema, label, str(file))}]

    part_of = {file: _split_of(file, place) for file in parquet_files(place)}
    other = None if "train" in part_of.values() else "train"
    grouped: dict[str, list[Any]] = {}
    left = memory_budget(LARGEST)
    for file, split in part_of.items():
        if part := split or other:
            table = read_parquet_table(file, max_bytes=left, columns=used)
            left -= table.nbytes
            grouped.setdefault(part, []).append(table)
    try:
        joined = {name: arrow.concat_tables(tables) for name, tables in grouped.items()}
    except arrow.ArrowException as error:
        raise DataError(f"the parquet files of {place} do not fit together: {error}") from error
    raw = tables_to_raw(joined, str(place))
    ignored = [file.name for file, split in part_of.items() if split is None and other is None]
    return raw.with_parts(raw.parts(), *_note_ignored("the files", ignored))


def read_hub(name: str, root: Path, *, download: bool) -> RawData:
    """Read a data set of the hub from its copy below ``root``; only ``download`` fetches it, once."""
    if not _HUB_NAME.fullmatch(name) or set(name) <= {"."}:  # others could point anywhere on the disk
        raise DataError(f"a hub data set is named NAME or OWNER/NAME, got {name!r}")
    folder = root / "hub" / name.replace("/", "--")
    if not looks_like_saved_dataset(folder):
        if not download:
            raise DataNotFoundError(
                f"the hub data set {name!r} is not on this machine. Allow its download (download=True, --download), "
                f"which needs the extra 'data', or put a folder written by save_to_disk at {folder}"
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
    schema = named["train"].schema
    label = _label_column(schema, place)
    columns = _input_columns(schema, label, place)
    parts = {name: _part(table, label, columns[0], f"{place} ({name})") for name, table in named.items()}
    ignored = [name for name in tables if name not in _SPLIT_NAMES and len(tables) > 1]
    notes = _note_ignored("the parts", ignored)
    if len(columns) > 1:
        notes.append(f"the inputs are the column {columns[0]!r}, not {', '.join(map(repr, columns[1:]))}")
    if "test" in parts and len(parts["test"]) and np.all(parts["test"].labels == -1):
        del parts["test"]
        notes.append("the test part has no labels and is ignored")
    names_of = {part: _features(table.schema).get(label, {}).get("names") for part, table in named.items()}
    names = names_of["train"]
    if names is not None and not isinstance(names, list):
        raise DataError(f"{place}: the names of the classes must be a list, got {type(names).__name__}")
    for part, others in names_of.items():
        if others not in (None, names) and names is not None:  # a number would mean different classes
            raise DataError(
                f"{place}: the {part} part has other class names, or in another order, than the training part"
            )
    class_names = None if names is None else tuple(str(name) for name in names)
    return RawData(**parts, class_names=class_names, notes=tuple(notes))


def parquet_files(place: Path) -> list[Path]:
    """Return the parquet file at ``place``, or those in the folder there."""
    if place.is_file():
        return [place] if place.suffix.lower() == ".parquet" else []
    found = [file for pattern in ("*.parquet", "*/*.parquet") for file in place.glob(pattern)]
    # Hidden ones are copies that other programs made.
    return sorted(file for file in found if "/." not in f"/{file.relative_to(place).as_posix()}")


def _split_of(file: Path, place: Path) -> str | None:
    """Return the part that the name of the file or of its folder speaks of, if one does."""
    if file == place:  # a single file is the whole set, whatever it is called
        return None
    for name in (file.stem, file.parent.name if file.parent != place else ""):
        words = re.split(r"[^a-z]+", name.lower())
        if words[0] in _SPLIT_NAMES:
            return _SPLIT_NAMES[words[0]]
        parts = {_SPLIT_NAMES[word] for word in words if word in _SPLIT_NAMES}
        if len(parts) == 1:
            return parts.pop()
    return None


def _note_ignored(what: str, names: list[str]) -> list[str]:
    text = f"{what} {name_some(names)} are neither training, validation nor test part and are ignored"
    return [text] if names else []


def _features(schema: Any) -> dict[str, Any]:
    """Return what the Hugging Face metadata of a table say about its columns."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(metadata)["info"]["features"] if metadata else {}
        return {name: kind for name, kind in features.items() if isinstance(kind, dict)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # a note for another program; the columns speak for themselves


def _label_column(schema: Any, place: str) -> str:
    labelled = [name for name, kind in _features(schema).items() if kind.get("_type") == "ClassLabel"]
    for name in (*(name for name in _LABEL_NAMES if name in labelled), *labelled, *_LABEL_NAMES):
        if name in schema.names:
            return name
    raise DataError(f"{place} has no label column ({', '.join(_LABEL_NAMES)}), only {schema.names}")


def _input_columns(schema: Any, label: str, place: str) -> list[str]:
    """Return the columns that can be inputs, in the order of the table."""
    found = [name for name in schema.names if name != label and _holds_inputs(schema.field(name).type)]
    if not found:
        raise DataError(f"{place} has neither images nor lists of numbers; its columns are {schema.names}")
    return found


def _holds_inputs(kind: Any) -> str:
    """Return ``"images"``, ``"numbers"`` or an empty string."""
    types = require_extra("pyarrow", "data", _PURPOSE).types
    if types.is_struct(kind) and any(field.name == "bytes" for field in kind):
        return "images"
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return "numbers" if is_list and types.is_floating(kind.value_type) else ""


def _part(table: Any, label: str, column: str, place: str) -> RawPart:
    for name in (label, column):
        if table.column_names.count(name) != 1:
            raise DataError(f"{place} must have one column {name!r}; its columns are {table.column_names}")
    labels, inputs = table[label], table[column]
    if labels.null_count:
        raise DataError(f"{place}: {labels.null_count} labels are missing")
    if not require_extra("pyarrow", "data", _PURPOSE).types.is_integer(labels.type):
        raise DataError(f"{place}: labels must be integers, got {labels.type}")
    found = _holds_inputs(inputs.type)
    if found == "images":
        # Chunk by chunk as it is: one array of bytes cannot be larger than 2 GiB.
        content = require_extra("pyarrow.compute", "data", _PURPOSE).struct_field(inputs, "bytes")
        if content.null_count:
            raise DataError(f"{place}: {content.null_count} images are paths only; save them with embedded bytes")
        return RawPart(labels=labels.to_numpy(), images=EncodedImages(content, place))
    if not found:
        raise DataError(f"{place}: {column!r} must hold images or lists of numbers, got {inputs.type}")
    lengths = {length for chunk in inputs.chunks for length in chunk.value_lengths().unique().to_pylist()}
    if inputs.null_count or len(lengths) > 1:
        raise DataError(f"{place}: all lists of numbers must have the same length")
    with np.errstate(over="ignore"):  # what no float32 holds becomes infinite, and check_raw names its row
        numbers = (chunk.flatten().to_numpy(zero_copy_only=False) for chunk in inputs.chunks)
        blocks = [block.astype(np.float32, copy=False) for block in numbers]
    values = np.concatenate([np.zeros(0, dtype=np.float32), *blocks])
    return RawPart(labels=labels.to_numpy(), inputs=values.reshape(len(inputs), next(iter(lengths), 0)))
