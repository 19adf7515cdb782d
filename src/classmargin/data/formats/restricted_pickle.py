"""Reads the pickles in which CIFAR is distributed without ever running what a pickle asks for.

A pickle names functions and has them called. Here every name resolves to a harmless stand-in of this file,
and only the few names that an array of bytes needs resolve at all. The stand-ins collect the description of
an array; the array itself is then built from its bytes, with type and length checked. NumPy's own unpickling
code is never reached.

Two things an unpickler can be made to do without any name are refused by looking at the instructions first: a
memo index far beyond the file's size makes it fill gigabytes with zeros, and a tower of tuples used as a key
overflows the stack when it is hashed.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._array_files import ArrayFileError, check_pickle
from classmargin.data.errors import DataError

_INTEGER_CODES = {"b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"}


class _Dtype:
    """Stands in for ``numpy.dtype``: remembers the code and the byte order."""

    def __init__(self, code: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        self.order = order.decode("ascii") if isinstance(order, bytes) else str(order)

    def resolve(self) -> np.dtype[Any]:
        if self.code not in _INTEGER_CODES or self.order not in "|<>=":
            raise DataError(f"the pickle holds an array of type {self.code!r}; only integers are read")
        return np.dtype(f"{self.order if self.order in '<>' else '='}{self.code}")


class _Array:
    """Stands in for ``numpy.ndarray`` while it is being described; :func:`_finish` turns it into an array."""

    def __init__(self) -> None:
        self.value: np.ndarray[Any, Any] | None = None

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


class _MakeArray:
    """Stands in for NumPy's ``_reconstruct``; without attributes: a pickle can call it, not change it."""

    __slots__ = ()

    def __call__(self, *_arguments: Any) -> _Array:
        return _Array()


class _MakeDtype:
    """Stands in for the class ``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, code: Any = "", *_flags: Any) -> _Dtype:
        return _Dtype(code)


class _Encode:
    """Stands in for ``codecs.encode``, with which Python 3 writes bytes into old pickles."""

    __slots__ = ()

    def __call__(self, text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
            raise DataError("the pickle asks for an unknown text encoding")
        return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy._core.multiarray", "_reconstruct"): _MakeArray(),
    ("numpy", "ndarray"): "the class numpy.ndarray",  # only ever an argument of _reconstruct
    ("numpy", "dtype"): _MakeDtype(),
    ("_codecs", "encode"): _Encode(),
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"the pickle asks for {module}.{name}, which a file of arrays has no need of: refused"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise DataError("the pickle refers to outside objects: refused")


def load_pickled_arrays(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of arrays, lists, numbers and text.

    Args:
        path: File written by Python 2 or 3.

    Returns:
        The dictionary with text keys; byte strings inside stay as they are, arrays are NumPy arrays.

    Raises:
        DataError: the file asks for anything but integer arrays and plain containers, or is not a pickle.
    """
    packed = path.read_bytes()
    try:
        check_pickle(packed)
        content = _RestrictedUnpickler(io.BytesIO(packed), encoding="bytes").load()
    except (DataError, ArrayFileError) as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a broken pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold a dictionary, got {type(content).__name__}")
    return {_text(key): _finish(value) for key, value in content.items() if isinstance(key, (bytes, str))}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _finish(value: Any) -> Any:
    return value.value if isinstance(value, _Array) else value
