"""The plan of a sweep, and the Optuna study that all its processes share.

Whoever trains a trial records a heartbeat; Optuna lines up a trial again that has had none for a while. Beyond that a process that
died on *this* machine is known at once by its number, and a trial that nobody has signed yet is given up after a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from classmargin._checks import require_extra
from classmargin.recipes.out_folder import QUESTION_FILE, Question, claim_folder
from classmargin.recipes.run_parts import effective
from classmargin.recipes.sweep_space import Objective, Parameter, check_method, grid_size, settings_of, settings_table
from classmargin.training.config import MethodConfig, RunConfig, identity
from classmargin.training.config_reader import replace_machine, with_values
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


@dataclass(frozen=True)
class SweepPlan:
    """One sweep: ``config`` is shared by all trials, ``parameters`` vary, ``objective`` is maximised on validation."""

    config: RunConfig
    parameters: tuple[Parameter, ...]
    objective: Objective
    trials: int  # of the whole study, over all processes and machines
    study: str  # name in the storage
    storage: str  # address of the data base
    seed: int = 0  # of the sampler; trial n always draws from (seed, n)
    pruner: str = "median"  # trials worse than half of the others at the same epoch stop, unless a method has stages
    keep_easy: bool = True  # whether "easy must not drop" constrains the choice
    easy_slack: float = 0.0  # drop of the easy third that is forgiven, as a fraction
    sampler: str = "tpe"  # tpe learns from ended trials, random does not, grid tries every combination

    def __post_init__(self) -> None:
        if self.sampler == "grid" and grid_size(self.parameters) is None:
            raise ValueError(
                "--sampler grid needs values to combine: KEY=A,B,… or KEY=LOW:HIGH:STEP for every --search"
            )

    @property
    def whole_grid(self) -> int:
        """How many combinations there are, if every one of them is tried, so that nothing needs to be drawn; else 0."""
        size = grid_size(self.parameters)
        return size if size is not None and (size <= self.trials or self.sampler == "grid") else 0

    @property
    def budget(self) -> int:
        """Trials that make sense: no more than there are different ones."""
        return self.whole_grid or self.trials

    @property
    def is_staged(self) -> bool:
        """Whether a trial may train in stages, and so says little halfway: SupCon has no classifier yet, JTT begins anew."""
        ends = [settings_table(parameter.key, value) for parameter in self.parameters for value in parameter.ends()]
        configs = [effective(with_values(self.config, tables)) for tables in ({}, *ends)]
        return any(len(check_method(config).stages(config.loop.epochs)) > 1 for config in configs)

    def trial_config(self, labels: Mapping[str, Any]) -> RunConfig:
        """Return the run of one trial, by what the study suggests."""
        return _effective_trial(with_values(self.config, settings_of(self.parameters, labels)))

    def reference_config(self) -> RunConfig:
        """Return the run that the easy third is measured against: plain ERM under the shared settings."""
        return _effective_trial(replace(self.config, method=MethodConfig("erm")))

    def question(self, *, anywhere: bool = False) -> Question:
        """Return what must stay the same while trials are added; ``anywhere``: on machines that keep the data elsewhere."""
        name = self.config.data.name
        config = with_values(self.config, {"data": {"name": Path(name).name if anywhere else name}})
        searched = json.dumps([parameter.to_dict() for parameter in self.parameters])
        about = {"--search": searched, "--objective": self.objective.name, "loop.seed": str(config.loop.seed)}
        for name in ("seed", "pruner", "keep_easy", "easy_slack", "sampler"):
            about[name] = str(getattr(self, name))
        return Question("sweep", about, {"trial": _effective_trial(config)})


def _effective_trial(config: RunConfig) -> RunConfig:
    """One thread a process, no page for every trial: many run side by side."""
    return effective(replace_machine(config, threads=1, report=False))


def study_name(config: RunConfig, parameters: tuple[Parameter, ...], objective: Objective) -> str:
    """Return a name that the same question gets on every machine, wherever the data lie and however many trials are wanted."""
    shared = identity(_effective_trial(with_values(config, {"data": {"root": None}})))
    question = [shared, [parameter.to_dict() for parameter in parameters], dict(objective.weights)]
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]
    return f"{config.method.name}-{digest}"


def settle_plan(plan: SweepPlan, folder: Path) -> None:
    """Keep what the sweep asks in its folder; one that holds another sweep, or something else, is refused."""
    claim_folder(folder, plan.question(), (), results=(QUESTION_FILE,))


def optuna_package() -> Any:
    """Return Optuna, silent: its lines on standard error would break the bars, its advice is ours to give."""
    optuna = require_extra("optuna", "sweep", "a sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="optuna")
    warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_study(plan: SweepPlan) -> Study:
    """Return the study of a plan, made where it does not exist; one that asks something else is refused."""
    optuna = optuna_package()
    with storage_errors(plan.storage):
        study: Study = optuna.create_study(
            storage=_open_storage(plan.storage),
            pruner=make_pruner(plan),
            study_name=plan.study,
            direction="maximize",
            load_if_exists=True,
        )
        place = f"study {plan.study} in {safe_address(plan.storage)}"
        begun, known = bool(study.get_trials(deepcopy=False)), study.user_attrs
        if "question" not in known:
            if begun or known:
                raise ValueError(
                    f"{place} does not say what it asks, or is of a version before 0.5; choose another --study"
                )
            study.set_user_attr("question", plan.question(anywhere=True).to_dict())
    changed = Question.from_dict(study.user_attrs["question"]).changes_to(plan.question(anywhere=True))
    if changed:
        raise ValueError(f"{place} asks something else ({'; '.join(changed)}); choose another --study")
    return study


def _open_storage(address: str) -> Any:
    # Many short writes of several processes meet in one file: waiting is right, failing after 5 s is not.
    options: dict[str, Any] = {"pool_pre_ping": True}
    if address.startswith("sqlite"):
        Path(address.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        options = {"connect_args": {"timeout": 120}}
    try:
        return optuna_package().storages.RDBStorage(
            address,
            engine_kwargs=options,
            heartbeat_interval=BEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=_retry_callback(),
        )
    except ImportError as error:
        raise ImportError(
            f"--storage {safe_address(address)} needs a data base driver that is not installed ({error}); for "
            "PostgreSQL: pip install psycopg2-binary"
        ) from error


def _retry_callback() -> Callable[[Study, FrozenTrial], None]:
    """Return what lines up a trial again, with its values and what it has reported."""
    kind = optuna_package().storages.RetryHeartbeatStaleTrialCallback
    return cast("Callable[[Study, FrozenTrial], None]", kind(MOST_RETRIES, inherit_intermediate_values=True))


@contextlib.contextmanager
def storage_errors(address: str) -> Iterator[None]:
    """Turn what data bases raise into one line that names the storage without its password."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, optuna_package().exceptions.StorageInternalError) as error:
        words = str(error.__cause__ or error).splitlines()[0]
        raise ValueError(f"--storage {safe_address(address)} cannot be used: {words}") from error


