"""Reading NumPy files from a stranger: nothing is unpickled, nothing is allocated on trust.

Sizes are compared before any memory is taken: what the zip directory declares, what the array headers claim, and how
strongly the data is packed (real scores and images pack less than a hundred to one; a zip bomb a thousand to one). All
members that are wanted count together: sixty small bombs are a large one.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from classmargin._files import UnfitFileError, open_regular, over_budget
from classmargin._progress import progress

AnyArray = npt.NDArray[Any]

SUSPICIOUS_RATIO = 100
SMALL_ENOUGH = 64 * 2**20
# Arrays that may be mapped are read into memory up to this size: then the file may change or go.
MAPPED_FROM = 256 * 2**20
_LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    OverflowError,
)


class ArrayFileError(ValueError):
    """A file of arrays cannot be used; the message says which file and why."""


def is_suspicious(size: int, packed: int) -> bool:
    """Return whether so few packed bytes that become so many are more likely a bomb than data.

    Example:
        >>> is_suspicious(10**9, 10**6), is_suspicious(10**9, 10**8), is_suspicious(10**6, 10)
        (True, False, False)
    """
    return size > SMALL_ENOUGH and size > SUSPICIOUS_RATIO * max(packed, 1)


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except UnfitFileError as error:
        raise ArrayFileError(str(error)) from error
    except _BROKEN as error:
        raise ArrayFileError(f"{path} is not a complete .npz file ({error})") from error


def read_npz_arrays(
    path: Path, names: Iterable[str], *, max_bytes: int, mapped: Iterable[str] = ()
) -> dict[str, AnyArray]:
    """Return the arrays of ``path`` whose name is in ``names``; other members are not read.

    Args:
        path: The archive.
        names: Arrays to read.
        max_bytes: Largest size in memory.
        mapped: Arrays that are mapped instead of read where they are large (see :func:`release_pages`): those that are not
            compressed in place, then they do not count, compressed ones from a temporary file.

    Raises:
        ArrayFileError: Not a zip, truncated, object arrays, sizes that do not fit or are too large.
    """
    with _archive(path) as archive:
        members = _wanted(path, archive, names)
        large = {name for name in mapped if name in members and members[name].file_size > MAPPED_FROM}
        in_place = {name for name in large if members[name].compress_type == zipfile.ZIP_STORED}
        total = _check_sizes(
            path, [info for name, info in members.items() if name not in in_place], max_bytes
        )
        for (
            info
        ) in members.values():  # all headers before the first array: a lie in the last one costs nothing
            with archive.open(info) as stream:
                _check_header(stream, f"{path}: {info.filename!r}", info.file_size)
        # Unpacking hundreds of megabytes takes seconds; small files are there at once.
        shown = progress(
            members.items(),
            "reading arrays",
            total=len(members),
            show=None if total > SMALL_ENOUGH else False,
        )
        return {
            name: (_map_member if name in large else _read_member)(path, archive, info)
            for name, info in shown
        }


def archive_names(path: Path) -> list[str]:
    """Return the names of the members of ``path``, unread.

    Raises:
        ArrayFileError: Not a zip.
    """
    with _archive(path) as archive:
        return archive.namelist()


def check_archive(path: Path, *, max_bytes: int) -> None:
    """Refuse a file of weights that a library would unpack without asking how large it becomes.

    Raises:
        ArrayFileError: Not a regular file, larger than ``max_bytes``, or a zip archive whose members are.
    """
    try:
        with open_regular(path) as file:
            size = packed = os.fstat(file.fileno()).st_size
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    size = max(size, sum(info.file_size for info in archive.infolist()))
    except UnfitFileError as error:
        raise ArrayFileError(str(error)) from error
    except _BROKEN:
        return  # its reader says better what is wrong with it
    if size > max_bytes:
        raise ArrayFileError(over_budget(path, size, max_bytes))
    if is_suspicious(size, packed):
        raise ArrayFileError(f"{path} would unpack to {size} bytes: refused as a possible zip bomb")


def _wanted(path: Path, archive: zipfile.ZipFile, names: Iterable[str]) -> dict[str, zipfile.ZipInfo]:
    wanted = {f"{name}.npy": name for name in names}
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = wanted.get(info.filename)
        if name is not None and name in members:
            raise ArrayFileError(f"{path} holds {name!r} more than once")
        if name is not None:
            members[name] = info
    return members


def _check_sizes(path: Path, members: Iterable[zipfile.ZipInfo], max_bytes: int) -> int:
    """Return the unpacked size of all members, or refuse them."""
    total = packed = 0
    for info in members:
        total, packed = total + info.file_size, packed + info.compress_size
        if is_suspicious(info.file_size, info.compress_size):
            raise ArrayFileError(
                f"{path} declares {info.file_size} bytes for {info.filename!r} in {info.compress_size} packed bytes, "
                "which no real data need; refused as a possible zip bomb"
            )
    if is_suspicious(total, packed):
        raise ArrayFileError(
            f"{path} declares {total} bytes for its arrays in {packed} packed bytes, which no real data need; refused "
            "as a possible zip bomb"
        )
    if total > max_bytes:
        raise ArrayFileError(over_budget(path, total, max_bytes))
    return total


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    with archive.open(info) as stream:
        return _read_checked(stream, f"{path}: {info.filename!r}")


def _map_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> AnyArray:
    where = f"{path}: {info.filename!r}"
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as packed, spool(where) as unpacked:
            shutil.copyfileobj(packed, unpacked, 2**20)
            return _map_array(unpacked, 0, info.file_size, where)
    file = archive.fp
    assert file is not None
    file.seek(info.header_offset)
    lengths = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:])  # of the name and of what follows it
    return _map_array(file, info.header_offset + _LOCAL_HEADER + sum(lengths), info.file_size, where)


@contextlib.contextmanager
def spool(where: str) -> Iterator[IO[bytes]]:
    """Give a temporary file without a name to write a large array into and to map; it goes with its last mapping.

    Raises:
        ArrayFileError: No room for it.
    """
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except OSError as error:
        raise ArrayFileError(
            f"{where} cannot be unpacked into {tempfile.gettempdir()} ({error.strerror or error}); set TMPDIR"
        ) from error


def _map_array(file: Any, start: int, size: int, where: str) -> AnyArray:
    file.seek(start)  # also writes what is still in the buffer
    _check_header(file, where, size)
    file.seek(start)
    shape, fortran, dtype = _header(file)
    offset = file.tell()
    if offset + math.prod(shape) * dtype.itemsize > min(start + size, os.fstat(file.fileno()).st_size):
        raise ArrayFileError(f"{where} claims shape {shape} of {dtype}, more than its {size} bytes hold")
    # Copy on write: an array as any other to its user, and nothing ever reaches the file.
    return np.memmap(file, dtype, "c", offset, shape, order="F" if fortran else "C")


def release_pages(array: AnyArray | None) -> None:
    """Give back the memory of what has been read of a mapped array; nothing happens to any other."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


