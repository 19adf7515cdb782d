"""The folder of a run: which file lies where, who may write, and whether it is finished.

::

    RUN/config.toml        what ran          run.json          versions, git state, sessions
        metrics.jsonl      one record a line  metrics.csv, class_accuracy.csv   the same for spreadsheets
        checkpoint/        see checkpoint.py  predictions.npz   test scores, labels, features, ids
        audit.json         report.html        progress.json     how far it is (for whoever watches)
        done               exists when all of the above is final

One process writes at a time. The lock is the kernel's (``flock``): it vanishes with its process, so the lock
of a killed run is free at once; the pid inside is for the message.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, read_toml, to_toml


class RunFolder:
    """Paths and small files of one run.

    Args:
        path: The folder; created when something is first written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
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
        write_text(self.config_file, to_toml(config))

    def read_config(self) -> RunConfig:
        """Return the configuration the run was started with."""
        if not self.started:
            raise ValueError(f"{self.path} is not a run folder: it has no config.toml")
        return build(read_toml(self.config_file))

    def mark_done(self, summary: dict[str, Any]) -> None:
        """Say that the run is finished; written last of all."""
        write_json(self.done_file, summary)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the right to write here.

        Raises:
            ValueError: Another living process holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock_file = self.path / ".lock"
        with lock_file.open("a+", encoding="utf-8") as file:
            _take(file.fileno(), lock_file)
            file.truncate(0)
            file.write(json.dumps({"pid": os.getpid()}))
            file.flush()
            yield


def _take(descriptor: int, lock_file: Path, patience: float = 10.0) -> None:
    try:
        import fcntl
    except ImportError:  # pragma: no cover - no flock outside POSIX; one writer is then the user's own care
        return
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            holder = _holder(lock_file)
            # Workers forked by a killed run inherit its lock and need some seconds to notice and end.
            if holder is None or _alive(holder) or time.monotonic() > deadline:
                who = f"process {holder}" if holder else "another process"
                raise ValueError(
                    f"run folder {lock_file.parent} is in use by {who}; wait for it or choose another --out"
                ) from error
        time.sleep(0.1)


def _holder(lock_file: Path) -> int | None:
    try:
        return int(json.loads(lock_file.read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, readable by people."""
    write_text(path, json.dumps(value, indent=1, allow_nan=True) + "\n")
