"""What a run reports while it is under way: lines, a bar on a terminal, and a small file for other processes."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classmargin._distributed import rank
from classmargin._printable import printable
from classmargin.training.run_folder import write_text


def say(line: str) -> None:
    """Print one line for the user, from one process only."""
    if rank() == 0:
        sys.stderr.write(f"classmargin: {printable(line)}\n")


@functools.cache
def say_once(line: str) -> None:
    """Print a line unless this process has printed it before: runs that differ by their seed share their notices."""
    say(line)


# Seconds between two updates.
INTERVAL = 0.3


class Watchers:
    """A progress file, for a parent that shows many runs, and a bar (``show`` None: on a terminal)."""

    def __init__(self, file: Path | None = None, title: str = "", *, show: bool | None = False) -> None:
        self._file, self._total, self._next = file, 0, 0.0
        self._bar: Any = None
        if sys.stderr.isatty() if show is None else show:
            self._bar = _new_bar()
            self._task = self._bar.add_task(title, total=None, words="")

    def start(self, total_steps: int, done_steps: int) -> None:
        """Show the bar and write the first record."""
        self._total = total_steps
        if self._bar is not None:
            self._bar.update(self._task, total=total_steps, completed=done_steps)
            self._bar.start()
        self._write(done_steps, "")

    @property
    def due(self) -> bool:
        """Whether the next update is due; ask first, because its text takes time to build."""
        return (self._file is not None or self._bar is not None) and time.monotonic() >= self._next

    def advance(self, done_steps: int, words: str) -> None:
        """Update file and bar now."""
        self._next = time.monotonic() + INTERVAL
        if self._bar is not None:
            self._bar.update(self._task, completed=done_steps, words=words)
        self._write(done_steps, words)

    def _write(self, done_steps: int, words: str) -> None:
        if self._file is not None:
            # A full disk must not end a training for the sake of its bar.
            with contextlib.suppress(OSError):
                record = {"done": done_steps, "total": self._total, "words": words}
                write_text(self._file, json.dumps(record))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}", markup=False),  # a class may be called "[/b]"
        console=Console(stderr=True),
    )


def words_of(epoch: int, epochs: int, losses: Mapping[str, float], accuracies: Mapping[str, Any]) -> str:
    """Return one line: epoch, loss parts, and the last accuracies on validation."""
    parts = [f"{name} {value:.3f}" for name, value in losses.items()]
    left = " ".join([f"epoch {min(epoch + 1, epochs)}/{epochs}", *parts])
    right = " ".join(
        f"{name} {printable(value) if isinstance(value, str) else format(100 * value, '.1f')}"
        for name, value in accuracies.items()
    )
    return f"{left} | {right}" if right else left
