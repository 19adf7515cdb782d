"""Arrays of a prediction file, read by the reader that trusts nobody (:mod:`classmargin._array_files`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from classmargin._array_files import ArrayFileError, read_npz_arrays
from classmargin.evaluation.inputs import AnyArray


class PredictionFileError(ValueError):
    """A prediction file cannot be used; the message says which file and why."""


DEFAULT_MAX_BYTES = 8 * 2**30


def read_npz(path: Path, names: Iterable[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, AnyArray]:
    """Return the arrays of ``path`` whose name is in ``names``; other members are not read.

    Raises:
        PredictionFileError: Not a zip, truncated, object arrays, sizes that do not fit or are too large.
    """
    try:
        return read_npz_arrays(path, names, max_bytes=max_bytes)
    except ArrayFileError as error:
        raise PredictionFileError(str(error)) from error
