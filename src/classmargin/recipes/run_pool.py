"""Several runs side by side, each in a process of its own with one thread, with a bar for each under way.

Two processes with one thread each get more done than one with two threads, and never collapse beside other
work. Finished runs are skipped; broken ones go on from their checkpoint, because that is what a run does.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classmargin._printable import printable
from classmargin.training.config import RunConfig
from classmargin.training.errors import StoppedError
from classmargin.training.run_folder import RunFolder
from classmargin.training.signals import StopRequest


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to exist.

    Attributes:
        title: For the bar.
        config: What to train.
        folder: Where.
        watch_spread: Note the spread of every class at each evaluation (``spread.jsonl``).
    """

    title: str
    config: RunConfig
    folder: RunFolder
    watch_spread: bool = False


@dataclass
class _Slot:
    """A worker process and the run it is at."""

    process: subprocess.Popen[str]
    run: PlannedRun | None = None
    replies: list[dict[str, Any]] = field(default_factory=list)


def run_all(runs: Sequence[PlannedRun], *, jobs: int, show: bool | None = None) -> dict[str, str]:
    """Bring every run to its end.

    Args:
        runs: What is to be trained; finished ones are left alone.
        jobs: Processes side by side.
        show: Force the bars on or off; by default they appear where standard error is a terminal.

    Returns:
        The error of each run that failed, by its title; empty if all is well.

    Raises:
        StoppedError: A signal asked to stop; the runs under way have saved their state.
    """
    waiting = [run for run in runs if not run.folder.done]
    failed: dict[str, str] = {}
    visible = sys.stderr.isatty() if show is None else show
    stop = StopRequest()
    with stop.listening(), _display(len(runs), len(runs) - len(waiting), visible) as display:
        slots: list[_Slot] = []
        try:
            while waiting or any(slot.run for slot in slots):
                if stop:
                    raise StoppedError(
                        f"stopped by signal {stop.signal_number}; the same command goes on from here",
                        128 + stop.signal_number,
                    )
                _fill(slots, waiting, jobs, display)
                for slot in slots:
                    _collect(slot, failed, display)
                slots = [slot for slot in slots if slot.process.poll() is None or slot.run is not None]
                time.sleep(0.1)
        finally:
            _close(slots)
    return failed


def _fill(slots: list[_Slot], waiting: list[PlannedRun], jobs: int, display: _Display) -> None:
    while waiting:
        free = next((slot for slot in slots if slot.run is None and slot.process.poll() is None), None)
        if free is None and len(slots) >= jobs:
            return
        if free is None:
            free = _start_worker()
            slots.append(free)
        run = waiting[0]
        task = {
            "folder": str(run.folder.path),
            "config": run.config.to_dict(),
            "watch_spread": run.watch_spread,
        }
        assert free.process.stdin is not None
        try:
            free.process.stdin.write(json.dumps(task) + "\n")
            free.process.stdin.flush()
        except BrokenPipeError:  # an idle worker was killed just now; another one gets the run
            free.process.wait()
            slots.remove(free)
            continue
        free.run = waiting.pop(0)
        display.begin(run)


def _start_worker() -> _Slot:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "classmargin.recipes.worker"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # A session of its own: Ctrl-C reaches the parent alone, which then asks the workers to save and end.
    process = subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)
    slot = _Slot(process)
    threading.Thread(target=_listen, args=(slot,), daemon=True).start()
    return slot


def _listen(slot: _Slot) -> None:
    assert slot.process.stdout is not None
    with slot.process.stdout as replies:
        for line in replies:
            slot.replies.append(json.loads(line))


def _collect(slot: _Slot, failed: dict[str, str], display: _Display) -> None:
    if slot.run is None:
        return
    display.update(slot.run)
    error: str | None = None
    if slot.replies:
        error = slot.replies.pop(0)["error"]
    elif slot.process.poll() is not None:
        time.sleep(0.2)  # a last reply may still be on its way through the listening thread
        if slot.replies:
            return
        error = f"its process ended with code {slot.process.returncode}"
    else:
        return
    if error is not None:
        failed[slot.run.title] = error
    display.end(slot.run, error)
    slot.run = None


def _close(slots: list[_Slot]) -> None:
    """End the workers: idle ones by closing their input, busy ones (after an interruption) by asking them."""
    for slot in slots:
        with contextlib.suppress(OSError):
            if slot.process.stdin is not None:
                slot.process.stdin.close()
        if slot.run is not None:
            slot.process.terminate()
    for slot in slots:
        try:
            slot.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            slot.process.kill()
            slot.process.wait()


class _Display:
    """Plain lines: which run begins, ends, or fails."""

    def __init__(self, total: int, done: int, say: Callable[[str], None]) -> None:
        self._total, self._done, self._say = total, done, say
        if done:
            say(f"{done} of {total} runs are finished already")

    def begin(self, run: PlannedRun) -> None:
        """A run was handed to a worker."""

    def update(self, run: PlannedRun) -> None:
        """A run may have gone on."""

    def end(self, run: PlannedRun, error: str | None) -> None:
        """A run has ended."""
        self._done += 1
        outcome = f"failed: {error}" if error else "finished"
        self._say(printable(f"[{self._done}/{self._total}] {run.title} {outcome}"))


class _Bars(_Display):
    """A bar for each run under way and one for all of them."""

    def __init__(self, total: int, done: int, progress: Any) -> None:
        super().__init__(
            total, done, lambda line: progress.console.print(line, highlight=False, markup=False)
        )
        self._progress = progress
        self._all = progress.add_task("all runs", total=total, completed=done, words="")
        self._tasks: dict[str, Any] = {}

    def begin(self, run: PlannedRun) -> None:
        self._tasks[run.title] = self._progress.add_task(run.title, total=None, words="starting")

    def update(self, run: PlannedRun) -> None:
        record = read_progress(run.folder.progress_file)
        if record is not None:
            task = self._tasks[run.title]
            self._progress.update(
                task, total=record["total"], completed=record["done"], words=record["words"]
            )

    def end(self, run: PlannedRun, error: str | None) -> None:
        self._progress.remove_task(self._tasks.pop(run.title))
        super().end(run, error)
        self._progress.update(self._all, completed=self._done)


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the last record of a run's progress, or None while there is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {name: record[name] for name in ("total", "done", "words")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


@contextlib.contextmanager
def _display(total: int, done: int, visible: bool) -> Iterator[_Display]:
    if not visible:
        yield _Display(total, done, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
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
