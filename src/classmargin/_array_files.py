"""Reading NumPy files and Parquet tables from a stranger: nothing is unpickled, nothing is allocated on trust.

Sizes are compared before any memory is taken: what the zip directory declares, what the array headers claim, and how strongly the
data is packed (real scores and images pack less than a hundred to one, a zip bomb a thousand to one), all wanted members together. The
declared values of a Parquet file (a hundred million zeros are one number and a count) are multiplied by their sizes; and because
metadata need not be true, the real size of the rows is summed up as they are read.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from classmargin._checks import require_extra
from classmargin._files import MAX_MEMORY, UnfitFileError, in_units, open_regular, over_budget
from classmargin._progress import progress

AnyArray = npt.NDArray[Any]

SUSPICIOUS_RATIO = 100
SMALL_ENOUGH = 64 * 2**20
# Arrays that may be mapped are read into memory up to this size: then the file may change or go.
MAPPED_FROM = 256 * 2**20
_LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
# Rows without columns, or columns without rows: more of them are no empty part of a data set.
MOST_EMPTY = 2**24
# A batch of a table must fit whatever one value is: numbers are small, a text may be a megabyte.
_ROWS_OF_NUMBERS, _ROWS = 65_536, 256
_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_BYTES_OF_TEXT = 64  # it becomes an object of Python in the end, whatever its length
# Run lengths pack sorted labels far better than zip does, but not for ever.
SUSPICIOUS_TABLE_RATIO = 500
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, OverflowError)


class ArrayFileError(UnfitFileError):
    """A file of arrays cannot be used; the message says which file and why."""


def is_suspicious(size: int, packed: int) -> bool:
    """Return whether so few packed bytes that become so many are more likely a bomb than data."""
    return size > SMALL_ENOUGH and size > SUSPICIOUS_RATIO * max(packed, 1)


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except _BROKEN as error:
        raise ArrayFileError(f"{path} is not a complete .npz file ({error})") from error


def read_npz_arrays(
    path: Path, names: Iterable[str], *, max_bytes: int, mapped: Iterable[str] = ()
) -> dict[str, AnyArray]:
    """Return the arrays of ``path`` in ``names``; large ones in ``mapped`` are mapped (see :func:`release_pages`).

    Those that are not compressed are mapped in place and do not count for ``max_bytes``, compressed ones from a temporary file.
    """
    with _archive(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        wanted = {f"{name}.npy": name for name in names}
        for info in archive.infolist():
            if (name := wanted.get(info.filename)) in members:
                raise ArrayFileError(f"{path} holds {name!r} more than once")
            if name is not None:
                members[name] = info
        large = {name for name in mapped if name in members and members[name].file_size > MAPPED_FROM}
        in_place = {name for name in large if members[name].compress_type == zipfile.ZIP_STORED}
        read = [info for name, info in members.items() if name not in in_place]
        total = _check_sizes(path, read, max_bytes)
        # All headers before the first array: a lie in the last one costs nothing.
        for info in members.values():
            with archive.open(info) as stream:
                _check_header(stream, f"{path}: {info.filename!r}", info.file_size)
        # Unpacking hundreds of megabytes takes seconds; small files are there at once.
        show = None if total > SMALL_ENOUGH else False
        shown = progress(members.items(), "reading arrays", total=len(members), show=show)
        return {name: _read_member(path, archive, info, mapped=name in large) for name, info in shown}


def archive_names(path: Path) -> list[str]:
    """Return the names of the members of ``path``, unread."""
    with _archive(path) as archive:
        return archive.namelist()


def check_archive(path: Path, *, max_bytes: int) -> None:
    """Refuse a file of weights that a library would unpack without asking how large it becomes."""
    try:
        with open_regular(path) as file:
            size = packed = os.fstat(file.fileno()).st_size
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    size = max(size, sum(info.file_size for info in archive.infolist()))
    except _BROKEN:
        return  # its reader says better what is wrong with it
    if size > max_bytes:
        raise ArrayFileError(over_budget(path, size, max_bytes))
    if is_suspicious(size, packed):
        raise ArrayFileError(f"{path} would unpack to {size} bytes: refused as a possible zip bomb")


def _check_sizes(path: Path, members: Iterable[zipfile.ZipInfo], max_bytes: int) -> int:
    """Return the unpacked size of all members, or refuse them."""
    total = packed = 0
    for info in members:
        total, packed = total + info.file_size, packed + info.compress_size
    if is_suspicious(total, packed):
        raise ArrayFileError(
            f"{path} declares {total} bytes for its arrays in {packed} packed bytes; refused as a possible zip bomb"
        )
    if total > max_bytes:
        raise ArrayFileError(over_budget(path, total, max_bytes))
    return total


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, mapped: bool) -> AnyArray:
    where = f"{path}: {info.filename!r}"
    if not mapped:
        with archive.open(info) as stream:
            return _read_array(stream, where)
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
    """Give a temporary file without a name to write a large array into and to map; it goes with its last mapping."""
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
    """Return the array of an ``.npy`` file, mapped where it is large and may be."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if mapped and size > MAPPED_FROM:
            return _map_array(stream, 0, size, str(path))
        if size > max_bytes:
            raise ArrayFileError(over_budget(path, size, max_bytes))
        _check_header(stream, str(path), size)
        stream.seek(0)
        return _read_array(stream, str(path))


