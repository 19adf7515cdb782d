"""A file system that breaks at a chosen moment: counts what a process does to the files of one folder and, at
the n-th operation, kills the process or lets the operation fail.

It is installed in the process under test by the harness (:func:`install`), around the functions of the
operating system; the product knows nothing of it::

    mkdir  unlink  rmdir  rename  replace  truncate  fsync        of os
    write                                                         text files, safetensors, npz archives

Operations are counted from 1. A *write* can also break half way: half of the bytes are on the disk then.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import pathlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KILLS = ("kill-before", "kill-half", "kill-after")
ERRORS = ("ENOSPC", "EIO", "short-write")
KINDS = (*KILLS, *ERRORS)
# Requests to stop that come in the middle of an operation, which is then completed.
REQUESTS = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
# What a full disk refuses; it still lets files go.
GROWING = ("mkdir", "write", "fsync", "rename", "replace")


@dataclass(frozen=True)
class Fault:
    """What breaks and when.

    Attributes:
        kind: One of :data:`KINDS` or of :data:`REQUESTS`.
        number: The operation that breaks, counted from 1; 0 only counts.
        lasting: Whether all later operations of :data:`GROWING` fail as well (a disk that stays full).
        place: Count only operations whose path holds this.
    """

    kind: str
    number: int
    lasting: bool = False
    place: str = ""


class FaultyFiles:
    """The counter and the breaker.

    Args:
        fault: What breaks.
        folder: Only files below it count.
        journal: Where operations are written down, one per line, as they happen; not below ``folder``.
    """

    def __init__(self, fault: Fault, folder: pathlib.Path, journal: pathlib.Path) -> None:
        self._fault = fault
        self._folder = os.path.realpath(folder)
        self._journal = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        self._count = 0

    def run(self, name: str, path: Any, action: Callable[[], Any], half: Callable[[], None] | None = None) -> Any:
        """Do ``action``, or what the fault makes of it."""
        where = self._inside(path)
        if where is None:
            return action()
        fault = self._fault
        if fault.place not in where:
            return action()
        self._count += 1
        os.write(self._journal, f"{self._count} {name} {where}\n".encode())
        if self._count == fault.number:
            return self._break(name, where, action, half)
        if fault.lasting and fault.kind in ERRORS and 0 < fault.number < self._count and name in GROWING:
            raise _error(fault.kind, where)
        return action()

    def _inside(self, path: Any) -> str | None:
        """Return the path below the folder, or None; the progress file counts nowhere, its moments are chance."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        name = os.path.abspath(os.fspath(path))
        if not name.startswith(self._folder) or "progress" in name:
            return None
        return name[len(self._folder) :] or "/"

    def _break(self, name: str, where: str, action: Callable[[], Any], half: Callable[[], None] | None) -> Any:
        kind = self._fault.kind
        os.write(self._journal, f"{kind} at {name} {where}\n".encode())
        if kind in REQUESTS:
            os.kill(os.getpid(), REQUESTS[kind])
            return action()
        if kind in ("kill-half", "short-write") and half is not None:
            half()
        if kind == "kill-after":
            with contextlib.suppress(OSError):
                action()
        if kind in KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        raise _error(kind, where)


def _error(kind: str, where: str) -> OSError:
    number = errno.EIO if kind == "EIO" else errno.ENOSPC
    return OSError(number, os.strerror(number), where)


def install(fault: Fault, folder: pathlib.Path, journal: pathlib.Path) -> None:
    """Put the fault between this process and its files; there is no way back but the end of the process."""
    files = FaultyFiles(fault, folder, journal)
    _wrap_calls(files)
    _wrap_text_writes(files)
    _wrap_array_writes(files)


def _wrap_calls(files: FaultyFiles) -> None:
    for name, position in (
        ("mkdir", 0), ("unlink", 0), ("rmdir", 0), ("rename", 1), ("replace", 1), ("truncate", 0), ("fsync", 0),
    ):  # fmt: skip
        setattr(os, name, _counted(files, name, getattr(os, name), position))


def _counted(files: FaultyFiles, name: str, call: Callable[..., Any], position: int) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        path = arguments[position]
        directory = options.get("dir_fd")
        if directory is not None:  # rmtree works relative to open folders
            path = os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
        return files.run(name, path, lambda: call(*arguments, **options))

    return counted


def _wrap_text_writes(files: FaultyFiles) -> None:
    plain_open = io.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        stream = plain_open(file, mode, *arguments, **options)
        if "b" in mode or not set(mode) & set("wa+x") or not isinstance(file, (str, os.PathLike)):
            return stream
        plain_write = stream.write

        def write(text: str) -> Any:
            def half() -> None:
                plain_write(text[: len(text) // 2])
                stream.flush()

            def whole() -> Any:
                written = plain_write(text)
                stream.flush()  # an operation is on the disk when it is counted
                return written

            return files.run("write", file, whole, half)

        stream.write = write
        return stream

    io.open = opened
    builtins.open = opened
    pathlib.Path.open = lambda self, mode="r", *a, **k: opened(str(self), mode, *a, **k)  # type: ignore[method-assign,assignment]


def _wrap_array_writes(files: FaultyFiles) -> None:
    import numpy
    import safetensors.torch

    save_file, savez = safetensors.torch.save_file, numpy.savez

    def half_of(path: Any, whole: Callable[[], Any]) -> Callable[[], None]:
        def half() -> None:
            whole()
            size = os.stat(path).st_size
            with io.FileIO(path, "r+") as file:
                file.truncate(size // 2)

        return half

    def save_tensors(tensors: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        whole = lambda: save_file(tensors, path, *arguments, **options)  # noqa: E731
        return files.run("write", path, whole, half_of(path, whole))

    def save_arrays(path: Any, *arguments: Any, **options: Any) -> Any:
        whole = lambda: savez(path, *arguments, **options)  # noqa: E731
        return files.run("write", path, whole, half_of(path, whole))

    safetensors.torch.save_file = save_tensors
    numpy.savez = save_arrays
