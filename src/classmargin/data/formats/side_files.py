"""Lists and MATLAB tables that lie beside images and say which class each belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from classmargin.data.errors import DataError


def read_lines(path: Path) -> list[str]:
    """Return the lines that are not empty, without the space around them."""
    if not path.is_file():
        raise DataError(f"{path} is missing; the data set is incomplete")
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_mat(path: Path) -> dict[str, Any]:
    """Return the variables of a MATLAB file; structs become objects with attributes."""
    from scipy.io import loadmat

    if not path.is_file():
        raise DataError(f"{path} is missing; the data set is incomplete")
    try:
        content: dict[str, Any] = loadmat(path, squeeze_me=True, struct_as_record=False)
    except Exception as error:  # loadmat raises many kinds for damaged files
        raise DataError(f"{path} is not a readable .mat file: {error}") from error
    return content
