"""Reading arrays out of an ``.npz`` from a stranger: nothing is unpickled, nothing is allocated on trust.

Sizes are compared before any memory is taken: what the zip directory declares, what the array header claims, and how
strongly the data is packed (real scores pack less than ten to one; a zip bomb packs a thousand to one).
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from classmargin.evaluation.inputs import AnyArray


class PredictionFileError(ValueError):
    """A prediction file cannot be used; the message says which file and why."""


DEFAULT_MAX_BYTES = 8 * 2**30
SUSPICIOUS_RATIO = 100
SMALL_ENOUGH = 64 * 2**20


def read_npz(path: Path, names: Iterable[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, AnyArray]:
    """Return the arrays of ``path`` whose name is in ``names``; other members are not read.

    Raises:
        PredictionFileError: Not a zip, truncated, object arrays, sizes that do not fit or are too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _wanted(path, archive, names)
            _check_sizes(path, members.values(), max_bytes)
            return {name: _read_member(path, archive, info) for name, info in members.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise PredictionFileError(f"{path} is not a complete .npz file ({error})") from error


def _wanted(path: Path, archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, zipfile.ZipInfo]:
    wanted = {f"{name}.npy": name for name in names}
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = wanted.get(info.filename)
        if name is not None and name in members:
            raise PredictionFileError(f"{path} holds {name!r} more than once")
        if name is not None:
            members[name] = info
    return members


def _check_sizes(path: Path, members: Iterable[zipfile.ZipInfo], max_bytes: int) -> None:
    total = 0
    for info in members:
        total += info.file_size
        if info.file_size > SMALL_ENOUGH and info.file_size > SUSPICIOUS_RATIO * max(info.compress_size, 1):
            raise PredictionFileError(
                f"{path} declares {info.file_size} bytes for {info.filename!r} in {info.compress_size} packed bytes, "
                "which no real predictions need; refused as a possible zip bomb"
            )
    if total > max_bytes:
        raise PredictionFileError(f"{path} would need {total} bytes, more than the limit of {max_bytes}")


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    with archive.open(info) as stream:
        try:
            shape, dtype = _header(stream)
        except ValueError as error:
            raise PredictionFileError(f"{path}: {info.filename!r} is not a NumPy array ({error})") from error
        if dtype.hasobject:
            raise PredictionFileError(
                f"{path}: {info.filename!r} holds pickled Python objects, which are never loaded"
            )
        if math.prod(shape) * dtype.itemsize > info.file_size:
            raise PredictionFileError(
                f"{path}: {info.filename!r} claims shape {shape} of {dtype}, more than its {info.file_size} bytes hold"
            )
    with archive.open(info) as stream:
        try:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
        except ValueError as error:
            raise PredictionFileError(f"{path}: {info.filename!r} cannot be read ({error})") from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"unknown format version {version}")
    return shape, dtype
