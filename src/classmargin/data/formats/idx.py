"""The idx files of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from classmargin._array_files import SMALL_ENOUGH, is_suspicious
from classmargin._files import UnfitFileError, memory_budget, open_regular, over_budget
from classmargin.data.errors import DataError
from classmargin.data.raw import RawData, RawPart

PARTS = {"train": "train", "test": "t10k"}
_BYTES_TYPE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
# Larger than any idx file in use; keeps a broken header from asking for all memory.
_LARGEST = 4 * 1024**3


def find_idx(folder: Path, part: str, what: str) -> Path | None:
    """Return the file of ``part`` (``train``, ``t10k``) holding ``what`` (``images``, ``labels``), if any."""
    dims = 3 if what == "images" else 1
    for joint in ("-", "."):
        for ending in ("", ".gz"):
            path = folder / f"{part}-{what}{joint}idx{dims}-ubyte{ending}"
            if path.is_file():
                return path
    return None


def looks_like_idx(folder: Path) -> bool:
    """Return whether ``folder`` holds the training images of an idx data set."""
    return find_idx(folder, "train", "images") is not None


def read_idx_folder(folder: Path) -> RawData:
    """Read the four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]``."""
    parts = {}
    for name, prefix in PARTS.items():
        arrays = []
        for what in ("images", "labels"):
            path = find_idx(folder, prefix, what)
            if path is None:
                raise DataError(
                    f"{folder} has no {prefix}-{what}-idx{3 if what == 'images' else 1}-ubyte[.gz]"
                )
            arrays.append(read_idx(path))
        images, labels = arrays
        if images.ndim != 3:
            raise DataError(f"images of {folder} must have 3 dimensions, got shape {images.shape}")
        parts[name] = RawPart(labels=labels, inputs=images[:, None])
    return RawData(train=parts["train"], test=parts["test"])


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read one idx file of bytes.

    The header is two zero bytes, the type, the number of dimensions and one big-endian 32-bit length each.

    Raises:
        DataError: wrong magic number, another type than bytes, or a length that does not fit the header.
    """
    try:
        with open_regular(path) as plain:
            zipped = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            with gzip.open(plain) if zipped else contextlib.nullcontext(plain) as file:
                on_disk = os.fstat(plain.fileno()).st_size
                return _read_body(cast(BinaryIO, file), path, on_disk, zipped=zipped)
    except UnfitFileError as error:
        raise DataError(str(error)) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path} is damaged or cut short: {error}") from error


def _read_body(
    file: BinaryIO | io.BufferedIOBase, path: Path, on_disk: int, *, zipped: bool
) -> npt.NDArray[np.uint8]:
    zeros, kind, dims = struct.unpack(">HBB", file.read(4))
    if zeros != 0 or kind != _BYTES_TYPE or not 1 <= dims <= 4:
        raise DataError(f"{path} is not an idx file of bytes (starts with {zeros:04x} {kind:02x} {dims:02x})")
    shape = struct.unpack(f">{dims}I", file.read(4 * dims))
    size = math.prod(shape)
    # Before memory is taken for it; small differences get the exact message below.
    if is_suspicious(size, on_disk) or (not zipped and size > on_disk + SMALL_ENOUGH):
        raise DataError(
            f"{path} claims {size} bytes for shape {shape}, far more than its {on_disk} bytes hold"
        )
    limit = memory_budget(_LARGEST)
    if size > limit:
        raise DataError(over_budget(path, size, limit))
    content = file.read(size + 1)
    if len(content) != size:
        raise DataError(f"{path} must hold {size} bytes for shape {shape}, got {_amount(len(content), size)}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _amount(found: int, expected: int) -> str:
    return "more" if found > expected else str(found)
