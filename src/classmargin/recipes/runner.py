"""One runner for every command that trains many runs: ``compare-methods``, ``reproduce``, ``sweep``.

A command says *what* is to exist, as a list of :class:`PlannedRun` (or, where a result decides what comes next, as a
:class:`RunSource`); the runner brings it about::

    failed = run_all([PlannedRun("erm seed 0", config, RunFolder("out/runs/erm-seed0-…"))], engine="local", jobs=2)

=============  =====================================================================================================
``local``      worker processes on this machine (:mod:`~classmargin.recipes.run_worker`); with accelerators each has
               its own share of them (``CUDA_VISIBLE_DEVICES``)
``ray``        the same worker program on the nodes of a Ray cluster (:mod:`~classmargin.recipes.ray_engine`)
``inline``     one run after another in this process: for tests, debuggers and notebooks
torchrun, srun a launcher has started this command once per device: all its processes train each run together
               (:mod:`~classmargin.recipes.launched_ranks`)
=============  =====================================================================================================

What holds for all of them: finished runs are skipped and interrupted runs resume, because that is what
:func:`~classmargin.recipes.train_run.train` does; a run whose worker dies is handed to another worker; Ctrl-C and SIGTERM
let the runs under way save their state and end with :class:`~classmargin.training.stopping.StoppedError`; the results are
the run folders and nothing else. A run of several devices (``machine.devices``) has a worker to itself.

Two processes with one thread each get more done than one with two threads, so every worker has one thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from classmargin._checks import check_choice
from classmargin.recipes.local_workers import LocalWorker, Worker, accelerator_shares, visible_accelerators
from classmargin.recipes.run_display import Display, display
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
    """A run that is to exist.

    Attributes:
        title: For progress and messages; unique within a command.
        config: What to train.
        folder: Where.
        watch_spread: Note the spread of every class at each evaluation (``spread.jsonl``).
        test: Whether the test set is looked at; without it the run ends trained and not ``done``.
        judged: Whether the source is asked after each evaluation if the run may continue.
        notices: Whether the run says what a user should know about its data.
        validation: Keep the predictions on the validation samples beside the run.
    """

    title: str
    config: RunConfig
    folder: RunFolder
    watch_spread: bool = False
    test: bool = True
    judged: bool = False
    notices: bool = True
    validation: bool = False

    def task(self) -> dict[str, Any]:
        """Return what a worker must know, as plain values."""
        names = ("watch_spread", "test", "judged", "notices", "validation")
        flags = {name: getattr(self, name) for name in names}
        return {"folder": str(self.folder.path.resolve()), "config": self.config.to_dict(), **flags}


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        kind: ``finished``, ``fell_behind`` (the source said no), ``diverged``, ``failed``, or ``unwritable`` (the disk).
        words: The error, where there is one.
        selected_epoch: Epoch whose weights a finished run kept; None for the last.
    """

    kind: str
    words: str = ""
    selected_epoch: int | None = None


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
    """Bring every run to its end.

    Args:
        runs: What is to exist; finished ones are left alone. The same folder twice is trained once.
        engine: One of :data:`ENGINES`.
        jobs: Runs side by side.
        show: Force the progress bars on or off; by default they appear where standard error is a terminal.

    Returns:
        The error of each run that failed, by its title; empty if all is well.

    Raises:
        StoppedError: A signal asked to stop; the runs under way have saved their state.
        ValueError: Some of the runs were computed on another kind of device.
    """
    planned = _PlannedRuns(runs)
    _check_one_device(runs, planned.waiting)
    if planned.waiting:
        devices = max(run.config.machine.devices for run in planned.waiting)
        run_from(planned, engine=engine, jobs=jobs, devices=devices, show=show)
    else:
        with display(planned.total, planned.done, show):
            pass
    return planned.failed


def run_from(
    source: RunSource, *, engine: str = "local", jobs: int = 1, devices: int = 1, show: bool | None = None
) -> None:
    """Train what a source hands out until it has nothing left.

    Args:
        source: Plans runs, and is told how they end.
        engine: As for :func:`run_all`.
        jobs: Runs side by side.
        devices: Devices of each run, for clusters that reserve them.
        show: As for :func:`run_all`.

    Raises:
        StoppedError: A signal asked to stop; the runs under way have saved their state and did not ``end``.
    """
    from classmargin.recipes import launched_ranks

    check_choice("engine", engine, ENGINES)
    if launched_ranks.are_launched():
        launched_ranks.lead(source, show)
        return
    if engine == "inline":
        _run_inline(source, show)
        return
    with _workers_of(engine, jobs, devices) as start_worker:
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


def _check_one_device(runs: Sequence[PlannedRun], waiting: Sequence[PlannedRun]) -> None:
    """Refuse to set runs side by side that round differently; all but the device is part of their names."""
    here = {device_kind(run.config.machine.accelerator) for run in waiting}
    found = here.union(*({one["device"] for one in recorded_numerics(run.folder)} for run in runs))
    if len(found) > 1:
        raise ValueError(
            f"the runs of {runs[0].folder.path.parent} would be computed on different devices "
            f"({', '.join(sorted(found))}) and are to be compared; resume them where they were begun, or choose another --out"
        )