def read_npy_array(path: Path, *, max_bytes: int, mapped: bool = False) -> AnyArray:
    """Return the array of an ``.npy`` file, mapped where it is large and may be.

    Raises:
        ArrayFileError: Not such a file, cut short, too large, or one that holds Python objects.
    """
    try:
        stream = open_regular(path)
    except UnfitFileError as error:
        raise ArrayFileError(str(error)) from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if mapped and size > MAPPED_FROM:
            return _map_array(stream, 0, size, str(path))
        if size > max_bytes:
            raise ArrayFileError(over_budget(path, size, max_bytes))
        _check_header(stream, str(path), size)
        stream.seek(0)
        return _read_checked(stream, str(path))


def _check_header(stream: IO[bytes], where: str, size: int) -> None:
    try:
        shape, _, dtype = _header(stream)
    except (
        Exception
    ) as error:  # the header is a Python literal: broken ones raise from SyntaxError to MemoryError
        raise ArrayFileError(f"{where} is not a NumPy array ({_words(error)})") from error
    if dtype.hasobject:
        raise ArrayFileError(f"{where} holds pickled Python objects, which are never loaded")
    if dtype.itemsize == 0:  # any number of them fits into no bytes at all
        raise ArrayFileError(f"{where} claims shape {shape} of items without size ({dtype.str}): refused")
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > size:
        raise ArrayFileError(f"{where} claims shape {shape} of {dtype}, more than its {size} bytes hold")


def _read_checked(stream: IO[bytes], where: str) -> AnyArray:
    try:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except ValueError as error:
        raise ArrayFileError(f"{where} cannot be read ({error})") from error


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"unknown format version {version}")


_MEMO = {"PUT", "BINPUT", "LONG_BINPUT"}
_HASHED_NESTS = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}
# Five or six for each array: a large network has some thousands. A tower of so many can still be hashed.
MOST_NESTS = 10_000


def check_pickle(packed: bytes) -> None:
    """Refuse two things that a pickle can do to its reader without naming any function.

    A memo index far beyond the file's size makes the reader fill gigabytes with zeros; a tower of tuples that is
    used as a key overflows the stack when it is hashed. (Which names a pickle may use is the unpickler's affair.)

    Raises:
        ArrayFileError: It does one of them, or is no pickle.
    """
    import pickletools

    nests = 0
    for instruction, argument, _ in pickletools.genops(packed):
        if instruction.name in _MEMO and int(argument or 0) > len(packed):
            raise ArrayFileError("the pickle asks for more memory than its size explains: refused")
        nests += instruction.name in _HASHED_NESTS
        if nests > MOST_NESTS:
            raise ArrayFileError("the pickle nests tuples, which a file of arrays has no need of: refused")


def _words(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
