"""One runner for every command that trains many runs: ``compare-methods``, ``reproduce``, ``sweep``, ``improve``.

A command says *what* is to exist, as a list of :class:`PlannedRun` or, where a result decides what comes next, as a
:class:`RunSource`. Engine ``local`` has worker processes on this machine, ``ray`` the same worker program on the nodes of a
cluster (both: :mod:`~classmargin.recipes.workers`); ``inline`` trains in this process, for tests and debuggers. Under torchrun or
srun all processes train each run together (:mod:`~classmargin.recipes.launched_ranks`).

Finished runs are skipped and interrupted ones resume; a run whose worker dies is handed to another one; Ctrl-C and SIGTERM let the
runs under way save their state. Two processes with one thread get more done than one with two: every worker has one thread.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from classmargin._checks import check_choice
from classmargin._printable import printable
from classmargin.recipes.train_run import read_progress
from classmargin.recipes.workers import Worker, starting_workers
from classmargin.training.config import RunConfig
from classmargin.training.devices import device_kind
from classmargin.training.run_folder import RunFolder, recorded_numerics
from classmargin.training.stopping import StoppedError, StopRequest

ENGINES = ("local", "ray", "inline")
POLL_SECONDS = 0.05
# A run is given up when it was handed out this often and each time its worker died: then it is what kills them.
MOST_DEATHS = 3


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to exist."""

    title: str  # for progress and messages; unique within a command
    config: RunConfig
    folder: RunFolder
    watch_spread: bool = False  # note the spread of every class at each evaluation (spread.jsonl)
    test: bool = True  # whether the test set is looked at; without it the run ends trained and not `done`
    judged: bool = False  # whether the source is asked after each evaluation if the run may continue
    notices: bool = True  # whether the run says what a user should know about its data
    validation: bool = False  # keep the predictions on the validation samples beside the run

    def task(self) -> dict[str, Any]:
        """Return what a worker must know, as plain values."""
        flags = {name: value for name, value in vars(self).items() if isinstance(value, bool)}
        return {"folder": str(self.folder.path.resolve()), "config": self.config.to_dict(), **flags}


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    kind: str  # finished, fell_behind (the source said no), diverged, failed, or unwritable (the disk)
    words: str = ""  # the error, where there is one
    selected_epoch: int | None = None  # epoch whose weights a finished run kept; None for the last


class RunSource(Protocol):
    """Where runs come from, for commands that decide as they go; all calls come from one thread of one process."""

    @property
    def total(self) -> int:
        """How many runs there will be."""

    @property
    def done(self) -> int:
        """How many have ended, those of earlier calls included."""

    def take(self) -> PlannedRun | None:
        """Return the next run, or None if there is none (now: it is asked again when a run has ended)."""

    def may_go_on(self, run: PlannedRun, epoch: int, accuracies: Mapping[str, float]) -> bool:
        """Return whether a run that is ``judged`` continues after an evaluation."""

    def end(self, run: PlannedRun, ending: Ending) -> str:
        """Take note of the end of a run and return what to say about it."""


def run_all(
    runs: Sequence[PlannedRun], *, engine: str = "local", jobs: int = 1, show: bool | None = None
) -> dict[str, str]:
    """Bring every run to its end, ``jobs`` at a time, and return the error of each that failed, by its title.

    Finished runs are left alone. ``show`` forces the progress bars on or off; by default a terminal decides.
    """
    from classmargin.recipes.launched_ranks import are_launched

    planned = _PlannedRuns(runs)
    # Runs that round differently are not set side by side; all but the device is part of their names.
    here = {device_kind(run.config.machine.accelerator) for run in planned.waiting}
    found = here.union(*({one["device"] for one in recorded_numerics(run.folder)} for run in runs))
    if len(found) > 1:
        raise ValueError(
            f"the runs of {runs[0].folder.path.parent} would be computed on different devices "
            f"({', '.join(sorted(found))}) and are to be compared; resume them where they were begun, or choose another --out"
        )
    if planned.waiting or are_launched():  # other ranks wait to be told that there is nothing to train
        devices = max((run.config.machine.devices for run in planned.waiting), default=1)
        run_from(planned, engine=engine, jobs=jobs, devices=devices, show=show)
    elif planned.done:
        Display(planned.total, planned.done, show=False)
    return planned.failed


def run_from(
    source: RunSource, *, engine: str = "local", jobs: int = 1, devices: int = 1, show: bool | None = None
) -> None:
    """Train what a source hands out until it has nothing left; a cluster reserves ``devices`` for each run.

    Stopped by a signal, the runs under way have saved their state and did not ``end``.
    """
    from classmargin.recipes import launched_ranks, run_worker

    check_choice("engine", engine, ENGINES)
    if launched_ranks.are_launched():
        launched_ranks.join()
        _one_by_one(source, lambda run: launched_ranks.train_together(run.task()), show)
    elif engine == "inline":

        def train_here(run: PlannedRun) -> dict[str, Any]:
            judge = lambda epoch, accuracies: source.may_go_on(run, epoch, accuracies)  # noqa: E731
            return run_worker.train_task(run.task(), judge)

        _one_by_one(source, train_here, show)
    else:
        with starting_workers(engine, jobs, devices) as start_worker:
            _Pool(source, start_worker, jobs).run(show)


class _PlannedRuns:
    """A list as a source."""

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        unique = list({run.folder.path: run for run in runs}.values())
        self.waiting = [run for run in unique if not run.folder.done]
        self.total, self.done = len(unique), len(unique) - len(self.waiting)
        self.failed: dict[str, str] = {}

    def take(self) -> PlannedRun | None:
        return self.waiting.pop(0) if self.waiting else None

    def may_go_on(self, run: PlannedRun, epoch: int, accuracies: Mapping[str, float]) -> bool:
        return True

    def end(self, run: PlannedRun, ending: Ending) -> str:
        self.done += 1
        if ending.kind == "finished":
            return f"{run.title} finished"
        self.failed[run.title] = ending.words
        return f"{run.title} failed: {ending.words}"


