"""Encoded images that are opened one at a time: files on disk, or bytes inside a table.

A source is cheap to copy into worker processes: names are packed into one byte array instead of a million
Python strings, whose reference counts would otherwise make every forked worker copy them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class ImageSource(Protocol):
    """What streams need to know about encoded images."""

    def __len__(self) -> int: ...

    def name(self, position: int) -> str:
        """Return a name that a person can find the image by."""

    def open(self, position: int) -> Path | io.BytesIO:
        """Return what Pillow can open."""

    def take(self, rows: npt.NDArray[np.int64]) -> ImageSource:
        """Return the images at ``rows``."""


class ImageFiles:
    """Image files below one folder.

    Example:
        >>> files = ImageFiles(Path("photos"), ["cat/1.png", "dog/2.png"])
        >>> files.name(1), len(files.take(np.array([1])))
        ('dog/2.png', 1)
    """

    def __init__(self, folder: Path, relative: Iterable[str] | npt.NDArray[np.bytes_]) -> None:
        self.folder = folder
        self._names: npt.NDArray[np.bytes_]
        if isinstance(relative, np.ndarray):
            self._names = relative
        else:
            self._names = np.array([os.fsencode(name) for name in relative], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, position: int) -> str:
        """Return the path below the folder."""
        return os.fsdecode(bytes(self._names[position]))

    def open(self, position: int) -> Path:
        """Return the path of the file."""
        return self.folder / self.name(position)

    def take(self, rows: npt.NDArray[np.int64]) -> ImageFiles:
        """Return the files at ``rows``."""
        return ImageFiles(self.folder, self._names[rows])


class EncodedImages:
    """Encoded images (PNG, JPEG, ...) held as bytes, for example a column of a parquet table.

    Args:
        column: Anything whose items are ``bytes`` or, as in Arrow, know ``as_py()``.
        label: Words before the row number in messages.
        rows: Which items of the column belong to this source; all when left out.
    """

    def __init__(self, column: Any, label: str, rows: npt.NDArray[np.int64] | None = None) -> None:
        self._column = column
        self._label = label
        self._rows = np.arange(len(column), dtype=np.int64) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, position: int) -> str:
        """Return the place of the image in the table."""
        return f"{self._label} row {int(self._rows[position])}"

    def open(self, position: int) -> io.BytesIO:
        """Return the encoded bytes as a file."""
        item = self._column[int(self._rows[position])]
        content = item if isinstance(item, bytes) else item.as_py()
        return io.BytesIO(content if content is not None else b"")

    def take(self, rows: npt.NDArray[np.int64]) -> EncodedImages:
        """Return the images at ``rows``."""
        return EncodedImages(self._column, self._label, self._rows[rows])
