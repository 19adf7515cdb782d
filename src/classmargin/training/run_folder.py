"""The folder of a run: which file lies where, who may write, and whether it is finished.

::

    RUN/config.toml        what ran          run.json          versions, git state, sessions
        metrics.jsonl      one record a line  metrics.csv, class_accuracy.csv   the same for spreadsheets
        checkpoint/        see checkpoint.py  predictions.npz   test scores, labels, features, ids
        audit.json         report.html        progress.json     how far it is (for whoever watches)
        done               exists when all of the above is final

One process writes at a time (see run_lock.py). Whoever gets the lock removes what a killed one left half
written. Files that decide what a later start does are flushed to the disk, so that a power cut cannot leave
an empty ``config.toml`` or a ``done`` without its predictions.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path, remove_leftovers
from classmargin.evaluation.plain import to_plain
from classmargin.training.config import RunConfig
from classmargin.training.config_reader import build, read_toml, to_toml
from classmargin.training.run_lock import hold_lock

LOCK_FILE = ".lock"


class RunFolder:
    """Paths and small files of one run.

    Args:
        path: The folder; created when something is first written.
    """

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
        return build(read_toml(self.config_file))

    def mark_done(self, summary: dict[str, Any]) -> None:
        """Say that the run is finished; written last of all."""
        write_json(self.done_file, summary, durable=True)

    def remove_unbegun(self) -> None:
        """Remove a folder in which no run was begun: what is written before its settings, and itself if nothing else is there.

        Called under the lock, so that nobody else is at work here. The lock goes last: a folder that has it and no
        settings is one in which a run may begin.
        """
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
        """Hold the right to write here.

        Raises:
            ValueError: Another living process holds it.
        """
        with hold_lock(self.path / LOCK_FILE):
            remove_leftovers(self.path)
            yield


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a small file atomically, and flush it to the disk if ``durable``."""
    with atomic_path(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Write strict JSON atomically, readable by people; what is not a number becomes ``null``."""
    write_text(path, json.dumps(to_plain(value), indent=1, allow_nan=False) + "\n", durable=durable)
