"""The folder of a run: which file lies where, who may write, whether it is finished, and what ran where.

::

    RUN/config.toml        what ran          run.json          versions, git state, sessions
        metrics.jsonl      one record per line metrics.csv, class_accuracy.csv   the same for spreadsheets
        checkpoint/        see checkpoint.py  predictions.npz   test scores, labels, features, ids
        audit.json         report.html        progress.json     how far it is (for whoever watches)
        done               exists when all of the above is final

One process writes at a time: the lock is the kernel's and vanishes with its process. Whoever gets it removes what a
killed process left half written. Files that decide what a later start does are flushed to the disk before it goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from classmargin._atomic import atomic_path, remove_leftovers
from classmargin._files import read_json, read_text
from classmargin.evaluation.json_values import to_plain
from classmargin.training.config import RunConfig, identity
from classmargin.training.config_reader import build, read_toml, to_toml
from classmargin.training.devices import numerics

LOCK_FILE = ".lock"
# Where the lock is not let go at once by the workers that a killed run has forked (versions of filelock before 4).
PATIENCE = 10.0
PACKAGES = ("classmargin", "torch", "numpy", "lightning", "safetensors")


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.model_file = self.path / "model.json"
        self.record_file = self.path / "run.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.checkpoint_folder = self.path / "checkpoint"
        self.failure_folder = self.path / "failure"
        self.predictions_file = self.path / "predictions.npz"
        self.audit_file = self.path / "audit.json"
        self.report_file = self.path / "report.html"
        self.progress_file = self.path / "progress.json"
        self.done_file = self.path / "done"

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return self.config_file.exists()

    @property
    def done(self) -> bool:
        """Whether the run here is finished."""
        return self.done_file.exists()

    def write_config(self, config: RunConfig) -> None:
        """Write the effective configuration."""
        write_text(self.config_file, to_toml(config), durable=True)

    def read_config(self) -> RunConfig:
        """Return the configuration the run was started with."""
        if not self.started:
            raise ValueError(f"{self.path} is not a run folder: it has no config.toml")
        tables = read_toml(self.config_file)
        try:
            return build(tables)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.config_file}: {error}") from error

    def mark_done(self, summary: dict[str, Any]) -> None:
        """Say that the run is finished; written last of all."""
        write_json(self.done_file, summary, durable=True)

    def remove_unbegun(self) -> None:
        """Remove a folder, under its lock, in which no run was begun and nobody else has files."""
        if self.started:
            return
        with contextlib.suppress(OSError):
            remove_leftovers(self.path)
            self.model_file.unlink(missing_ok=True)
            if all(path.name.startswith(LOCK_FILE) for path in self.path.iterdir()):
                (self.path / LOCK_FILE).unlink(missing_ok=True)
                self.path.rmdir()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the right to write here."""
        with hold_lock(self.path / LOCK_FILE):
            remove_leftovers(self.path)
            yield


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock at ``path`` while the block runs; whoever else holds it is named in a ``ValueError``.

    Without ``flock`` the file itself is the lock: that of a dead process of this machine is taken over.
    """
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # the lock is written to, and a link may lead anywhere
        raise ValueError(f"{path} is a link, and a run writes only inside its own folder; remove it")
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except TimeoutError as error:
        owner = read_owner(path)
        if owner is None or not owner.is_dead:
            raise _in_use(path, owner) from error
        try:
            lock.acquire(timeout=PATIENCE)
        except TimeoutError:
            raise _in_use(path, owner) from error
    try:
        if not isinstance(lock, filelock.SoftFileLock):  # which writes the same itself
            path.write_text(f"{os.getpid()}\n{platform.node()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


class Owner(NamedTuple):
    """Who holds a lock, as it says itself."""

    pid: int
    host: str

    @property
    def is_dead(self) -> bool:
        """Whether the process is known to have ended."""
        if self.host != platform.node() or os.name != "posix":
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # no process has a number like that
            return True
        except PermissionError:
            pass
        return False


def read_owner(path: Path) -> Owner | None:
    """Return whom a lock file names; None if that cannot be read."""
    try:
        pid, host, *_ = read_text(path, max_bytes=4096).splitlines()
        owner = Owner(int(pid), host)
    except (OSError, ValueError):
        return None
    # A number below 1 would stand for a group of processes, or for all of them.
    return owner if owner.pid > 0 else None


def _in_use(path: Path, owner: Owner | None) -> ValueError:
    who, advice = "another process", ""
    if owner is not None:
        who = f"process {owner.pid} on {owner.host}"
        advice = "" if owner.host == platform.node() else f". If that process is gone, delete {path}"
    return ValueError(f"run folder {path.parent} is in use by {who}; wait for it or choose another --out{advice}")


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a small file atomically, and flush it to the disk if ``durable``."""
    with atomic_path(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write strict JSON atomically, readable by people; what is not a number becomes ``null``."""
    write_text(path, json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n", durable=durable)


def add_session(folder: RunFolder, config: RunConfig, resumed_step: int | None) -> None:
    """Append this start to ``run.json``; ``resumed_step`` is None for a first one."""
    record: dict[str, Any] = {"identity": identity(config), "seed": config.loop.seed, "sessions": []}
    if folder.record_file.exists():
        lost = {**record, "note": "an earlier record was unreadable and is lost"}
        record = _read(folder.record_file) or lost
    record["sessions"].append({**session(resumed_step), "numerics": numerics(config)})
    write_json(folder.record_file, record)


def recorded_numerics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return what the bits of every session of a run were decided by, where its record can be read."""
    record = _read(folder.record_file) if folder.record_file.exists() else None
    sessions = record["sessions"] if record is not None else []
    known = [session.get("numerics") for session in sessions if isinstance(session, dict)]
    return [found for found in known if isinstance(found, dict) and isinstance(found.get("device"), str)]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = read_json(file)
        return record if isinstance(record["sessions"], list) else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def session(resumed_step: int | None = None) -> dict[str, Any]:
    """Return time, command, versions, machine and git state of this process."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "resumed_from_step": resumed_step,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "git": git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """Return commit and whether files differ from it, of the folder the command runs in; None without a commit."""
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    headers = [line for line in answer.splitlines() if line.startswith("# ")]
    commit, modified = headers[0].removeprefix("# branch.oid "), len(answer.splitlines()) > len(headers)
    return None if commit == "(initial)" else {"commit": commit, "modified": modified}
