"""Arrays of images or features: ``.npz`` files, ``.npy`` files side by side, and the idx files of MNIST.

Keys (or file names): ``x_train, y_train, x_val, y_val, x_test, y_test, class_names``, or ``inputs, labels``
for one set from which validation and test are taken. Two dimensions are features ``[N, d]``; three are grey
images ``[N, H, W]``; four are images with channels last or first. Pickled (object) arrays are refused.

The data set inside the package is such a file: ``embedded/fashion_mnist_mini.npz.xz``, 1 000 images per class of
Fashion-MNIST with unchanged pixels, packed with xz (smaller than PNG-style filtering of these images) by
``scripts/make_fashion_mnist_mini.py``.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from classmargin._array_files import (
    SMALL_ENOUGH,
    ArrayFileError,
    is_suspicious,
    read_npy_array,
    read_npz_arrays,
)
from classmargin._files import UnfitFileError, memory_budget, open_regular, over_budget, read_bytes, read_text
from classmargin.data.raw import DataError, RawData, RawPart

Array = npt.NDArray[Any]
_PART_KEYS = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
_CHANNELS = (1, 3, 4)
_KNOWN = (
    "inputs",
    "labels",
    "class_names",
    *(f"{array}_{ending}" for endings in _PART_KEYS.values() for ending in endings for array in "xy"),
)
# Arrays live in memory; what is larger than this belongs into files that are streamed.
LARGEST = 64 * 2**30
# More token numbers than any tokenizer has; wider integers are something else, such as features in fixed point.
LARGEST_VOCABULARY = 2**24
EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
MINI_FILE = EMBEDDED / "fashion_mnist_mini.npz.xz"


def read_npz(path: Path) -> RawData:
    """Read one ``.npz`` file."""
    try:
        content = read_npz_arrays(path, _KNOWN, max_bytes=memory_budget(LARGEST))
    except (ArrayFileError, OSError) as error:
        raise DataError(f"{error}") from error
    return arrays_to_raw(content, str(path))


def read_npy(path: Path) -> RawData:
    """Read the ``.npy`` files of a folder, or of the folder that ``path`` lies in."""
    folder = path if path.is_dir() else path.parent
    if path != folder and path.stem not in _KNOWN:
        raise DataError(
            f"{path} is one array without labels: call it x_train.npy (or inputs.npy) and put y_train.npy (or "
            "labels.npy) beside it"
        )
    content: dict[str, Array] = {}
    left = memory_budget(LARGEST)
    for file in (folder / f"{name}.npy" for name in _KNOWN):
        if os.path.lexists(file):
            try:
                content[file.stem] = read_npy_array(file, max_bytes=left)
            except (ArrayFileError, OSError) as error:
                raise DataError(f"{error}") from error
            left -= content[file.stem].nbytes
    return arrays_to_raw(content, str(folder))


def read_embedded(path: Path = MINI_FILE) -> RawData:
    """Read the embedded data set after comparing its checksum with ``SHA256SUMS`` beside it."""
    import lzma  # late: some minimal Python builds lack it, and only this set needs it

    packed = read_bytes(path)
    expected = read_checksums(path.with_name("SHA256SUMS")).get(path.name)
    found = hashlib.sha256(packed).hexdigest()
    if found != expected:
        raise DataError(
            f"{path.name} is damaged: its sha256 is {found}, expected {expected}; reinstall the package"
        )
    with np.load(io.BytesIO(lzma.decompress(packed)), allow_pickle=False) as archive:
        return arrays_to_raw({key: archive[key] for key in archive.files}, path.name)


def read_checksums(path: Path) -> dict[str, str]:
    """Return file name -> sha256 of a ``SHA256SUMS`` file as ``sha256sum`` writes it."""
    pairs = (line.split() for line in read_text(path).splitlines() if line.strip())
    return {name.lstrip("*"): digest for digest, name in pairs}


def looks_like_npy_folder(folder: Path) -> bool:
    """Return whether ``folder`` holds ``x_train.npy`` or ``inputs.npy``."""
    return any((folder / f"{name}.npy").is_file() for name in ("x_train", "inputs"))


def arrays_to_raw(content: Mapping[str, Array], place: str) -> RawData:
    """Return the parts that named arrays describe.

    Example:
        >>> images = np.zeros((4, 8, 8), np.uint8)
        >>> raw = arrays_to_raw({"inputs": images, "labels": np.array([0, 1, 0, 1])}, "demo")
        >>> raw.train.inputs.shape
        (4, 1, 8, 8)
    """
    class_names = _class_names(content.get("class_names"), place)
    if "inputs" in content and "labels" in content:
        return RawData(train=_part(content["inputs"], content["labels"], place), class_names=class_names)
    parts = {name: _find_part(content, endings, place) for name, endings in _PART_KEYS.items()}
    train = parts["train"]
    if train is None:
        found = ", ".join(content) or "none of them"
        raise DataError(f"{place} must hold x_train and y_train (or inputs and labels), got {found}")
    return RawData(train, parts["validation"], parts["test"], class_names=class_names)


def _class_names(names: Array | None, place: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise DataError(f"{place}: class_names must be a list of texts, got {names.dtype} {names.shape}")
    return tuple(
        name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names.tolist()
    )


def _find_part(content: Mapping[str, Array], endings: tuple[str, ...], place: str) -> RawPart | None:
    for ending in endings:
        inputs, labels = content.get(f"x_{ending}"), content.get(f"y_{ending}")
        if inputs is not None and labels is not None:
            return _part(inputs, labels, place)
        if inputs is not None or labels is not None:
            raise DataError(f"{place} must hold both x_{ending} and y_{ending}")
    return None


def _part(inputs: Array, labels: Array, place: str) -> RawPart:
    # Labels are often stored as a column [N, 1] (for example by Keras).
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    return RawPart(labels=flat, inputs=_as_inputs(inputs, place))


def _as_inputs(inputs: Array, place: str) -> Array:
    if inputs.ndim == 2 and inputs.dtype.kind in "iu" and inputs.dtype != np.uint8:
        return _as_tokens(inputs, place)
    if not (inputs.dtype == np.uint8 or np.issubdtype(inputs.dtype, np.floating)):
        raise DataError(
            f"{place}: inputs must be uint8 or floating point, or integers [N, T] for the tokens of texts, got "
            f"{inputs.dtype} of shape {inputs.shape}"
        )
    if inputs.ndim == 2:
        return _as_float32(inputs)
    images = inputs if inputs.dtype == np.uint8 else _as_float32(inputs)
    if inputs.ndim == 3:
        return images[:, None]
    if inputs.ndim == 4 and inputs.shape[3] in _CHANNELS:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if inputs.ndim == 4 and inputs.shape[1] in _CHANNELS:
        return images
    raise DataError(
        f"{place}: inputs must be features [N, d] or images [N, H, W], [N, H, W, C] or [N, C, H, W] with "
        f"1, 3 or 4 channels, got shape {inputs.shape}"
    )


def _as_tokens(inputs: Array, place: str) -> Array:
    if inputs.size and not 0 <= int(inputs.min()) <= int(inputs.max()) < LARGEST_VOCABULARY:
        raise DataError(
            f"{place}: token numbers must lie in [0, {LARGEST_VOCABULARY}), got {inputs.min()} to {inputs.max()}; features "
            "are floating point"
        )
    return inputs.astype(np.int64)


def _as_float32(inputs: Array) -> Array:
    with np.errstate(over="ignore"):  # what no float32 holds becomes infinite, and check_raw names its row
        return inputs.astype(np.float32, copy=False)


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
