"""The study that all processes of a sweep share: opening it, drawing from it, and what dead processes left behind.

Dead processes are Optuna's business: whoever trains a trial records a heartbeat, a trial without one for a while is failed
and lined up again (``RetryHeartbeatStaleTrialCallback``), and the time is that of the data base, so that the clocks of
machines do not matter. Two things are added, because Optuna leaves them open. A process that died on *this* machine is known
at once by its number. A trial that nobody has signed yet has no heartbeat that could become stale.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classmargin._checks import require_extra
from classmargin.recipes.sweep_plan import SweepPlan, check_same_question
from classmargin.recipes.sweep_space import Parameter, grid
from classmargin.training.run_folder import Owner

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

BEAT_SECONDS = 10
# A data base that is busy, or a machine under load, may miss some beats.
GRACE_SECONDS = 60
# A process signs its trial at once; one without a signature died between two calls.
UNSIGNED_SECONDS = 30.0
# A trial is given up when the process that began it died this often.
MOST_RETRIES = 10
# Half of the trials are stopped early at most after this share of the epochs: margins may start late.
PRUNE_AFTER = 0.25
COMPARED_TRIALS = 5


def optuna_package() -> Any:
    """Return Optuna, silent: its lines on standard error would break the bars, its advice is ours to give."""
    optuna = require_extra("optuna", "sweep", "a sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence warnings that Optuna raises about itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="optuna")
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")
        warnings.filterwarnings("ignore", category=optuna_package().exceptions.ExperimentalWarning)
        yield


def open_study(plan: SweepPlan) -> Study:
    """Return the study of a plan, made where it does not exist.

    Raises:
        ValueError: The storage cannot be used, or holds a study of that name that asks something else.
    """
    optuna = optuna_package()
    with quiet_optuna(), storage_errors(plan.storage), _driver_errors(plan.storage):
        storage = _open_storage(plan.storage)
        study: Study = optuna.create_study(
            storage=storage, study_name=plan.study, direction="maximize", load_if_exists=True
        )
        if "plan" not in study.user_attrs:
            study.set_user_attr("plan", plan.to_dict())
        study.pruner = make_pruner(plan)
        study.sampler = make_sampler(plan, 0)
    known = SweepPlan.from_dict(study.user_attrs["plan"])
    check_same_question(known, plan, f"study {plan.study} in {safe_address(plan.storage)}")
    return study


def _open_storage(address: str) -> Any:
    optuna = optuna_package()
    # Many short writes of several processes meet in one file: waiting is right, failing after 5 s is not.
    options: dict[str, Any] = {"pool_pre_ping": True}
    if address.startswith("sqlite"):
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        options = {"connect_args": {"timeout": 120}}
    beats = {"heartbeat_interval": BEAT_SECONDS, "grace_period": GRACE_SECONDS}
    # Named otherwise before Optuna 4.9.
    new = hasattr(optuna.storages, "RetryHeartbeatStaleTrialCallback")
    callback = {"heartbeat_stale_trial_callback" if new else "failed_trial_callback": retry_callback()}
    with quiet_optuna():
        return optuna.storages.RDBStorage(address, engine_kwargs=options, **beats, **callback)


def retry_callback() -> Callable[[Study, FrozenTrial], None]:
    """Return what lines up a trial again, with its values and what it has reported."""
    storages = optuna_package().storages
    kind = getattr(storages, "RetryHeartbeatStaleTrialCallback", None) or storages.RetryFailedTrialCallback
    with quiet_optuna():
        found: Callable[[Study, FrozenTrial], None] = kind(MOST_RETRIES, inherit_intermediate_values=True)
    return found


@contextlib.contextmanager
def storage_errors(address: str) -> Iterator[None]:
    """Turn what data bases raise into one line that names the storage without its password.

    Raises:
        ValueError: The data base cannot be opened, or went away.
    """
    optuna_package()
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, optuna_package().exceptions.StorageInternalError) as error:
        words = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"--storage {safe_address(address)} cannot be used: {words}") from error


@contextlib.contextmanager
def _driver_errors(address: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"--storage {safe_address(address)} needs a data base driver that is not installed ({error}); for "
            "PostgreSQL: pip install psycopg2-binary"
        ) from error


def safe_address(address: str) -> str:
    """Return the address of a data base without its password.

    Example:
        >>> safe_address("postgresql://me:secret@host/db")
        'postgresql://me:***@host/db'
    """
    scheme, mark, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{mark}{user}:***@{place}" if at and colon else address


def make_sampler(plan: SweepPlan, number: int) -> Any:
    """Return the sampler of one trial; its draws depend on (seed, number), not on which process asks."""
    samplers, seed = optuna_package().samplers, (plan.seed * 1_000_003 + number) % 2**32
    with quiet_optuna():
        if plan.sampler == "tpe":
            return samplers.TPESampler(seed=seed, constant_liar=True)
        return samplers.RandomSampler(seed=seed)  # of a grid, every point is lined up and nothing is drawn


def make_pruner(plan: SweepPlan) -> Any:
    """Return what stops trials that fall behind."""
    optuna = optuna_package()
    if plan.pruner == "none" or plan.is_staged:
        return optuna.pruners.NopPruner()
    epochs = max(1, int(PRUNE_AFTER * plan.config.loop.epochs))
    return optuna.pruners.MedianPruner(
        n_startup_trials=COMPARED_TRIALS, n_warmup_steps=epochs, n_min_trials=COMPARED_TRIALS
    )


def suggest(trial: Trial, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    """Draw (or, for a trial that resumes, read) one label for each parameter."""
    labels: dict[str, Any] = {}
    for p in parameters:
        if p.choices:
            labels[p.key] = trial.suggest_categorical(p.key, p.labels)
        elif p.whole:
            step = 1 if p.step is None else int(p.step)
            labels[p.key] = trial.suggest_int(p.key, int(p.low), int(p.high), step=step, log=p.log)
        else:
            labels[p.key] = trial.suggest_float(p.key, p.low, p.high, step=p.step, log=p.log)
    return labels


def enqueue_grid(study: Study, plan: SweepPlan) -> None:
    """Where every combination is to be tried, line them all up; what is there already is not added again."""
    if plan.is_whole_grid:
        for labels in grid(plan.parameters):
            study.enqueue_trial(labels, skip_if_exists=True)


def counted(trials: Collection[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that use up the budget: begun ones, without those whose process died (another has their place)."""
    return [
        trial
        for trial in trials
        if trial.state.name != "WAITING" and (trial.state.name != "FAIL" or "result" in trial.user_attrs)
    ]


