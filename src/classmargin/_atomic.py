"""Files that are either whole or not there: write beside the target, then rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MARK = ".part-"


@contextlib.contextmanager
def atomic_path(target: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces ``target`` only if the block ends without an error.

    The folder is created. ``durable`` also flushes file and folder to the disk, so that a power cut cannot undo the rename.
    """
    final = Path(target)
    final.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last, because writers such as numpy.savez append their own when it is missing.
    handle, name = tempfile.mkstemp(prefix=f".{final.stem}{_MARK}", suffix=final.suffix, dir=final.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        if durable:
            flush(temporary)
        os.replace(temporary, final)
        if durable:
            flush(final.parent)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # a failed write does not say of which file
            error.filename = str(final)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed writers left in ``folder``; only its one writer may ask for it."""
    for path in Path(folder).glob(f".*{_MARK}*"):
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
