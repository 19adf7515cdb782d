"""A whole sweep: checks, reference, workers, choice, and one look at the test set.

::

    OUT/sweep.json     the plan            study.db      the trials (unless --storage says where)
        reference/     plain ERM           runs/trial-N  one run a trial, without test predictions
        locks/         who is at what      result.json  table.md  best.toml  report.html
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from classmargin.recipes.session import load_bundle
from classmargin.recipes.sweep.plan import SweepPlan, settle_plan
from classmargin.recipes.sweep.result import SweepResult, TrialRow, named_settings, read_result, with_test
from classmargin.recipes.sweep.study import (
    enqueue_grid,
    is_here,
    open_study,
    optuna_package,
    quiet_optuna,
    storage_errors,
)
from classmargin.recipes.sweep.trial import validation_accuracies
from classmargin.recipes.train_run import train
from classmargin.training.config_reader import differences
from classmargin.training.errors import StoppedError
from classmargin.training.recorder import say
from classmargin.training.run_folder import RunFolder
from classmargin.training.signals import StopRequest

if TYPE_CHECKING:
    from optuna.study import Study

POLL_SECONDS = 0.5
# Workers that die (out of memory, killed) are replaced this often; then something is wrong.
MOST_RESTARTS = 10
# Runs the workers of a sweep until the budget is used up.
Workers = Callable[["Study", SweepPlan, Path, int], None]


class WorkersFailedError(RuntimeError):
    """Workers ended without being asked to; what was finished is kept."""


def check_plan(plan: SweepPlan) -> None:
    """Refuse what cannot work before anything is written: data without validation samples, too few classes.

    Raises:
        ValueError: With what to change.
    """
    optuna_package()
    bundle = load_bundle(plan.reference_config())
    if len(bundle.validation) == 0:
        raise ValueError(
            f"a sweep chooses on validation samples, and {plan.config.data.name} has none with "
            f"data.validation={plan.config.data.validation}; set data.validation=0.1"
        )
    plan.objective.check_classes(bundle.num_classes)


def run_sweep(
    plan: SweepPlan,
    folder: str | Path,
    *,
    jobs: int = 1,
    reference: str | Path | None = None,
    test: bool = True,
    workers: Workers | None = None,
) -> SweepResult:
    """Run, or go on with, a sweep and return what came out.

    Args:
        plan: What is asked.
        folder: Where it lives.
        jobs: Trials side by side on this machine.
        reference: Run folder that the easy third is measured against; None trains plain ERM first.
        test: Whether the chosen trial is tried on the test set at the end.
        workers: How trials are run; None starts processes.

    Raises:
        ValueError: Bad data, storage or folder.
        StoppedError: A signal asked to stop; the same call goes on.
        WorkersFailedError: Workers ended on their own.
    """
    folder = Path(folder)
    check_plan(plan)
    settle_plan(plan, folder)
    study = open_study(plan)
    with quiet_optuna(), storage_errors(plan.storage):
        enqueue_grid(study, plan)
        if plan.keep_easy and "reference" not in study.user_attrs:
            accuracies = reference_accuracies(plan, folder, reference)
            if "reference" not in study.user_attrs:  # another machine may have been faster; one value holds
                study.set_user_attr("reference", accuracies)
        (workers or run_processes)(study, plan, folder, jobs)
        result = read_result(study, plan)
    return test_best(result) if test else result


def reference_accuracies(plan: SweepPlan, folder: Path, given: str | Path | None) -> dict[str, float]:
    """Return the accuracies on validation of the given run, or of plain ERM trained here.

    Raises:
        ValueError: The given run is not finished, or was trained on other data.
    """
    config = plan.reference_config()
    if given is None:
        say("training the reference (plain ERM) that the easy third is measured against")
        summary = train(config, folder / "reference", resume=True, test=False)
        return validation_accuracies(folder / "reference", summary["selected_epoch"])
    other = RunFolder(given).read_config()
    changed = [words for words in differences(other, config) if words.startswith("data.")]
    changed = [words for words in changed if not words.startswith(("data.root:", "data.augmentation:"))]
    if changed:
        raise ValueError(f"--reference {given} was trained on other data ({'; '.join(changed)})")
    return validation_accuracies(given, _selected_epoch(RunFolder(given)))


def _selected_epoch(run: RunFolder) -> int | None:
    from classmargin.recipes.train_run import read_summary

    if not run.done:
        raise ValueError(f"--reference {run.path} is not a finished run")
    epoch = read_summary(run).get("selected_epoch")
    return None if epoch is None else int(epoch)


def test_best(result: SweepResult) -> SweepResult:
    """Try the chosen trial on the test set, if the sweep is over and its run is here."""
    best = result.best
    if best is None or not result.is_complete:
        return _missing(result, "no test accuracies: the sweep is not over") if best else result
    if not is_here({"host": best.host}) or not RunFolder(best.folder).started:
        where = f"{best.folder} on {best.host}"
        return _missing(result, f"no test accuracies: the run of the chosen trial is {where}; go on there")
    summary = train(result.plan.trial_config(best.labels), best.folder, resume=True, show=False)
    return with_test(result, summary["test"])


def _missing(result: SweepResult, words: str) -> SweepResult:
    return replace(result, missing=(*result.missing, words))


# Processes


def run_processes(study: Study, plan: SweepPlan, folder: Path, jobs: int) -> None:
    """Start workers, tell what they bring to an end, and replace those that die, until all have ended."""
    processes: list[subprocess.Popen[bytes]] = []
    teller, restarts, stop = _Teller(study, plan), 0, StopRequest()
    jobs = min(jobs, max(1, plan.budget - teller.ended))
    if not teller.left:
        return
    try:
        with stop.listening():
            processes = [_start_worker(folder) for _ in range(jobs)]
            while processes and not stop:
                time.sleep(POLL_SECONDS)
                teller.tell()
                died = [process for process in processes if (process.poll() or 0) < 0]
                failed = [process for process in processes if (process.poll() or 0) > 0]
                if failed or restarts + len(died) > MOST_RESTARTS:
                    raise WorkersFailedError(
                        "workers of the sweep ended early (see above); what is finished is kept, and the same "
                        "command goes on"
                    )
                processes = [process for process in processes if process.poll() is None]
                processes += [_start_worker(folder) for _ in died]
                restarts += len(died)
    finally:
        _end_all(processes)
    teller.tell()
    if stop:
        number = stop.signal_number
        raise StoppedError(f"stopped by signal {number}; the same command goes on", 128 + number)


def _start_worker(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "classmargin.recipes.sweep.worker", str(folder)]
    # A session of its own: Ctrl-C reaches the parent alone, which then asks the workers to save and end.
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Teller:
    """Says one line for each trial that ends, whoever ran it."""

    def __init__(self, study: Study, plan: SweepPlan) -> None:
        self._study, self._plan = study, plan
        self._known = {row.number for row in self._rows()}
        if self.ended > plan.budget:
            say(f"{self.ended} trials have ended already, and {plan.budget} are asked for")
        elif self.ended:
            say(f"{self.ended} of {plan.budget} trials have ended already")

    def _rows(self) -> list[TrialRow]:
        return [row for row in read_result(self._study, self._plan).rows if row.outcome != "running"]

    @property
    def ended(self) -> int:
        """How many trials have ended."""
        return len(self._known)

    @property
    def left(self) -> bool:
        """Whether there is anything to do, a dead worker's trial included."""
        return self.ended < self._plan.budget

    def tell(self) -> None:
        """Say what is new."""
        for row in self._rows():
            if row.number not in self._known:
                self._known.add(row.number)
                say(f"[{len(self._known)}/{self._plan.budget}] {self._words(row)}")

    def _words(self, row: TrialRow) -> str:
        settings = named_settings(self._plan.parameters, row.labels)
        values = " ".join(f"{name}={_short(value)}" for name, value in settings.items())
        shown = "" if row.value is None else f" {self._plan.objective.name} {100 * row.value:.1f}"
        return f"trial {row.number} {row.outcome}:{shown} ({values})"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
