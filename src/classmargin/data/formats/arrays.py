"""Arrays of images or features: ``.npz`` files, ``.npy`` files side by side, and the idx files of MNIST.

Keys (or file names): ``x_train, y_train, x_val, y_val, x_test, y_test, class_names``, or ``inputs, labels``
for one set from which validation and test are taken. Two dimensions are features ``[N, d]``, or integers for the tokens of
texts; three are grey images ``[N, H, W]``; four are images with channels last or first. Pickled (object) arrays are refused.

The data set inside the package, ``embedded/fashion_mnist_mini.npz.xz``, is made by ``scripts/make_fashion_mnist_mini.py``.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin._array_files import SMALL_ENOUGH, is_suspicious, read_npy_array, read_npz_arrays
from classmargin._files import memory_budget, open_regular, over_budget, read_bytes
from classmargin.data.raw import LARGEST, DataError, RawData, RawPart

Array = npt.NDArray[Any]
_PART_KEYS = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}
_CHANNELS = (1, 3, 4)
_KNOWN = (
    "inputs",
    "labels",
    "class_names",
    *(f"{array}_{ending}" for endings in _PART_KEYS.values() for ending in endings for array in "xy"),
)
# More token numbers than any tokenizer has; wider integers are something else, such as features in fixed point.
LARGEST_VOCABULARY = 2**24
EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
MINI_FILE = EMBEDDED / "fashion_mnist_mini.npz.xz"


def read_npz(path: Path) -> RawData:
    """Read one ``.npz`` file."""
    return arrays_to_raw(read_npz_arrays(path, _KNOWN, max_bytes=memory_budget(LARGEST)), str(path))


def read_npy(path: Path) -> RawData:
    """Read the ``.npy`` files of a folder, or of the folder that ``path`` lies in."""
    folder = path if path.is_dir() else path.parent
    if path != folder and path.stem not in _KNOWN:
        raise DataError(f"{path} is one array without labels: call it x_train.npy and put y_train.npy beside it")
    content: dict[str, Array] = {}
    left = memory_budget(LARGEST)
    for file in (folder / f"{name}.npy" for name in _KNOWN):
        if os.path.lexists(file):
            content[file.stem] = read_npy_array(file, max_bytes=left)
            left -= content[file.stem].nbytes
    return arrays_to_raw(content, str(folder))


def read_embedded(path: Path = MINI_FILE) -> RawData:
    """Read the embedded data set; the xz format carries a checksum."""
    import lzma  # late: some minimal Python builds lack it, and only this set needs it

    try:
        content = lzma.decompress(read_bytes(path))
    except lzma.LZMAError as error:
        raise DataError(f"{path.name} is damaged ({error}); reinstall the package") from error
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return arrays_to_raw({key: archive[key] for key in archive.files}, path.name)


def arrays_to_raw(content: Mapping[str, Array], place: str) -> RawData:
    """Return the parts that named arrays describe."""
    class_names = _class_names(content.get("class_names"), place)
    if "inputs" in content and "labels" in content:
        return RawData(_part(content["inputs"], content["labels"], place), class_names=class_names)
    parts: dict[str, RawPart] = {}
    for name, ending in ((name, ending) for name, endings in _PART_KEYS.items() for ending in endings):
        inputs, labels = content.get(f"x_{ending}"), content.get(f"y_{ending}")
        if name in parts or (inputs is None and labels is None):
            continue
        if inputs is None or labels is None:
            raise DataError(f"{place} must hold both x_{ending} and y_{ending}")
        parts[name] = _part(inputs, labels, place)
    if "train" not in parts:
        found = ", ".join(content) or "none of them"
        raise DataError(f"{place} must hold x_train and y_train (or inputs and labels), got {found}")
    return RawData(parts["train"], parts.get("validation"), parts.get("test"), class_names)


def _class_names(names: Array | None, place: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "USiu":
        raise DataError(f"{place}: class_names must be a list of texts, got {names.dtype} {names.shape}")
    texts = np.char.decode(names, "utf-8", "replace") if names.dtype.kind == "S" else names
    return tuple(str(name) for name in texts.tolist())


def _part(inputs: Array, labels: Array, place: str) -> RawPart:
    # Labels are often stored as a column [N, 1] (for example by Keras).
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    return RawPart(labels=flat, inputs=_as_inputs(inputs, place))


def _as_inputs(inputs: Array, place: str) -> Array:
    shape = inputs.shape
    if inputs.ndim == 2 and inputs.dtype.kind in "iu" and inputs.dtype != np.uint8:
        if inputs.size and not 0 <= int(inputs.min()) <= int(inputs.max()) < LARGEST_VOCABULARY:
            limits = f"in [0, {LARGEST_VOCABULARY}), got {inputs.min()} to {inputs.max()}"
            raise DataError(f"{place}: token numbers must lie {limits}; features are floating point")
        return inputs.astype(np.int64)
    if not (inputs.dtype == np.uint8 or np.issubdtype(inputs.dtype, np.floating)):
        expected = "uint8 or floating point, or integers [N, T] for the tokens of texts"
        raise DataError(f"{place}: inputs must be {expected}, got {inputs.dtype} of shape {shape}")
    if inputs.dtype != np.uint8 or inputs.ndim == 2:
        with np.errstate(over="ignore"):  # what no float32 holds is infinite, and check_raw names its row
            inputs = inputs.astype(np.float32, copy=False)
    if inputs.ndim == 2 or (inputs.ndim == 4 and shape[1] in _CHANNELS and shape[3] not in _CHANNELS):
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    if inputs.ndim == 4 and shape[3] in _CHANNELS:
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    raise DataError(
        f"{place}: inputs must be features [N, d] or images [N, H, W], [N, H, W, C] or [N, C, H, W] with "
        f"1, 3 or 4 channels, got shape {shape}"
    )


_BYTES_TYPE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
# Larger than any idx file in use; keeps a broken header from asking for all memory.
_LARGEST_IDX = 4 * 1024**3


def find_idx(folder: Path, stem: str) -> Path | None:
    """Return the file ``stem``, e.g. ``train-images-idx3``, in one of the ways in which its name is written."""
    stems = (stem, ".".join(stem.rsplit("-", 1)))
    places = (folder / f"{name}-ubyte{ending}" for name in stems for ending in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


def read_idx_folder(folder: Path) -> RawData:
    """Read the four files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]``."""

    def array(stem: str) -> npt.NDArray[np.uint8]:
        path = find_idx(folder, stem)
        if path is None:
            raise DataError(f"{folder} has no {stem}-ubyte[.gz]")
        return read_idx(path)

    def part(name: str) -> RawPart:
        images, labels = array(f"{name}-images-idx3"), array(f"{name}-labels-idx1")
        if images.ndim != 3:
            raise DataError(f"images of {folder} must have 3 dimensions, got shape {images.shape}")
        return RawPart(labels=labels, inputs=images[:, None])

    return RawData(part("train"), test=part("t10k"))


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read one idx file of bytes (header: two zeros, type, number of dimensions, their 32-bit lengths), possibly gzipped."""
    try:
        with open_regular(path) as plain:
            zipped = plain.read(2) == _GZIP_MAGIC
            plain.seek(0)
            on_disk = os.fstat(plain.fileno()).st_size
            with gzip.open(plain) if zipped else contextlib.nullcontext(plain) as file:
                zeros, kind, dims = struct.unpack(">HBB", file.read(4))
                if zeros != 0 or kind != _BYTES_TYPE or not 1 <= dims <= 4:
                    start = f"{zeros:04x} {kind:02x} {dims:02x}"
                    raise DataError(f"{path} is not an idx file of bytes (starts with {start})")
                shape = struct.unpack(f">{dims}I", file.read(4 * dims))
                size = math.prod(shape)
                # Before memory is taken for it; small differences get the exact message below.
                if is_suspicious(size, on_disk) or (not zipped and size > on_disk + SMALL_ENOUGH):
                    raise DataError(
                        f"{path} claims {size} bytes for shape {shape}, far more than its {on_disk} bytes hold"
                    )
                limit = memory_budget(_LARGEST_IDX)
                if size > limit:
                    raise DataError(over_budget(path, size, limit))
                content = file.read(size + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path} is damaged or cut short: {error}") from error
    if len(content) != size:
        found = "more" if len(content) > size else len(content)
        raise DataError(f"{path} must hold {size} bytes for shape {shape}, got {found}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
