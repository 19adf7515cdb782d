"""Line files of a run that can be cut back to the moment of a checkpoint, so that a resumed run has the same.

A checkpoint records the length of every file (:meth:`LogFiles.lengths`); a resume cuts them back to it
(:meth:`LogFiles.cut`), because lines after it will be written again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class LogFiles:
    """Append-only text files of a folder, by name."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = tuple(names)

    def append(self, name: str, line: str) -> None:
        """Add one line.

        Raises:
            OSError: The disk does not take it; the message names the file.
        """
        path = self._folder / name
        try:
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(line)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def is_empty(self, name: str) -> bool:
        """Whether nothing has been written yet."""
        path = self._folder / name
        return not path.exists() or path.stat().st_size == 0

    def csv_header(self, name: str) -> list[str]:
        """Return the column names of a CSV file."""
        with (self._folder / name).open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file))

    def lengths(self) -> dict[str, int]:
        """Return the length of each file in bytes, after flushing them to the disk."""
        return {name: self._flushed_length(self._folder / name) for name in self._names}

    @staticmethod
    def _flushed_length(path: Path) -> int:
        if not path.exists():
            return 0
        with path.open("rb") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut every file back to the given length (0 where none is given).

        Raises:
            ValueError: One of them is a link: the folder may come from somebody else, and what the link leads to
                is not ours to cut.
        """
        for name in self._names:
            path = self._folder / name
            if path.is_symlink():
                raise ValueError(f"{path} is a link, and a run writes only inside its own folder; remove it")
            if path.exists() and path.stat().st_size > lengths.get(name, 0):
                os.truncate(path, lengths.get(name, 0))


def json_line(record: Mapping[str, Any]) -> str:
    r"""Return a record as one line of JSON; numbers that JSON lacks become null.

    Example:
        >>> json_line({"epoch": 1, "loss": float("nan")})
        '{"epoch": 1, "loss": null}\n'
    """
    return json.dumps({key: _jsonable(value) for key, value in record.items()}) + "\n"


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value


# The sign that makes a spreadsheet compute, in its wide form too, where a cell begins: at the start, or behind a
# separator of another country's tables (a comma or a line break is quoted by the writer).
_FORMULA = re.compile(r"(^|[;\t])(?=[\s\0\ufeff\u200b]*[=+\-@＝＋－＠])")


def safe_cell(text: str) -> str:
    """Return text that a spreadsheet shows instead of computing it.

    Class names come from files of others; one that begins like a formula would run when the table is opened.

    Example:
        >>> safe_cell("=HYPERLINK(1)"), safe_cell("t-shirt"), safe_cell("-5 °C"), safe_cell("a;=1")
        ("'=HYPERLINK(1)", 't-shirt', "'-5 °C", "a;'=1")
    """
    marked = _FORMULA.sub(r"\1'", text)
    return f"'{marked}" if marked.startswith(("\t", "\r", "\n")) else marked


def csv_line(values: Sequence[Any]) -> str:
    r"""Return values as one line of CSV.

    Example:
        >>> csv_line(["shirt, white", 0.5])
        '"shirt, white",0.5\r\n'
    """
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()
