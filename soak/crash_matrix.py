"""Kills training processes at random moments and inside their file operations; every run must end as if nothing
had been.

::

    for each run of the plan (method x number of processes x way of dying):
        whole  = the same run, left alone
        broken = started again and again, killed each time at another moment, at last left alone
        broken must equal whole bit for bit, and hold nothing that a killed writer left behind

Moments are drawn from a seed. A kill counts only if it hit (a process that was through before its time came counts
as nothing), and only when the run it hit has ended and was found equal: a harness that runs out of time counts
nothing for the run under way. Faults of the file system (a full disk, a failing fsync, half a write) are not kills; they are
counted apart, and must end with a message and an exit code, never a traceback.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.budget import OutOfTimeError, no_more_alarms
from soak.children import Child, fork_ranks, group_lives, preload, start_command
from soak.file_faults import ERRORS, KILLS, REQUESTS, Fault
from soak.same_run import BrokenPromise, check_same
from soak.tiny_task import train_words, write_features

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Stopped by the loop with its state saved; ended by the signal itself outside the loop; was through already.
CODES = {
    signal.SIGKILL: {-9, 0},
    signal.SIGTERM: {143, -15, 0},
    signal.SIGINT: {130, -2, 0},
}
# How long the other processes of a run may take to notice that one is gone.
PATIENCE = 300.0
GRACE = 20.0


@dataclass
class Tally:
    """What was survived."""

    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumed: int = 0
    ended_by_launcher: int = 0

    def add(self, other: Tally) -> None:
        """Take over the counts of a run that was found equal."""
        self.kills += other.kills
        self.faults += other.faults
        self.places += other.places
        self.runs += other.runs
        self.resumed += other.resumed
        self.ended_by_launcher += other.ended_by_launcher

    def kills_of(self, processes: int) -> int:
        """Return the kills of runs with so many processes."""
        words = f", {processes} process"
        return sum(count for scenario, count in self.kills.items() if words in scenario)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kills": sum(self.kills.values()),
            "kills by scenario": dict(self.kills),
            "file faults": sum(self.faults.values()),
            "file faults by scenario": dict(self.faults),
            "file operations hit": dict(self.places),
            "runs compared bit for bit": self.runs,
            "resumed starts": self.resumed,
            "waiting peers ended by the launcher": self.ended_by_launcher,
        }


@dataclass(frozen=True)
class Scenario:
    """One kind of run.

    Attributes:
        method: Registry name.
        processes: Ranks.
        extra: Further settings.
    """

    method: str
    processes: int = 1
    extra: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.method}, {self.processes} process{'es' if self.processes > 1 else ''}"


# One and two processes by turns: where time runs out, both have been tried.
SCENARIOS = (
    Scenario("mr2"),
    Scenario("mr2", 2, ("loop.ema_decay=0.9",)),
    Scenario("sam+mr2"),
    Scenario("jtt", extra=("loop.ema_decay=0.9", "loop.select=worst")),
    # Stages that train only a part of the parameters.
    Scenario("supcon", 2),
    Scenario("lff"),
    Scenario("drl", 2),
    Scenario("erm", extra=("machine.report=true",)),
)


class Breaker:
    """Starts, kills and compares the runs of one scenario.

    Args:
        scenario: The run.
        folder: Where all of its folders go.
        rng: Draws moments and signals.
        tally: Gets the counts of every run once it was found equal.
    """

    def __init__(self, scenario: Scenario, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.scenario, self.folder, self.rng = scenario, folder, rng
        self._proved, self.tally = tally, Tally()
        self.folder.mkdir(parents=True)
        self.data = write_features(self.folder / "features.npz")
        self.whole = self.folder / "whole"
        self._number = 0
        begin = time.monotonic()
        journal = (Fault("none", 0), self.whole, self.folder / "journal")
        self._must_end_well(self.start(self.whole, fault=journal), self.whole)
        self.seconds = time.monotonic() - begin
        # How long it takes until a run has begun; every start pays it again.
        self.startup = self.seconds - (time.time() - (self.whole / "config.toml").stat().st_mtime)
        self.operations = len((self.folder / "journal").read_text().splitlines())

    def words(self, run: Path) -> list[str]:
        return train_words(self.data, self.scenario.method, run, extra=self.scenario.extra)

    def start(self, run: Path, fault: tuple[Fault, Path, Path] | None = None) -> list[Child]:
        self._number += 1
        log = self.folder / f"log{self._number}"
        return fork_ranks(self.words(run), log, self.scenario.processes, fault)

    def by_signal(self, kills: int) -> None:
        """Kill one run ``kills`` times by signals at random moments, let it end, compare."""
        run = self._new_run()
        for _ in range(kills):
            # All kills together are to spread over the whole run, starts included.
            self._kill_once(run, self.startup + 2 * (self.seconds - self.startup) / (kills + 1))
        self._end_and_compare(run)

    def _kill_once(self, run: Path, latest: float) -> None:
        number = self.rng.choice(SIGNALS)
        children = self.start(run)
        time.sleep(self.rng.uniform(0.0, latest))
        targets = children if self.rng.random() < 0.5 else [self.rng.choice(children)]
        alive = [child for child in targets if child.poll() is None]
        for child in alive:
            child.send(number)
        codes = self._gather(children, run)
        if not alive:
            return
        for child in alive:
            code = codes[child.pid]
            # Of two processes, one may lose the other before its own signal is heard, or wait for it until the
            # launcher ends it.
            if code not in CODES[number] | ({1, 2, -9} if len(children) > 1 else set()):
                raise BrokenPromise(f"{number.name} ended {run} with code {code}: {child.said[-2000:]}")
        self._check_saved(number, children, run)
        if any(codes[child.pid] != 0 for child in alive):
            self.tally.kills[f"{self.scenario.title}, {number.name}"] += 1

    def _gather(self, children: list[Child], run: Path) -> dict[int, int]:
        """Wait for all processes; when one has ended badly, do to the others what launchers do."""
        deadline = time.monotonic() + PATIENCE
        while any(child.poll() is None for child in children) and time.monotonic() < deadline:
            if any(child.poll() for child in children) and not _wait_until(lambda: _all_ended(children), GRACE):
                # torchrun, SLURM and Lightning's launcher end a run whose first member died; one that waits for
                # its peers to come up cannot know. Training processes notice by themselves.
                self.tally.ended_by_launcher += 1
                for child in children:
                    child.send(signal.SIGKILL)
            time.sleep(0.005)
        hanging = [child for child in children if child.poll() is None]
        for child in hanging:
            child.send(signal.SIGKILL)
            child.wait(10)
        if hanging:
            raise BrokenPromise(f"{len(hanging)} processes of {run} hang: {hanging[0].said[-2000:]}")
        return {child.pid: child.wait(0) or 0 for child in children}

    def _check_saved(self, number: int, children: list[Child], run: Path) -> None:
        """A stop that says it saved has saved."""
        if number == signal.SIGKILL:
            return
        for child in children:
            for step in re.findall(r"stopped by signal \d+ after step (\d+)", child.said):
                if not (run / "checkpoint" / f"step-{int(step):08d}" / "state.json").exists():
                    raise BrokenPromise(f"{run} was stopped after step {step}, which is not saved")

    def by_fault(self, kinds: tuple[str, ...], faults: int) -> None:
        """Break ``faults`` file operations of one run, let it end, compare."""
        run = self._new_run()
        for _ in range(faults):
            self._break_once(run, self.rng.choice(kinds), 2 * self.operations // (faults + 1))
        self._end_and_compare(run)

    def at_the_end(self, places: tuple[str, ...], kinds: tuple[str, ...]) -> None:
        """Kill one run while it writes what is left when the training is over, file by file, let it end, compare."""
        run = self._new_run()
        for place in places:
            for kind in kinds:
                self._break_with(run, Fault(kind, 1 if kind == "kill-half" else self.rng.randint(1, 2), place=place))
        self._end_and_compare(run)

    def _break_once(self, run: Path, kind: str, latest: int) -> None:
        self._break_with(run, Fault(kind, self.rng.randint(1, latest), lasting=self.rng.random() < 0.5))

    def _break_with(self, run: Path, fault: Fault) -> None:
        kind = fault.kind
        journal = self.folder / "journal"
        children = self.start(run, (fault, run, journal))
        codes = self._gather(children, run)
        hit = re.findall(rf"^{kind} at (\w+) (\S+)", journal.read_text(), re.MULTILINE)
        if not hit:
            return  # a resumed run has fewer operations than a whole one
        code, said = codes[children[0].pid], children[0].said
        name, place = hit[0]
        if kind in REQUESTS and (code not in CODES[REQUESTS[kind]] - {0} or "Traceback" in said):
            raise BrokenPromise(f"{kind} at {name} {place} of {run} ended with {code}: {said[-2000:]}")
        if kind in KILLS and code != -9:
            raise BrokenPromise(f"{kind} at {name} {place} of {run} ended with {code}: {said[-2000:]}")
        if kind in ERRORS and (code not in (0, 2) or "Traceback" in said):
            raise BrokenPromise(f"{kind} at {name} {place} of {run} ended with {code}: {said[-2000:]}")
        if kind in ERRORS and code == 2 and "classmargin: error: " not in said:
            raise BrokenPromise(f"{kind} at {name} {place} of {run} ended without a message: {said[-2000:]}")
        self._check_saved(REQUESTS.get(kind, signal.SIGKILL), children, run)
        counter = self.tally.faults if kind in ERRORS else self.tally.kills
        counter[f"{self.scenario.title}, {kind}{' inside a write' if kind in REQUESTS else ''}"] += 1
        self.tally.places[f"{name} {_kind_of_place(place)}"] += 1

    def cold(self, kills: int, launcher: tuple[str, ...] = ()) -> None:
        """The same through ``python -m classmargin``, imports and launcher included."""
        run = self._new_run()
        for _ in range(kills):
            number = self.rng.choice(SIGNALS)
            child = start_command([*self.words(run), *launcher], self.folder / "log-cold")
            self._kill_cold(child, number, run)
        self._end_and_compare(run)

    def _kill_cold(self, child: Child, number: signal.Signals, run: Path) -> None:
        before = _checkpoints(run)
        _wait_until(lambda: _checkpoints(run) != before or child.poll() is not None, 120)
        time.sleep(self.rng.uniform(0.0, 0.3))
        alive = child.poll() is None
        child.send(number)
        code = child.wait(PATIENCE)
        if code is None:
            raise BrokenPromise(f"{run} hangs after {number.name}: {child.said[-2000:]}")
        if alive and code not in CODES[number]:
            raise BrokenPromise(f"{number.name} ended {run} with code {code}: {child.said[-2000:]}")
        if not _wait_until(lambda: not group_lives(child.pid), PATIENCE):
            raise BrokenPromise(f"processes of {run} go on after {number.name}: {child.said[-2000:]}")
        if code:
            self.tally.kills[f"{self.scenario.title}, started cold, {number.name}"] += 1

    def _new_run(self) -> Path:
        self._number += 1
        return self.folder / f"run{self._number}"

    def _end_and_compare(self, run: Path) -> None:
        begun = (run / "checkpoint").exists()
        self._must_end_well(self.start(run), run)
        self.tally.resumed += begun
        self.tally.runs += 1
        check_same(self.whole, run)
        shutil.rmtree(run)
        self._proved.add(self.tally)
        self.tally = Tally()

    def _must_end_well(self, children: list[Child], run: Path) -> None:
        codes = self._gather(children, run)
        if set(codes.values()) != {0}:
            said = "\n".join(child.said[-2000:] for child in children)
            raise BrokenPromise(f"{run} cannot be finished, codes {list(codes.values())}: {said}")


def _kind_of_place(place: str) -> str:
    return re.sub(r"\d{8}", "N", re.sub(r"part-\w+", "part", place))


def _all_ended(children: list[Child]) -> bool:
    return all(child.poll() is not None for child in children)


def _checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoint/step-*"))


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Break everything and return the counts.

    Args:
        folder: Where runs go; kept as it is if a promise breaks.
        seed: Of moments and signals.
        quick: A few seconds' worth, for the test suite.

    Raises:
        BrokenPromise: With what happened and where to look.
    """
    preload()
    tally, rng = Tally(), random.Random(seed)
    scenarios = SCENARIOS[:1] if quick else SCENARIOS
    ended = 0
    try:
        for place, scenario in enumerate(scenarios):
            begin = time.monotonic()
            _break_everything(Breaker(scenario, folder / f"scenario{place}", rng, tally), quick=quick)
            ended += 1
            if not quick:
                print(f"{scenario.title:28} {sum(tally.kills.values()):4} kills so far, "
                      f"{time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
    except OutOfTimeError:
        no_more_alarms()  # what was proved so far is
    left = [scenario.title for scenario in scenarios[ended:]]
    return {
        "seed": seed,
        **tally.as_dict(),
        "cut short": f"not, or not wholly, tried: {'; '.join(left)}" if left else "",
        "totals": {
            "kills survived, runs of one process": tally.kills_of(1),
            "kills survived, runs of two processes": tally.kills_of(2),
            "file faults survived": sum(tally.faults.values()),
            "runs compared bit for bit": tally.runs,
        },
    }


def _break_everything(breaker: Breaker, *, quick: bool) -> None:
    double = breaker.scenario.processes > 1
    if breaker.scenario.method == "erm":
        breaker.at_the_end(("predictions", "audit", "report", "done"), ("kill-half", "SIGTERM", "SIGINT"))
        return
    if breaker.scenario.method in ("supcon", "drl"):
        breaker.by_signal(2)
        return
    # The run that most people make gets two turns; one each keeps the others within their share of the time.
    for turn in range(2 if breaker.scenario.method == "mr2" and not double and not quick else 1):
        breaker.by_signal(1 if quick else 4)
        breaker.by_fault(KILLS, 2 if quick else 4)
        if not quick:
            breaker.by_fault(ERRORS, 3)
        if not quick and turn == 0:
            breaker.by_fault(tuple(REQUESTS), 3)
    if quick:
        breaker.at_the_end(("predictions", "done"), ("kill-half", "SIGTERM"))
    if not quick and breaker.scenario.method == "mr2":
        breaker.cold(3, ("--devices", "2") if double else ())