def safe_address(address: str) -> str:
    """Return the address of a data base without its password."""
    scheme, mark, rest = address.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{mark}{user}:***@{place}" if at and colon else address


def make_sampler(plan: SweepPlan, number: int) -> Any:
    """Return the sampler of one trial; its draws depend on (seed, number), not on which process asks."""
    samplers, seed = optuna_package().samplers, (plan.seed * 1_000_003 + number) % 2**32
    if plan.sampler == "tpe":
        return samplers.TPESampler(seed=seed, constant_liar=True)
    return samplers.RandomSampler(seed=seed)  # of a grid, every point is lined up and nothing is drawn


def make_pruner(plan: SweepPlan) -> Any:
    """Return what stops trials that fall behind."""
    pruners = optuna_package().pruners
    if plan.pruner == "none" or plan.is_staged:
        return pruners.NopPruner()
    epochs = max(1, int(PRUNE_AFTER * plan.config.loop.epochs))
    return pruners.MedianPruner(n_startup_trials=COMPARED_TRIALS, n_warmup_steps=epochs, n_min_trials=COMPARED_TRIALS)


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


def counted(study: Study) -> list[FrozenTrial]:
    """Return the trials that use up the budget: begun ones, without those whose process died (another has their place)."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.name != "WAITING" and (trial.state.name != "FAIL" or "result" in trial.user_attrs)
    ]


def sign(trial: Trial, folder: Path) -> None:
    """Write into a trial who trains it, and where."""
    worker = {"pid": os.getpid(), "host": platform.node(), "folder": str(folder.resolve())}
    trial.set_user_attr("worker", worker)
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
                # A storage that is away for a moment must not end training.
                with contextlib.suppress(Exception):
                    _beat(trial)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def free_dead_trials(study: Study) -> None:
    """Line up the trials again whose processes are dead."""
    optuna_package().storages.fail_stale_trials(study)
    for frozen in study.get_trials(deepcopy=False, states=(trial_state("RUNNING"),)):
        worker = frozen.user_attrs.get("worker")
        if worker:
            dead = Owner(worker["pid"], worker["host"]).is_dead
        else:
            begun = frozen.datetime_start.timestamp() if frozen.datetime_start else time.time()
            dead = time.time() - begun > UNSIGNED_SECONDS
        if dead:
            line_up_again(study, frozen.number)


def line_up_again(study: Study, number: int) -> None:
    """Fail a running trial and line up its values again; of several processes that try, one succeeds."""
    try:
        study.tell(number, state=trial_state("FAIL"))
    except (ValueError, optuna_package().exceptions.UpdateFinishedTrialError):
        return  # somebody else was faster
    _retry_callback()(study, study.get_trials(deepcopy=False)[number])


def trial_state(name: str) -> Any:
    """Return Optuna's constant of a state."""
    return optuna_package().trial.TrialState[name]
