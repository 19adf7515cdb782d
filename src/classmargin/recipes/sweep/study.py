"""The study that all workers share: opening it, drawing from it, and finding what dead workers left behind.

A trial belongs to the process that holds its lock file (the kernel frees it with the process). On other
machines, whose files we may not see, the trial's last sign of life decides.
"""

from __future__ import annotations

import contextlib
import platform
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classmargin._checks import require_extra
from classmargin.recipes.sweep.plan import SweepPlan, check_same_question
from classmargin.recipes.sweep.space import Parameter, grid

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

# Trials without a sign of life for this long are given up, where their lock cannot be looked at.
GRACE_SECONDS = 600.0
# A worker signs its trial at once; one without a signature died between two calls.
UNSIGNED_SECONDS = 30.0
BEAT_SECONDS = 30.0
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
        warnings.filterwarnings("ignore", category=optuna_package().exceptions.ExperimentalWarning)
        yield


def open_study(plan: SweepPlan, *, create: bool = True) -> Study:
    """Return the study of a plan, made where it does not exist.

    Raises:
        ValueError: The storage cannot be used, or holds a study of that name that asks something else.
    """
    optuna = optuna_package()
    with quiet_optuna(), storage_errors(plan.storage), _driver_errors(plan.storage):
        storage = _open_storage(plan.storage)
        study: Study
        if create:
            study = optuna.create_study(
                storage=storage, study_name=plan.study, direction="maximize", load_if_exists=True
            )
        else:
            study = optuna.load_study(storage=storage, study_name=plan.study)
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
    return optuna.storages.RDBStorage(address, engine_kwargs=options)


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


def is_storage_error(error: Exception) -> bool:
    """Whether the data base is at fault, not the trial."""
    return type(error).__module__.partition(".")[0] in ("sqlalchemy", "optuna")


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
    optuna = optuna_package()
    with quiet_optuna():
        return optuna.samplers.TPESampler(seed=(plan.seed * 1_000_003 + number) % 2**32, constant_liar=True)


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
    """Draw (or, for a trial that goes on, read) one label for each parameter."""
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


def live_trial(study: Study, frozen: FrozenTrial) -> Trial:
    """Return the writable face of a running trial of a dead worker, to carry it on under its own number."""
    optuna = optuna_package()
    trial: Trial = optuna.trial.Trial(study, frozen._trial_id)
    return trial


def counted(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that use up the budget: begun ones, without those that another took the place of."""
    return [
        trial for trial in trials if trial.state.name != "WAITING" and not trial.user_attrs.get("replaced")
    ]


def signature(folder: Path) -> dict[str, Any]:
    """Return what a worker writes into its trial: where it runs, and that it is alive."""
    return {"host": platform.node(), "folder": str(folder.resolve()), "beat": time.time()}


def worker_of(trial: FrozenTrial | Trial) -> dict[str, Any]:
    """Return the signature in a trial; empty as long as nobody has signed it."""
    return dict(trial.user_attrs.get("worker", {}))


def is_here(worker: Mapping[str, Any]) -> bool:
    """Whether a worker runs, or ran, on this machine."""
    return worker.get("host") == platform.node()


def is_silent(trial: FrozenTrial, now: float) -> bool:
    """Whether a running trial has given no sign of life for too long."""
    worker = worker_of(trial)
    if worker:
        return now - float(worker["beat"]) > GRACE_SECONDS
    started = trial.datetime_start.timestamp() if trial.datetime_start else now
    return now - started > UNSIGNED_SECONDS
