"""Opening files from a stranger: regular files only, opened once, never more bytes than the caller expects.

A link to ``/dev/zero`` in place of a JSON file has no end, and a named pipe is waited for without end. So what was opened is looked
at (not the name, which may lead elsewhere by then), and what is read is counted. How much memory the contents of a file may take is
decided here as well.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

# Settings, records, lists of names: the largest that we write have some megabytes.
SMALL_FILE = 64 * 2**20
# Logs and audits grow with classes and epochs.
LONG_FILE = 256 * 2**20
# Where the budget of readers is stated. A variable, because the processes that a command starts read files too.
MAX_MEMORY = "CLASSMARGIN_MAX_MEMORY"
# However little memory is left, an ordinary file is read.
LEAST_BUDGET = 256 * 2**20
# Letters in the first line of a table, and bytes of each cell once it is parsed (a number and its mask, or a reference to a text).
_LONGEST_HEADER = 16 * 2**20
_BYTES_OF_CELL = 16
_BLOCK = 2**20
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_KINDS = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class UnfitFileError(ValueError):
    """Something that is not to be read as a file, or is larger than its kind ever is; the message names it."""


def open_regular(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file, also by a link; a device, a pipe, a socket or more than ``max_bytes`` raises an UnfitFileError."""
    file = open(path, "rb", opener=without_waiting)  # noqa: SIM115 - the caller closes it
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise UnfitFileError(f"{os.fspath(path)} must be a regular file, got {kind}")
        if max_bytes is not None and status.st_size > max_bytes:
            raise _too_large(path, max_bytes)
    except BaseException:
        file.close()
        raise
    return file


def without_waiting(path: str, flags: int) -> int:
    """Open a file as ``open(opener=...)`` wants it, but never wait for the other end of a pipe, nor take a terminal."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def check_regular(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> None:
    """Check a file that a library insists on opening by itself; raises as :func:`open_regular` does."""
    open_regular(path, max_bytes=max_bytes).close()


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Check every file of a folder that a library reads by itself; raises as :func:`open_regular` does."""
    for place, _, names in os.walk(folder):
        for name in names:
            check_regular(Path(place, name))


def read_bytes(path: str | os.PathLike[str], *, max_bytes: int = SMALL_FILE) -> bytes:
    """Return what a regular file holds; raises as :func:`open_regular` does."""
    blocks, size = [], 0
    with open_regular(path, max_bytes=max_bytes) as file:
        # Counted as well: some files say that they are empty (/proc), others grow meanwhile.
        while block := file.read(_BLOCK):
            size += len(block)
            if size > max_bytes:
                raise _too_large(path, max_bytes)
            blocks.append(block)
    return b"".join(blocks)


def read_text(
    path: str | os.PathLike[str], *, max_bytes: int = SMALL_FILE, encoding: str = "utf-8", errors: str = "strict"
) -> str:
    """Return the text of a regular file, with the line ends of any system as one; errors as of :func:`read_bytes`."""
    text = read_bytes(path, max_bytes=max_bytes).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | os.PathLike[str], *, max_bytes: int = SMALL_FILE) -> Any:
    """Return what a JSON file holds; also raises what :func:`json.loads` does."""
    return json.loads(read_text(path, max_bytes=max_bytes))


def read_csv_header(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> list[str]:
    """Return the column names of a comma-separated table, if it fits into ``max_bytes`` once it is parsed."""
    with open_regular(path) as file:
        try:
            rows = csv.reader(_lines(file, path), skipinitialspace=True, strict=False)
            header = next((row for row in rows if row), [])
        except csv.Error as error:
            raise UnfitFileError(f"{os.fspath(path)} has no readable first line ({error})") from error
        file.seek(0)
        size = lines = 0
        while max_bytes is not None and (block := file.read(_BLOCK)):
            size, lines = size + len(block), lines + block.count(b"\n")
            needed = max(size, lines * len(header) * _BYTES_OF_CELL)
            if needed > max_bytes:
                raise UnfitFileError(over_budget(path, needed, max_bytes, at_least=True))
    return header


def _lines(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield lines of text, none longer than any header."""
    encoding = "utf-8-sig"
    while line := file.readline(_LONGEST_HEADER):
        if len(line) == _LONGEST_HEADER:
            raise UnfitFileError(f"{os.fspath(path)} has a first line of {len(line)} bytes or more")
        yield line.decode(encoding)
        encoding = "utf-8"


def _too_large(path: str | os.PathLike[str], max_bytes: int) -> UnfitFileError:
    return UnfitFileError(f"{os.fspath(path)} is larger than {max_bytes} bytes, the most that is read of such a file")


def parse_size(name: str, text: str) -> int:
    """Return the number of bytes that ``text`` stands for: ``"2GB"``, ``"1.5 MiB"``, ``"4096"``."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    base = 1024 if found and found[3] else 1000
    size = int(float(found[1]) * base ** _UNITS[found[2]]) if found else 0
    if not 0 < size < 2**63:
        raise ValueError(f"{name} must be a size such as 500MB, 2GB or 1.5GiB, got {text[:80]!r}")
    return size


# Half of it by default, because most readers make a second copy somewhere.
def memory_budget(cap: int, *, share: float = 0.5) -> int:
    """Return how many bytes the contents of a file may take in memory: as stated, or ``share`` of what is free, at most ``cap``."""
    stated = os.environ.get(MAX_MEMORY)
    if stated:
        return parse_size(MAX_MEMORY, stated)
    free = available_memory()
    return cap if free is None else max(min(cap, int(share * free)), LEAST_BUDGET)


@contextlib.contextmanager
def stated_budget(text: str | None) -> Iterator[None]:
    """Make ``text`` (see :func:`parse_size`) the budget of all readers while the block runs; None changes nothing."""
    if text is None:
        yield
        return
    parse_size("--max-memory", text)
    before = os.environ.get(MAX_MEMORY)
    os.environ[MAX_MEMORY] = text
    try:
        yield
    finally:
        if before is None:
            del os.environ[MAX_MEMORY]
        else:
            os.environ[MAX_MEMORY] = before


def available_memory() -> int | None:
    """Return the bytes that this process may take: free ones of the machine, or all of its container; None if unknown."""
    known = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system tells
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):
        words = Path("/proc/meminfo").read_text(encoding="ascii")
        known += [int(size) * 1024 for size in re.findall(r"^MemAvailable:\s+(\d+) kB$", words, re.MULTILINE)]
    # What is taken of a container says little: the cache of files counts, which gives way when memory is needed.
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max"
            known.append(int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
    return min(known, default=None)


def in_units(size: int) -> str:
    """Return a size for people, in the units that :func:`parse_size` takes."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB")):
        if size >= 1000**power:
            return f"{size / 1000**power:.1f} {unit}"
    return f"{size} bytes"


def over_budget(path: str | os.PathLike[str], size: int, limit: int, *, at_least: bool = False) -> str:
    """Return the sentence for a file whose contents do not fit the budget."""
    return (
        f"{os.fspath(path)} would need {in_units(size)} of memory{' or more' if at_least else ''}, more than the limit of "
        f"{in_units(limit)}; --max-memory (or {MAX_MEMORY}) sets another one"
    )