def sign(trial: Trial, folder: Path) -> None:
    """Write into a trial who trains it, and where."""
    trial.set_user_attr(
        "worker", {"pid": os.getpid(), "host": platform.node(), "folder": str(folder.resolve())}
    )
    _beat(trial)


def _beat(trial: Trial) -> None:
    storage: Any = trial.study._storage
    if hasattr(storage, "record_heartbeat"):
        storage.record_heartbeat(trial._trial_id)


@contextlib.contextmanager
def beating(trials: Collection[Trial]) -> Iterator[None]:
    """Record heartbeats of the trials that are in the collection at the time, while the block runs."""
    end = threading.Event()

    def beat() -> None:
        while not end.wait(BEAT_SECONDS):
            for trial in list(trials):
                with contextlib.suppress(
                    Exception
                ):  # a storage that is away for a moment must not end training
                    _beat(trial)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def worker_of(trial: FrozenTrial | Trial) -> dict[str, Any]:
    """Return who trains a trial, and where; empty as long as nobody has signed it."""
    return dict(trial.user_attrs.get("worker", {}))


def is_here(worker: dict[str, Any]) -> bool:
    """Whether a process runs, or ran, on this machine."""
    return bool(worker.get("host") == platform.node())


def free_dead_trials(study: Study) -> None:
    """Line up the trials again whose processes are dead."""
    optuna_package().storages.fail_stale_trials(study)
    for frozen in study.get_trials(deepcopy=False, states=(trial_state("RUNNING"),)):
        worker = worker_of(frozen)
        if worker:
            dead = Owner(worker["pid"], worker["host"]).is_dead
        else:
            begun = frozen.datetime_start.timestamp() if frozen.datetime_start else time.time()
            dead = time.time() - begun > UNSIGNED_SECONDS
        if dead:
            line_up_again(study, frozen.number)


def line_up_again(study: Study, number: int) -> None:
    """Fail a running trial and line up its values again; of several processes that try, one succeeds."""
    from optuna.exceptions import UpdateFinishedTrialError

    try:
        study.tell(number, state=trial_state("FAIL"))
    except (ValueError, UpdateFinishedTrialError):
        return  # somebody else was faster
    retry_callback()(study, study.get_trials(deepcopy=False)[number])


def trial_state(name: str) -> Any:
    """Return Optuna's constant of a state."""
    from optuna.trial import TrialState

    return TrialState[name]


def first_number(study: Study, number: int) -> int:
    """Return the number under which a trial was begun first: its run folder has that name."""
    return int(study.get_trials(deepcopy=False)[number].system_attrs.get("failed_trial", number))