def _run_inline(source: RunSource, show: bool | None) -> None:
    from classmargin.recipes.run_worker import train_task

    with display(source.total, source.done, show) as shown:
        while (run := source.take()) is not None:
            shown.begin(run.title)
            judge = lambda epoch, accuracies, run=run: source.may_go_on(run, epoch, accuracies)  # noqa: E731
            ending = Ending(**train_task(run.task(), judge))
            shown.end(run.title, source.end(run, ending), source.done)


StartWorker = Callable[[int], Worker]


@contextlib.contextmanager
def _workers_of(engine: str, jobs: int, devices: int) -> Iterator[StartWorker]:
    """Yield what starts the worker of a slot."""
    if engine == "ray":
        from classmargin.recipes.ray_engine import ray_workers

        with ray_workers(jobs, devices) as start_worker:
            yield start_worker
        return
    shares = accelerator_shares(visible_accelerators(), jobs)
    yield lambda slot: LocalWorker({} if not shares else {"CUDA_VISIBLE_DEVICES": shares[slot]})


@dataclass
class _Slot:
    """A worker and the run it is at."""

    number: int
    worker: Worker
    run: PlannedRun | None = None
    spent: bool = field(default=False)


class _Pool:
    """Runs of a source over a number of workers."""

    def __init__(self, source: RunSource, start_worker: StartWorker, jobs: int) -> None:
        self._source, self._start, self._jobs = source, start_worker, jobs
        self._slots: list[_Slot] = []
        self._again: list[PlannedRun] = []
        self._deaths: Counter[Path] = Counter()

    def run(self, show: bool | None) -> None:
        stop, source = StopRequest(), self._source
        with stop.listening(), display(source.total, source.done, show) as shown:
            try:
                while True:
                    if stop:
                        number = stop.signal_number
                        raise StoppedError(
                            f"stopped by signal {number}; the same command resumes", 128 + number
                        )
                    self._fill(shown)
                    busy = [slot for slot in self._slots if slot.run is not None]
                    if not busy:
                        return
                    for slot in busy:
                        self._collect(slot, shown)
                    time.sleep(POLL_SECONDS)
            finally:
                self._close()

    def _fill(self, shown: Display) -> None:
        """Hand out runs while there are runs and free workers."""
        for slot in [slot for slot in self._slots if not slot.run and slot.worker.exit_code() is not None]:
            self._drop(slot)
        while len([slot for slot in self._slots if slot.run]) < self._jobs:
            run = self._again.pop(0) if self._again else self._source.take()
            if run is None:
                return
            while not self._hand(run):
                pass  # an idle worker was killed just now; another one gets the run
            shown.begin(run.title)

    def _hand(self, run: PlannedRun) -> bool:
        slot = next((slot for slot in self._slots if slot.run is None and not slot.spent), None)
        if slot is None:
            used = {slot.number for slot in self._slots if slot.run or not slot.spent}
            number = next(number for number in range(self._jobs) if number not in used)
            slot = _Slot(number, self._start(number))
            self._slots.append(slot)
        try:
            again = self._deaths[run.folder.path] > 0  # its last worker may still be at its last breath
            slot.worker.send({"run": {**run.task(), "wait": again}})
        except OSError:
            self._drop(slot)
            return False
        slot.run = run
        # The launcher of several ranks leaves its marks in a process, which can then not start others.
        slot.spent = run.config.machine.devices > 1
        return True

    def _drop(self, slot: _Slot) -> None:
        """Let go of a worker that has ended, with the pipes to it."""
        self._slots.remove(slot)
        slot.worker.close(busy=False)
        slot.worker.wait()

    def _collect(self, slot: _Slot, shown: Display) -> None:
        run = slot.run
        assert run is not None
        shown.update(run.title, run.folder.progress_file)
        code = slot.worker.exit_code()  # asked first: what it said before it ended is then all there
        for message in slot.worker.receive():
            if "evaluation" in message:
                self._answer(slot, run, message["evaluation"])
            else:
                self._end(slot, run, Ending(**message["ended"]), shown)
                return
        if code is not None:
            self._deaths[run.folder.path] += 1
            if self._deaths[run.folder.path] < MOST_DEATHS:
                shown.say(f"the worker of {run.title} ended with code {code}; another one resumes the run")
                shown.end(run.title, "", self._source.done)
                slot.run, self._again = None, [*self._again, run]
                return
            words = f"its worker ended {MOST_DEATHS} times, last with code {code} (out of memory?)"
            self._end(slot, run, Ending("failed", words), shown)

    def _answer(self, slot: _Slot, run: PlannedRun, evaluation: Mapping[str, Any]) -> None:
        self._deaths.pop(run.folder.path, None)  # it makes progress, so it is not what kills workers
        answer = self._source.may_go_on(run, evaluation["epoch"], evaluation["accuracies"])
        with contextlib.suppress(OSError):  # it has died since; its exit code will tell
            slot.worker.send({"may_go_on": answer})

    def _end(self, slot: _Slot, run: PlannedRun, ending: Ending, shown: Display) -> None:
        slot.run = None
        words = self._source.end(run, ending)
        shown.end(run.title, words, self._source.done)

    def _close(self) -> None:
        for slot in self._slots:
            slot.worker.close(busy=slot.run is not None)
        for slot in self._slots:
            slot.worker.wait()
