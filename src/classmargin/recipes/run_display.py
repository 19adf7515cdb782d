"""What a terminal shows of many runs: a bar for each one under way, or a line for each that ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from classmargin._files import read_json
from classmargin._printable import printable


class Display:
    """Plain lines."""

    def __init__(self, total: int, done: int, say: Callable[[str], None]) -> None:
        self.say = say
        self._total = total
        if done:
            say(f"{done} of {total} runs are finished already")

    def begin(self, title: str) -> None:
        """A run was handed to a worker."""

    def update(self, title: str, progress_file: Path) -> None:
        """A run may have made progress."""

    def end(self, title: str, words: str, done: int) -> None:
        """A run has ended, or (without words) waits for another worker."""
        if words:
            self.say(printable(f"[{done}/{self._total}] {words}"))


class _Bars(Display):
    """A bar for each run under way and one for all of them."""

    def __init__(self, total: int, done: int, progress: Any) -> None:
        super().__init__(
            total, done, lambda line: progress.console.print(line, highlight=False, markup=False)
        )
        self._progress = progress
        self._all = progress.add_task("all runs", total=total, completed=done, words="")
        self._tasks: dict[str, Any] = {}

    def begin(self, title: str) -> None:
        self._tasks[title] = self._progress.add_task(title, total=None, words="starting")

    def update(self, title: str, progress_file: Path) -> None:
        record = read_progress(progress_file)
        if record is not None:
            task = self._tasks[title]
            self._progress.update(
                task, total=record["total"], completed=record["done"], words=record["words"]
            )

    def end(self, title: str, words: str, done: int) -> None:
        self._progress.remove_task(self._tasks.pop(title))
        super().end(title, words, done)
        self._progress.update(self._all, completed=done)


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the last record of a run's progress, or None while there is none."""
    try:
        record = read_json(path)
        return {name: record[name] for name in ("total", "done", "words")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def display(total: int, done: int, show: bool | None) -> Iterator[Display]:
    """Yield what shows the runs: bars where standard error is a terminal (or ``show``), else lines."""
    if not (sys.stderr.isatty() if show is None else show):
        yield Display(total, done, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _Bars(total, done, progress)
