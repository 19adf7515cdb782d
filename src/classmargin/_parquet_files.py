"""Reading parquet tables from a stranger: sizes first, then batch by batch, with a limit on what they may grow to.

A parquet file of some kilobytes can stand for gigabytes: a hundred million zeros are one number and a count, one long text
can be referred to by a million rows. So the number of values that the metadata declare is multiplied by the size of each
before anything is decoded; and because metadata need not be true, the real size of the rows is summed up as they are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from classmargin._array_files import SMALL_ENOUGH, ArrayFileError
from classmargin._checks import require_extra
from classmargin._files import MAX_MEMORY, UnfitFileError, in_units, open_regular, over_budget

# A batch must fit whatever one value is: numbers are small, a text may be a megabyte.
_ROWS_OF_NUMBERS = 65_536
_ROWS = 256
_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
# A text becomes an object of Python in the end, whatever its length.
_BYTES_OF_TEXT = 64
# Run lengths pack sorted labels far better than zip does, but not for ever.
SUSPICIOUS_RATIO = 500

Columns = Callable[[Any], Sequence[str]]


def read_parquet_table(path: Path, *, max_bytes: int, columns: Columns | None = None) -> Any:
    """Return an Arrow table.

    Args:
        path: The file.
        max_bytes: Largest size in memory.
        columns: Given the Arrow schema, returns the names of the columns to read; all when left out.

    Raises:
        ArrayFileError: Not a parquet file, damaged, larger than ``max_bytes``, or packed as only a bomb is.
    """
    parquet = require_extra("pyarrow.parquet", "data", "reading .parquet files")
    arrow = require_extra("pyarrow", "data", "reading .parquet files")
    with _in_words(path):
        stream = open_regular(path)
    with stream:
        with _in_words(path):
            file = parquet.ParquetFile(stream)
            schema = file.schema_arrow
        names = list(schema.names if columns is None else columns(schema))
        with _in_words(path):
            _check_declared(path, file.metadata, set(names), os.fstat(stream.fileno()).st_size, max_bytes)
            plain = all(arrow.types.is_primitive(schema.field(name).type) for name in names)
            batches, size = [], 0
            for batch in file.iter_batches(batch_size=_ROWS_OF_NUMBERS if plain else _ROWS, columns=names):
                size += batch.nbytes
                if size > max_bytes:
                    raise ArrayFileError(over_budget(path, size, max_bytes, at_least=True))
                batches.append(batch)
            return arrow.Table.from_batches(
                batches, arrow.schema([schema.field(name) for name in names], schema.metadata)
            )


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Turn what Arrow raises (its own kinds, and OSError, ValueError or MemoryError for damage) into our error."""
    try:
        yield
    except ArrayFileError:
        raise
    except (UnfitFileError, FileNotFoundError, PermissionError) as error:
        raise ArrayFileError(str(error)) from error
    except Exception as error:
        words = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise ArrayFileError(f"{path} is not a readable .parquet table ({words})") from error


def _check_declared(path: Path, metadata: Any, names: set[str], on_disk: int, max_bytes: int) -> None:
    size = sum(
        _decoded_bytes(metadata.row_group(group).column(leaf))
        for leaf in _leaves(metadata.schema, names)
        for group in range(metadata.num_row_groups)
    )
    if size > max_bytes:
        raise ArrayFileError(over_budget(path, size, max_bytes))
    # Whoever states a budget has allowed that much.
    if size > SMALL_ENOUGH and size > SUSPICIOUS_RATIO * on_disk and not os.environ.get(MAX_MEMORY):
        raise ArrayFileError(
            f"{path} has {on_disk} bytes and would become {in_units(size)} in memory, which hardly any real table does; "
            "refused as a possible bomb. If it is one of yours, give --max-memory"
        )


def _leaves(schema: Any, names: set[str]) -> list[int]:
    """Return the positions of the stored columns that belong to columns called ``names``."""
    paths = [schema.column(leaf).path for leaf in range(len(schema))]
    return [leaf for leaf, path in enumerate(paths) if _belongs(path, names)]


def _belongs(path: str, names: set[str]) -> bool:
    # The parts of a nested column are called column.part, and a name may have dots of its own.
    ends = [place for place, letter in enumerate(path) if letter == "."]
    return path in names or any(path[:end] in names for end in ends)


def _decoded_bytes(chunk: Any) -> int:
    each = _BYTES.get(chunk.physical_type)
    if each is None:
        return int(max(chunk.num_values, 0) * _BYTES_OF_TEXT + max(chunk.total_uncompressed_size, 0))
    return int(max(chunk.num_values * each, chunk.total_uncompressed_size))
