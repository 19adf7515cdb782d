"""A worker of a sweep: ask for a trial, train it, tell the result; ``python -m classmargin.recipes.sweep.worker``.

::

    while trials are left and nobody asked to stop:
        a trial of a dead worker     -> go on with it, from its checkpoint
        otherwise                    -> a new one from the study
        train                        -> COMPLETE with accuracies | PRUNED (fell behind, diverged) | FAIL (refused)
    an interruption leaves the trial RUNNING and its folder saved: the next worker goes on with it

Any number of workers may run, here and elsewhere; they meet only in the storage and the lock files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classmargin._printable import printable
from classmargin.recipes.sweep.objective import easy_violation
from classmargin.recipes.sweep.plan import PLAN_FILE, SweepPlan, read_plan
from classmargin.recipes.sweep.study import (
    BEAT_SECONDS,
    counted,
    is_here,
    is_silent,
    is_storage_error,
    live_trial,
    make_sampler,
    open_study,
    quiet_optuna,
    signature,
    storage_errors,
    suggest,
    worker_of,
)
from classmargin.recipes.sweep.trial import FellBehindError, Report, train_trial
from classmargin.training.config import RunConfig
from classmargin.training.errors import DivergedError, StoppedError
from classmargin.training.recorder import say
from classmargin.training.run_lock import hold_lock
from classmargin.training.signals import StopRequest

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

CONSTRAINT = "easy must not drop"
# A trial is given up when it was begun this often without coming to its next evaluation.
MOST_DEATHS = 10


@dataclass(frozen=True)
class Job:
    """A trial in the hands of this process.

    Attributes:
        trial: Face of the study.
        config: What to train.
        folder: Where.
    """

    trial: Trial
    config: RunConfig
    folder: Path


def work(plan: SweepPlan, folder: Path, stop: StopRequest | None = None) -> int:
    """Train trials until the budget is used up; return how many this worker brought to an end.

    Raises:
        StoppedError: A signal asked to stop; the trial under way is saved.
        OSError: The disk does not take what is written; the trial under way can be gone on with.
    """
    stop = stop or StopRequest()
    ended = 0
    with quiet_optuna(), storage_errors(plan.storage), stop.listening():
        study = open_study(plan, create=False)
        while not stop:
            with contextlib.ExitStack() as held:
                job = _take_over(study, plan, held) or _new_job(study, plan, folder, held)
                if job is not None:
                    _run(study, plan, job)
                    ended += 1
                elif not _any_unsigned(study):
                    return ended
                else:  # the last trial may be a dead worker's; a moment shows it
                    time.sleep(1.0)
    raise StoppedError(
        f"stopped by signal {stop.signal_number}; the same command goes on", 128 + stop.signal_number
    )


# Which trial


def _take_over(study: Study, plan: SweepPlan, held: contextlib.ExitStack) -> Job | None:
    """Return a trial whose worker is dead, with its lock held; those of other machines are begun anew."""
    for frozen in study.get_trials(deepcopy=False):
        if frozen.state.name != "RUNNING":
            continue
        signed = worker_of(frozen)
        if is_here(signed):
            folder = Path(signed["folder"])
            if _lock(folder, held) and _still_running(study, frozen):
                trial = live_trial(study, frozen)
                if _may_try_again(study, trial):
                    return _job(plan, trial, folder)
            held.close()
        elif is_silent(frozen, time.time()):
            _replace(study, frozen)
    return None


def _may_try_again(study: Study, trial: Trial) -> bool:
    """Count the workers that died over a trial; give it up when it is the trial that kills them."""
    deaths = int(trial.user_attrs.get("deaths", 0)) + 1
    trial.set_user_attr("deaths", deaths)
    if deaths <= MOST_DEATHS:
        return True
    reason = f"its worker ended {deaths} times without a word (out of memory?)"
    trial.set_user_attr("result", {"outcome": "failed", "reason": reason})
    study.tell(trial, state=_state("FAIL"))
    return False


def _any_unsigned(study: Study) -> bool:
    running = study.get_trials(deepcopy=False, states=(_state("RUNNING"),))
    return any(not worker_of(frozen) for frozen in running)


def _lock(folder: Path, held: contextlib.ExitStack) -> bool:
    """Take the lock of a trial; return False if a living process has it."""
    try:
        held.enter_context(hold_lock(folder.parent.parent / "locks" / folder.name))
    except ValueError:
        return False
    return True


def _still_running(study: Study, trial: FrozenTrial | Trial) -> bool:
    """Whether a trial is unfinished now that we hold its lock: its worker may have ended it meanwhile."""
    now = study.get_trials(deepcopy=False)[trial.number]
    return now.state.name == "RUNNING"


def _replace(study: Study, frozen: FrozenTrial) -> None:
    """Give up a trial of another machine and line its values up again; only one worker succeeds."""
    from optuna.exceptions import UpdateFinishedTrialError

    try:
        live_trial(study, frozen).set_user_attr("replaced", True)
        study.tell(frozen.number, state=_state("FAIL"))
    except (ValueError, UpdateFinishedTrialError):
        return  # somebody else was faster
    # With what was lined up for it (a point of a grid): its worker may have ended before it read that.
    values = {**frozen.system_attrs.get("fixed_params", {}), **frozen.params}
    if values:
        study.enqueue_trial(values)


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _new_job(study: Study, plan: SweepPlan, folder: Path, held: contextlib.ExitStack) -> Job | None:
    while len(counted(study.get_trials(deepcopy=False))) < plan.budget:
        study.sampler = make_sampler(plan, 0)
        trial = study.ask()
        before = [t for t in counted(study.get_trials(deepcopy=False)) if t.number < trial.number]
        if len(before) >= plan.budget:  # another worker asked for the last one at the same moment
            trial.set_user_attr("replaced", True)
            study.tell(trial, state=_state("FAIL"))
            return None
        run_folder = folder / "runs" / f"trial-{trial.number:04d}"
        # SQLite can hand a waiting trial to two workers that ask at the same moment: it is for who has its lock.
        if not _lock(run_folder, held):
            continue
        study.sampler = make_sampler(plan, trial.number)
        trial.set_user_attr("worker", signature(run_folder))
        return _job(plan, trial, run_folder)
    return None


def _job(plan: SweepPlan, trial: Trial, folder: Path) -> Job:
    return Job(trial, plan.trial_config(suggest(trial, plan.parameters)), folder)


# One trial


def _run(study: Study, plan: SweepPlan, job: Job) -> None:
    """Bring a trial to its end; one that another machine gave up meanwhile does not count.

    That happens when this machine was asleep, or a clock was set: it was silent for too long, though alive.
    """
    try:
        _train_and_tell(study, plan, job)
    except (StoppedError, OSError):
        raise
    except Exception:
        if _still_running(study, job.trial):
            raise
        say(f"trial {job.trial.number} was taken over by another machine meanwhile; it is not counted twice")


def _train_and_tell(study: Study, plan: SweepPlan, job: Job) -> None:
    earlier = _same_as(study, job)
    if earlier is not None:
        _copy(study, job, earlier)
        return
    begin = time.monotonic()
    try:
        with _beating(job):
            accuracies = train_trial(job.config, job.folder, _reporter(plan, job))
    except FellBehindError as error:
        _end(study, job, "PRUNED", outcome="pruned", reason=str(error))
    except DivergedError as error:
        # Told as pruned, not failed: the sampler shall learn to stay away from such values.
        _end(study, job, "PRUNED", outcome="diverged", reason=str(error))
    except (StoppedError, OSError):
        raise
    except Exception as error:  # one bad combination must not end the sweep
        if is_storage_error(error):
            raise
        _end(study, job, "FAIL", outcome="failed", reason=f"{type(error).__name__}: {error}")
    else:
        seconds = round(time.monotonic() - begin, 3)
        _complete(study, plan, job, accuracies, seconds=seconds)


def _same_as(study: Study, job: Job) -> FrozenTrial | None:
    """Return an ended trial with the same values: training is deterministic, so it need not be repeated."""
    ended = study.get_trials(deepcopy=False, states=(_state("COMPLETE"), _state("PRUNED")))
    return next((t for t in ended if t.params == job.trial.params), None)


def _copy(study: Study, job: Job, earlier: FrozenTrial) -> None:
    job.trial.set_user_attr("result", {**earlier.user_attrs.get("result", {}), "same_as": earlier.number})
    for step, value in earlier.intermediate_values.items():
        _report_once(job.trial, step, value)
    _set_constraint(job.trial, earlier.constraints.get(CONSTRAINT))
    final = earlier.value if earlier.state.name == "COMPLETE" else None
    study.tell(job.trial, final, state=earlier.state)


def _reporter(plan: SweepPlan, job: Job) -> Report:
    def report(epoch: int, accuracies: dict[str, float]) -> bool:
        value = plan.objective.value(accuracies)
        if value == value:
            _report_once(job.trial, epoch, value)
        if job.trial.user_attrs.get("deaths"):
            job.trial.set_user_attr("deaths", 0)  # it goes on, so it is not what kills workers
        # After the last epoch nothing is saved by stopping.
        return epoch >= job.config.loop.epochs or not job.trial.should_prune()

    return report


def _report_once(trial: Trial, epoch: int, value: float) -> None:
    """Report a value; a run that goes on may come by an epoch again, with the same value."""
    if epoch not in trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
        trial.report(value, epoch)


def _complete(
    study: Study, plan: SweepPlan, job: Job, accuracies: dict[str, float], *, seconds: float
) -> None:
    value = plan.objective.value(accuracies)
    if value != value:
        _end(study, job, "FAIL", outcome="failed", reason=f"no value of {plan.objective.name} on validation")
        return
    job.trial.set_user_attr("result", {"accuracies": accuracies, "seconds": seconds})
    reference = study.user_attrs.get("reference")
    if plan.keep_easy and reference is not None:
        _set_constraint(job.trial, easy_violation(accuracies, reference["easy"], plan.easy_slack))
    study.tell(job.trial, value)


def _set_constraint(trial: Trial, violation: float | None) -> None:
    if violation is not None and CONSTRAINT not in trial.constraints:
        trial.set_constraint(CONSTRAINT, violation)


def _end(study: Study, job: Job, state: str, *, outcome: str, reason: str) -> None:
    job.trial.set_user_attr("result", {"outcome": outcome, "reason": reason})
    study.tell(job.trial, state=_state(state))


@contextlib.contextmanager
def _beating(job: Job) -> Iterator[None]:
    """Give a sign of life every half minute while the block runs, for machines that cannot see our locks."""
    end = threading.Event()

    def beat() -> None:
        while not end.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # a storage that is away for a moment must not end training
                job.trial.set_user_attr("worker", signature(job.folder))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(timeout=BEAT_SECONDS)


# As a process


def main(arguments: list[str] | None = None) -> int:
    """Work on the sweep of a folder; return 0, or 128 + signal after an interruption."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        work(read_plan(Path(folder) / PLAN_FILE), Path(folder))
    except StoppedError as stopped:
        return stopped.exit_code
    except (OSError, ValueError, ImportError) as error:
        sys.stderr.write(f"classmargin: error: {printable(str(error))}\n")
        return 2
    return 0


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