def _check_header(stream: IO[bytes], where: str, size: int) -> None:
    try:
        shape, _, dtype = _header(stream)
    except Exception as error:  # a Python literal: broken ones raise from SyntaxError to MemoryError
        raise ArrayFileError(f"{where} is not a NumPy array ({first_line(error)[:200]})") from error
    if dtype.hasobject:
        raise ArrayFileError(f"{where} holds pickled Python objects, which are never loaded")
    if dtype.itemsize == 0:  # any number of them fits into no bytes at all
        raise ArrayFileError(f"{where} claims shape {shape} of items without size ({dtype.str}): refused")
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > size:
        raise ArrayFileError(f"{where} claims shape {shape} of {dtype}, more than its {size} bytes hold")
    # Rows that cost nothing until one is counted.
    if math.prod(max(length, 1) for length in shape) > size + MOST_EMPTY:
        raise ArrayFileError(f"{where} claims shape {shape}, of which nothing is stored: refused")


def _read_array(stream: IO[bytes], where: str) -> AnyArray:
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
    """Refuse what a pickle can do to its reader without naming any function.

    A memo index far beyond the file's size makes the reader fill gigabytes with zeros; a tower of tuples that is used as a
    key overflows the stack when it is hashed.
    """
    import pickletools

    nests = 0
    for instruction, argument, _ in pickletools.genops(packed):
        if instruction.name in _MEMO and int(argument or 0) > len(packed):
            raise ArrayFileError("the pickle asks for more memory than its size explains: refused")
        nests += instruction.name in _HASHED_NESTS
        if nests > MOST_NESTS:
            raise ArrayFileError("the pickle nests tuples, which a file of arrays has no need of: refused")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def read_parquet_table(path: Path, *, max_bytes: int, columns: Callable[[Any], Sequence[str]] | None = None) -> Any:
    """Return an Arrow table of all columns, or of those that ``columns`` names, given the Arrow schema."""
    parquet = require_extra("pyarrow.parquet", "data", "reading .parquet files")
    arrow = require_extra("pyarrow", "data", "reading .parquet files")
    with _in_words(path):
        opened = open_regular(path)
    with opened as stream:
        with _in_words(path):
            file = parquet.ParquetFile(stream)
            schema = file.schema_arrow
        names = list(schema.names if columns is None else columns(schema))
        with _in_words(path):
            _check_declared(path, file.metadata, set(names), os.fstat(stream.fileno()).st_size, max_bytes)
            plain = all(arrow.types.is_primitive(schema.field(name).type) for name in names)
            batches, size = [], 0
            for batch in file.iter_batches(batch_size=_ROWS_OF_NUMBERS if plain else _ROWS, columns=names):
                size += batch.nbytes
                if size > max_bytes:
                    raise ArrayFileError(over_budget(path, size, max_bytes, at_least=True))
                batches.append(batch)
            return arrow.Table.from_batches(
                batches, arrow.schema([schema.field(name) for name in names], schema.metadata)
            )


@contextlib.contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Turn what Arrow raises (its own kinds, and OSError, ValueError or MemoryError for damage) into our error."""
    try:
        yield
    except UnfitFileError:
        raise
    except Exception as error:
        raise ArrayFileError(f"{path} is not a readable .parquet table ({first_line(error)[:300]})") from error


def _check_declared(path: Path, metadata: Any, names: set[str], on_disk: int, max_bytes: int) -> None:
    size = sum(
        _decoded_bytes(metadata.row_group(group).column(leaf))
        for leaf in range(len(metadata.schema))
        if _belongs(metadata.schema.column(leaf).path, names)
        for group in range(metadata.num_row_groups)
    )
    if size > max_bytes:
        raise ArrayFileError(over_budget(path, size, max_bytes))
    # Whoever states a budget has allowed that much.
    if size > SMALL_ENOUGH and size > SUSPICIOUS_TABLE_RATIO * on_disk and not os.environ.get(MAX_MEMORY):
        words = f"{path} has {on_disk} bytes and would become {in_units(size)} in memory"
        raise ArrayFileError(f"{words}; refused as a possible bomb. If it is one of yours, give --max-memory")


def _belongs(path: str, names: set[str]) -> bool:
    # The parts of a nested column are called column.part, and a name may have dots of its own.
    ends = [place for place, letter in enumerate(path) if letter == "."]
    return path in names or any(path[:end] in names for end in ends)


def _decoded_bytes(chunk: Any) -> int:
    each = _BYTES.get(chunk.physical_type)
    if each is None:
        return int(max(chunk.num_values, 0) * _BYTES_OF_TEXT + max(chunk.total_uncompressed_size, 0))
    return int(max(chunk.num_values * each, chunk.total_uncompressed_size))