def _one_by_one(source: RunSource, train: Callable[[PlannedRun], dict[str, Any]], show: bool | None) -> None:
    with Display(source.total, source.done, show) as shown:
        while (run := source.take()) is not None:
            shown.begin(run.title)
            ending = Ending(**train(run))
            shown.end(run.title, source.end(run, ending), source.done)


@dataclass
class _Slot:
    """A worker and the run it is at."""

    number: int
    worker: Worker
    run: PlannedRun | None = None


class _Pool:
    """Runs of a source over a number of workers."""

    def __init__(self, source: RunSource, start_worker: Callable[[int], Worker], jobs: int) -> None:
        self._source, self._start, self._jobs = source, start_worker, jobs
        self._slots: list[_Slot] = []
        self._again: list[PlannedRun] = []
        self._deaths: Counter[Path] = Counter()

    def run(self, show: bool | None) -> None:
        stop, source = StopRequest(), self._source
        with stop.listening(), Display(source.total, source.done, show) as shown:
            try:
                while True:
                    if stop:
                        words = f"stopped by signal {stop.signal_number}; the same command resumes"
                        raise StoppedError(words, 128 + stop.signal_number)
                    self._fill(shown)
                    busy = [slot for slot in self._slots if slot.run is not None]
                    if not busy:
                        return
                    for slot in busy:
                        self._collect(slot, shown)
                    time.sleep(POLL_SECONDS)
            finally:
                for slot in self._slots:
                    slot.worker.close(busy=slot.run is not None)
                for slot in self._slots:
                    slot.worker.wait()

    def _fill(self, shown: Display) -> None:
        """Hand out runs while there are runs and free workers."""
        for slot in [slot for slot in self._slots if not slot.run and slot.worker.poll()[1] is not None]:
            self._drop(slot)
        while len([slot for slot in self._slots if slot.run]) < self._jobs:
            run = self._again.pop(0) if self._again else self._source.take()
            if run is None:
                return
            if all(slot.run for slot in self._slots):
                number = min(set(range(self._jobs)) - {slot.number for slot in self._slots})
                self._slots.append(_Slot(number, self._start(number)))
            slot = next(slot for slot in self._slots if slot.run is None)
            slot.run, again = run, self._deaths[run.folder.path] > 0  # its last worker may still be at its last breath
            with contextlib.suppress(OSError):  # it was killed while it was idle; its exit code will tell
                slot.worker.send({"run": {**run.task(), "wait": again}})
            shown.begin(run.title)

    def _drop(self, slot: _Slot) -> None:
        """Let go of a worker that has ended, with the pipes to it."""
        self._slots.remove(slot)
        slot.worker.close(busy=False)
        slot.worker.wait()

    def _collect(self, slot: _Slot, shown: Display) -> None:
        run = slot.run
        assert run is not None
        shown.update(run.title, run.folder.progress_file)
        messages, code = slot.worker.poll()
        for message in messages:
            if "ended" in message:
                self._end(slot, run, Ending(**message["ended"]), shown)
                return
            self._deaths.pop(run.folder.path, None)  # it makes progress, so it is not what kills workers
            evaluation = message["evaluation"]
            answer = self._source.may_go_on(run, evaluation["epoch"], evaluation["accuracies"])
            with contextlib.suppress(OSError):  # it has died since; its exit code will tell
                slot.worker.send({"may_go_on": answer})
        if code is None:
            return
        self._deaths[run.folder.path] += 1
        if self._deaths[run.folder.path] >= MOST_DEATHS:
            words = f"its worker ended {MOST_DEATHS} times, last with code {code} (out of memory?)"
            self._end(slot, run, Ending("failed", words), shown)
            return
        shown.say(f"the worker of {run.title} ended with code {code}; another one resumes the run")
        shown.end(run.title, "", self._source.done)
        slot.run, self._again = None, [*self._again, run]

    def _end(self, slot: _Slot, run: PlannedRun, ending: Ending, shown: Display) -> None:
        slot.run = None
        if run.config.machine.devices > 1:
            # The launcher of several ranks leaves its marks in a process, which can then not start others.
            self._drop(slot)
        shown.end(run.title, self._source.end(run, ending), self._source.done)


class Display:
    """A line for each run that ends; on a terminal (or with ``show``) also a bar for each run under way, and one for all."""

    def __init__(self, total: int, done: int, show: bool | None) -> None:
        words = [TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[words]")]
        columns = (words[0], BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn(), words[1])
        visible = sys.stderr.isatty() if show is None else show
        self._bars = Progress(*columns, console=Console(stderr=True), disable=not visible)
        self._total, self._tasks = total, dict[str, TaskID]()
        self._all = self._bars.add_task("all runs", total=total, completed=done, words="")
        if done:
            self.say(f"{done} of {total} runs are finished already")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line on standard error."""
        self._bars.console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def begin(self, title: str) -> None:
        """A run was handed to a worker."""
        self._tasks[title] = self._bars.add_task(title, total=None, words="starting")

    def update(self, title: str, progress_file: Path) -> None:
        """A run may have made progress."""
        if not self._bars.disable and (record := read_progress(progress_file)):
            self._bars.update(self._tasks[title], completed=record.pop("done"), **record)

    def end(self, title: str, words: str, done: int) -> None:
        """A run has ended, or (without words) waits for another worker."""
        self._bars.remove_task(self._tasks.pop(title))
        if words:
            self.say(printable(f"[{done}/{self._total}] {words}"))
        self._bars.update(self._all, completed=done)
