"""What a run reports while it is under way: lines, a bar on a terminal, and a small file for other processes.

Bar and file are throttled: a bar redrawn at each step of a small network costs more than the step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Mapping, Sequence
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


class Bar:
    """A rich progress bar on standard error; the words carry the loss parts and the last accuracies."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}", markup=False),  # a class may be called "[/b]"
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(title, total=None, words="")

    def start(self, total_steps: int, done_steps: int) -> None:
        """Show the bar."""
        self._progress.update(self._task, total=total_steps, completed=done_steps)
        self._progress.start()

    def advance(self, done_steps: int, words: str) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=done_steps, words=words)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class ProgressFile:
    """The same as a file, so that a parent process can show many runs side by side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._total = 0

    def start(self, total_steps: int, done_steps: int) -> None:
        """Write the first record."""
        self._total = total_steps
        self.advance(done_steps, "")

    def advance(self, done_steps: int, words: str) -> None:
        """Write a record; a full disk must not end a training for the sake of its bar."""
        with contextlib.suppress(OSError):
            write_text(self._path, json.dumps({"done": done_steps, "total": self._total, "words": words}))

    def close(self) -> None:
        """Nothing is held open."""


# Seconds between two updates.
INTERVAL = 0.3


class Watchers:
    """A progress file and perhaps a bar, each updated every 0.3 seconds at most."""

    def __init__(self, watchers: Sequence[Bar | ProgressFile]) -> None:
        self._watchers = watchers
        self._next = 0.0

    def start(self, total_steps: int, done_steps: int) -> None:
        """Begin."""
        for watcher in self._watchers:
            watcher.start(total_steps, done_steps)

    @property
    def due(self) -> bool:
        """Whether the next update is due; ask first, because its text takes time to build."""
        return bool(self._watchers) and time.monotonic() >= self._next

    def advance(self, done_steps: int, words: str) -> None:
        """Update all of them now."""
        self._next = time.monotonic() + INTERVAL
        for watcher in self._watchers:
            watcher.advance(done_steps, words)

    def close(self) -> None:
        """End."""
        for watcher in self._watchers:
            watcher.close()


def make_watchers(progress_file: Path, title: str, *, show: bool | None = None) -> Watchers:
    """Return the file and, where standard error is a terminal (or ``show``), the bar."""
    watchers: list[Bar | ProgressFile] = [ProgressFile(progress_file)]
    if sys.stderr.isatty() if show is None else show:
        watchers.append(Bar(title))
    return Watchers(watchers)


def words_of(epoch: int, epochs: int, losses: Mapping[str, float], accuracies: Mapping[str, Any]) -> str:
    """Return one line: epoch, loss parts, and the last accuracies on validation.

    Example:
        >>> words_of(2, 5, {"loss": 0.51}, {"overall": 0.8, "hard": 0.65})
        'epoch 3/5 loss 0.510 | overall 80.0 hard 65.0'
    """
    left = " ".join(
        [
            f"epoch {min(epoch + 1, epochs)}/{epochs}",
            *(f"{name} {value:.3f}" for name, value in losses.items()),
        ]
    )
    right = " ".join(
        f"{name} {printable(value) if isinstance(value, str) else format(100 * value, '.1f')}"
        for name, value in accuracies.items()
    )
    return f"{left} | {right}" if right else left
