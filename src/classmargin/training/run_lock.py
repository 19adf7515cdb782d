"""The right to write in a run folder: one process at a time, and a dead one blocks nobody.

Two ways, because file systems differ::

    .lock          the kernel's lock (flock): vanishes with its process, also across machines on NFS;
                   what is written in it only serves the message
    .lock.owner    where the file system has no flock (some Lustre and FUSE mounts, Windows): the file itself
                   is the lock. It outlives a killed process, so it says who that was: process, machine and
                   start of the process. A dead owner on this machine is replaced; of another machine nothing
                   can be known, so the message says which file to delete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}
# Workers forked by a killed run inherit its lock and need some seconds to notice and end.
PATIENCE = 10.0
_ENDED = "ended"


@dataclass(frozen=True)
class Owner:
    """Who holds a lock.

    Attributes:
        pid: Process.
        host: Machine.
        started: When the process began, as its kernel counts; tells a process from a later one with the same
            number. None where that cannot be known.
    """

    pid: int
    host: str
    started: str | None

    @classmethod
    def myself(cls) -> Owner:
        """Return this process."""
        return cls(os.getpid(), platform.node(), _start_of(os.getpid()))

    @property
    def may_live(self) -> bool:
        """Whether the process is alive, or on a machine of which that is not known."""
        if self.host != platform.node() or os.name != "posix":
            return True
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # no process has a number like that
            return False
        except PermissionError:
            pass
        now = _start_of(self.pid)
        return now != _ENDED and (self.started is None or now in (None, self.started))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _start_of(pid: int) -> str | None:
    """Return the start of a process in clock ticks since the boot (Linux), or None where that is not told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold anything, brackets too.
    fields = stat.rpartition(")")[2].split()
    # A killed process keeps its number until its parent has asked how it ended; some parents never do.
    return _ENDED if fields[0] in "ZX" else fields[19]


def read_owner(path: Path) -> Owner | None:
    """Return who wrote a lock file; None if that cannot be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        pid, host, started = record["pid"], record["host"], record["started"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    # A number below 1 would stand for a group of processes, or for all of them.
    known = (
        isinstance(pid, int) and pid > 0 and isinstance(host, str) and isinstance(started, (str, type(None)))
    )
    return Owner(pid, host, started) if known else None


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock at ``path`` while the block runs.

    Raises:
        ValueError: Another process holds it; the message says which.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8", opener=_open_itself) as file:
        if _lock_by_kernel(file.fileno(), path):
            file.truncate(0)
            file.write(json.dumps(asdict(Owner.myself())))
            file.flush()
            yield
        else:
            with _lock_by_file(path.with_name(f"{path.name}.owner")):
                yield


def _open_itself(path: str, flags: int) -> int:
    """Open a file, but not what a link in its place leads to: the lock is emptied, and a link may lead anywhere."""
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(
                f"{path} is a link, and a run writes only inside its own folder; remove it"
            ) from error
        raise


def _lock_by_kernel(descriptor: int, path: Path) -> bool:
    """Take the kernel's lock; return False where there is no such thing."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - not POSIX
        return False
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            if error.errno not in _HELD:
                raise
            owner = read_owner(path)
            if owner is None or owner.may_live or time.monotonic() > deadline:
                raise _in_use(path, owner) from error
        time.sleep(0.1)


def _in_use(path: Path, owner: Owner | None, advice: str = "") -> ValueError:
    who = "another process" if owner is None else str(owner)
    return ValueError(
        f"run folder {path.parent} is in use by {who}; wait for it or choose another --out{advice}"
    )


@contextlib.contextmanager
def _lock_by_file(path: Path) -> Iterator[None]:
    while not _create(path):
        owner = read_owner(path)
        if owner is None or owner.may_live:
            raise _in_use(path, owner, f". If that process is gone, delete {path}")
        _remove_dead_owner(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _create(path: Path) -> bool:
    """Create ``path`` with our name in it; return False if it is there already.

    The name is written first and the file then gets its place: a process killed in between, or a full disk, must
    not leave a lock of nobody.
    """
    named = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        named.write_text(json.dumps(asdict(Owner.myself())), encoding="utf-8")
        os.link(named, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_in_two_steps(path)
    finally:
        named.unlink(missing_ok=True)
    return True


def _create_in_two_steps(path: Path) -> bool:
    """The same where the file system has no hard links either."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Owner.myself())))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _remove_dead_owner(path: Path) -> None:
    """Remove the file of a dead owner, one process at a time: a second one could remove a living owner's."""
    guard = path.with_name(f"{path.name}.takeover")
    try:
        os.close(os.open(guard, os.O_CREAT | os.O_EXCL))
    except FileExistsError as error:
        raise _in_use(path, None, f". If nothing runs there, delete {guard}") from error
    try:
        owner = read_owner(path)
        if owner is not None and not owner.may_live:
            path.unlink(missing_ok=True)
    finally:
        guard.unlink(missing_ok=True)
