"""CIFAR-10 and CIFAR-100 as their authors distribute them: folders of pickled batches, read without running them.

A pickle names functions and has them called. Here only the few names that an array of bytes needs resolve at all, each to a
harmless stand-in. The stand-ins collect the description of an array, which is then built from its bytes, with type and length
checked. NumPy's own unpickling code is never reached.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from classmargin._array_files import ArrayFileError, check_pickle
from classmargin._files import memory_budget, read_bytes
from classmargin.data.raw import DataError, RawData, RawPart


class CifarFiles(NamedTuple):
    """The files of one of the two sets, their keys, and what is enough to know the set by."""

    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    label_key: str
    names_key: str
    signs: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All files, relative to the folder of the data set."""
        return tuple(f"{self.folder}/{name}" for name in (*self.train, self.test, self.meta))

    def _inner(self, folder: Path) -> Path:
        return folder / self.folder if (folder / self.folder).is_dir() else folder

    def looks_right(self, folder: Path) -> bool:
        """Return whether ``folder`` (or the folder inside it) holds this set."""
        return all((self._inner(folder) / name).is_file() for name in self.signs)

    def read(self, folder: Path) -> RawData:
        """Read the set in ``folder`` (or in the folder inside it)."""
        inner = self._inner(folder)

        def part(*names: str) -> RawPart:
            batches = [_read_batch(inner / name, self.label_key) for name in names]
            pixels, labels = zip(*batches, strict=True)
            return RawPart(labels=np.concatenate(labels), inputs=np.concatenate(pixels))

        train, test = part(*self.train), part(self.test)
        return RawData(train, test=test, class_names=_names(inner / self.meta, self.names_key))


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10 = CifarFiles(
    "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", "labels", "label_names", _BATCHES[:1]
)
CIFAR100 = CifarFiles(
    "cifar-100-python", ("train",), "test", "meta", "fine_labels", "fine_label_names", ("train", "meta")
)


def _read_batch(path: Path, label_key: str) -> tuple[Any, Any]:
    if not path.is_file():
        raise DataError(f"{path} is missing; the folder of batches is incomplete")
    content = load_pickled_arrays(path)
    pixels, labels = content.get("data"), content.get(label_key)
    if not (
        isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == 3072
    ):
        raise DataError(f"{path}: 'data' must be bytes of shape [N, 3072]")
    whole = isinstance(labels, list) and all(isinstance(label, int) for label in labels)
    if not (whole or isinstance(labels, np.ndarray)):
        raise DataError(f"{path}: {label_key!r} must be a list of whole numbers")
    return pixels.reshape(-1, 3, 32, 32), np.asarray(labels)


def _names(path: Path, key: str) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    names = load_pickled_arrays(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(_decoded(name) for name in names)


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_INTEGER_CODES = {"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"}


class _Dtype:
    """Stands in for a ``numpy.dtype``: remembers the code and the byte order."""

    def __init__(self, code: Any) -> None:
        self.code, self.order = _decoded(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _decoded(state[1] if isinstance(state, tuple) and len(state) > 1 else "|")

    def resolve(self) -> np.dtype[Any]:
        if self.code not in _INTEGER_CODES or self.order not in "|<>=":
            raise DataError(f"the pickle holds an array of type {self.code!r}; only integers are read")
        return np.dtype(f"{self.order if self.order in '<>' else '='}{self.code}")


class _Array:
    """Stands in for a ``numpy.ndarray`` while it is being described; ``value`` is the array in the end."""

    value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[2], _Dtype)):
            raise DataError("the pickle describes an array in an unknown way")
        _version, shape, dtype, fortran, content = state
        kind = dtype.resolve()
        raw = content.encode("latin1") if isinstance(content, str) else content
        sized = isinstance(shape, tuple) and all(isinstance(length, int) and length >= 0 for length in shape)
        if not sized or not isinstance(raw, bytes) or math.prod(shape) * kind.itemsize != len(raw):
            raise DataError(f"the pickle holds an array whose bytes do not fit its shape {shape!r}")
        self.value = np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if fortran else "C")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
        raise DataError("the pickle asks for an unknown text encoding")
    return text.encode("latin1")


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # New functions each time: a pickle could change one that it is handed.
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return lambda *_arguments: _Array()
        if (module, name) == ("numpy", "dtype"):
            return lambda code="", *_flags: _Dtype(code)
        if (module, name) == ("numpy", "ndarray"):
            return "the class numpy.ndarray"  # only ever an argument of _reconstruct
        if (module, name) == ("_codecs", "encode"):  # with which Python 3 writes bytes into old pickles
            return lambda text, encoding="latin1": _encode(text, encoding)
        raise DataError(f"the pickle asks for {module}.{name}, which a file of arrays has no need of: refused")

    def persistent_load(self, pid: Any) -> Any:
        raise DataError("the pickle refers to outside objects: refused")


# The largest of the published files has 186 MB; check_pickle walks through all of it.
LARGEST = 2**30


def load_pickled_arrays(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of integer arrays and plain containers (Python 2 or 3), with text as keys."""
    packed = read_bytes(path, max_bytes=memory_budget(LARGEST))
    try:
        check_pickle(packed)
        content = _RestrictedUnpickler(io.BytesIO(packed), encoding="bytes").load()
    except (DataError, ArrayFileError) as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a dictionary, got {type(content).__name__}")
    return {
        _decoded(key): value.value if isinstance(value, _Array) else value
        for key, value in content.items()
        if isinstance(key, (bytes, str))
    }
