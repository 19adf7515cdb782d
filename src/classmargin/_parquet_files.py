"""Reading parquet tables from a stranger: batch by batch, with a limit on what they may grow to.

A parquet file of some kilobytes can stand for terabytes (one long text, referred to by a million rows), and what
it says about its own size need not be true. So rows are read in small batches and their real size is summed up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from classmargin._array_files import ArrayFileError
from classmargin._checks import require_extra

# A batch must fit whatever one value is: numbers are small, a text may be a megabyte.
_ROWS_OF_NUMBERS = 65_536
_ROWS = 256


def read_parquet_table(path: Path, *, max_bytes: int, columns: Any = None) -> Any:
    """Return an Arrow table.

    Args:
        path: The file.
        max_bytes: Largest size in memory.
        columns: Says by name which columns are read; all when left out.

    Raises:
        ArrayFileError: Not a parquet file, damaged, or larger than ``max_bytes``.
    """
    parquet = require_extra("pyarrow.parquet", "data", "reading .parquet files")
    arrow = require_extra("pyarrow", "data", "reading .parquet files")
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = [name for name in schema.names if columns is None or columns(name)]
            plain = all(arrow.types.is_primitive(schema.field(name).type) for name in names)
            batches, size = [], 0
            for batch in file.iter_batches(batch_size=_ROWS_OF_NUMBERS if plain else _ROWS, columns=names):
                size += batch.nbytes
                if size > max_bytes:
                    raise ArrayFileError(
                        f"{path} would need {size} bytes or more, more than the limit of {max_bytes}"
                    )
                batches.append(batch)
            return arrow.Table.from_batches(
                batches, arrow.schema([schema.field(name) for name in names], schema.metadata)
            )
    except ArrayFileError:
        raise
    except (
        Exception
    ) as error:  # Arrow raises its own kinds, and OSError, ValueError or MemoryError for damage
        words = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise ArrayFileError(f"{path} is not a readable parquet file ({words})") from error
