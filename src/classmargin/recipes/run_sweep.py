"""A whole sweep: checks, reference (plain ERM), trials, choice, and one look at the test set.

Several commands, here and on other machines, can work on one study. Each asks it for a trial, has the runner train it, and tells
it how the trial ended. An interruption lines up the trials under way again; whoever gets them next resumes their run folders.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from classmargin.recipes import sweep_study as shared
from classmargin.recipes.run_parts import load_bundle
from classmargin.recipes.runner import Ending, PlannedRun, run_all, run_from
from classmargin.recipes.sweep_result import CONSTRAINT, SweepResult, named_settings, read_result, settings_words
from classmargin.recipes.sweep_space import easy_violation, grid
from classmargin.recipes.sweep_study import SweepPlan, settle_plan
from classmargin.recipes.train_run import read_summary, validation_accuracies
from classmargin.training.config_reader import differences
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import say

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


def check_plan(plan: SweepPlan) -> None:
    """Refuse what cannot work before anything is written: data without validation samples, too few classes."""
    shared.optuna_package()
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
    engine: str = "local",
    jobs: int = 1,
    reference: str | Path | None = None,
    test: bool = True,
    show: bool | None = None,
) -> SweepResult:
    """Run, or resume, a sweep and return what came out.

    The easy third is measured against the run folder ``reference``; without it plain ERM is trained first. With ``test`` the
    chosen trial is tried on the test set at the end.
    """
    folder = Path(folder)
    check_plan(plan)
    settle_plan(plan, folder)
    study = shared.open_study(plan)
    with shared.storage_errors(plan.storage):
        if plan.whole_grid:
            for labels in grid(plan.parameters):  # what is there already is not added again
                study.enqueue_trial(labels, skip_if_exists=True)
        if plan.keep_easy and "reference" not in study.user_attrs:
            accuracies = _reference_accuracies(plan, folder, reference, engine)
            if "reference" not in study.user_attrs:  # another machine may have been faster; one value holds
                study.set_user_attr("reference", accuracies)
        source = StudySource(study, plan, folder)
        with source.holding():
            run_from(source, engine=engine, jobs=jobs, devices=plan.config.machine.devices, show=show)
        result = read_result(study, plan)
    return _with_test(result, engine) if test and result.best is not None else result


def _reference_accuracies(plan: SweepPlan, folder: Path, given: str | Path | None, engine: str) -> dict[str, float]:
    """Return the accuracies on validation of the given run, or of plain ERM trained here."""
    config = plan.reference_config()
    if given is None:
        say("training the reference (plain ERM) that the easy third is measured against")
        run = PlannedRun("the reference", config, RunFolder(folder / "reference"), test=False)
        _train_one(run, engine)
        return validation_accuracies(run.folder.path)
    other = RunFolder(given)
    free = ("data.root:", "data.augmentation:")
    changed = [words for words in differences(other.read_config(), config) if words.startswith("data.")]
    changed = [words for words in changed if not words.startswith(free)]
    if changed:
        raise ValueError(f"--reference {given} was trained on other data ({'; '.join(changed)})")
    if not other.done:
        raise ValueError(f"--reference {other.path} is not a finished run")
    epoch = read_summary(other).get("selected_epoch")
    return validation_accuracies(given, None if epoch is None else int(epoch))


def _train_one(run: PlannedRun, engine: str) -> None:
    failed = run_all([run], engine=engine)
    if failed:
        words = failed[run.title].partition(": ")[2] or failed[run.title]
        raise ValueError(f"{run.title} could not be trained: {words}")


def _with_test(result: SweepResult, engine: str) -> SweepResult:
    """Try the chosen trial on the test set, if the sweep is over and its run is here."""
    best = result.best
    assert best is not None, "the caller knows that a trial was chosen"
    run = RunFolder(best.folder)
    if not result.is_complete:
        return replace(result, missing="no test accuracies: the sweep is not over")
    if best.host != platform.node() or not run.started:
        why = f"the run of the chosen trial is {best.folder} on {best.host}; resume there"
        return replace(result, missing=f"no test accuracies: {why}")
    if not run.done:
        _train_one(PlannedRun("the chosen trial", result.plan.trial_config(best.labels), run), engine)
    return replace(result, test=read_summary(run)["test"])


class StudySource:
    """Trials of a study, which all who work on the sweep share, as runs for the runner, in ``folder/runs``."""

    def __init__(self, study: Study, plan: SweepPlan, folder: Path) -> None:
        self._study, self._plan, self._folder = study, plan, folder
        self._own: dict[str, Trial] = {}
        self.total = plan.budget

    @property
    def done(self) -> int:
        """Trials that have ended, whoever trained them."""
        return sum(trial.state.is_finished() for trial in shared.counted(self._study))

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Record heartbeats while the block runs, and line up again what it leaves unfinished."""
        with shared.beating(self._own.values()):
            try:
                yield
            finally:
                for trial in self._own.values():
                    with contextlib.suppress(Exception):  # a data base that is away must not hide the error
                        shared.line_up_again(self._study, trial.number)

    def take(self) -> PlannedRun | None:
        """Return the run of the next trial."""
        shared.free_dead_trials(self._study)
        if len(shared.counted(self._study)) >= self._plan.budget:
            return None
        trial = self._study.ask()
        before = [one for one in shared.counted(self._study) if one.number < trial.number]
        if len(before) >= self._plan.budget:  # another process asked for the last one at the same moment
            self._study.tell(trial, state=shared.trial_state("FAIL"))
            return None
        number = self._now(trial).system_attrs.get("failed_trial", trial.number)  # under which it was begun first
        folder = RunFolder(self._folder / "runs" / f"trial-{number:04d}")
        shared.sign(trial, folder.path)
        self._study.sampler = shared.make_sampler(self._plan, trial.number)
        config = self._plan.trial_config(shared.suggest(trial, self._plan.parameters))
        title = f"trial {trial.number}"
        self._own[title] = trial
        return PlannedRun(title, config, folder, test=False, judged=True)

    def may_go_on(self, run: PlannedRun, epoch: int, accuracies: Mapping[str, float]) -> bool:
        """Report the value of an evaluation, and ask the pruner."""
        trial, value = self._own[run.title], self._plan.objective.value(accuracies)
        if not self._is_ours(trial):
            return False
        # A resumed run may come by an epoch again, with the same value.
        if value == value and epoch not in self._now(trial).intermediate_values:
            trial.report(value, epoch)
        # After the last epoch nothing is saved by stopping.
        return epoch >= run.config.loop.epochs or not trial.should_prune()

    def _now(self, trial: Trial) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[trial.number]

    def _is_ours(self, trial: Trial) -> bool:
        """Whether nobody has taken a trial for dead: this machine may have slept, or a clock was set."""
        return self._now(trial).state.name == "RUNNING"

    def end(self, run: PlannedRun, ending: Ending) -> str:
        """Tell the study how a trial ended; a disk that does not take what is written ends the command."""
        if ending.kind == "unwritable":
            raise OSError(ending.words)
        trial = self._own.pop(run.title)
        if not self._is_ours(trial):
            return f"{run.title} was taken over by another machine meanwhile; it is not counted twice"
        if ending.kind == "finished":
            ending = self._complete(trial, run, ending)
        if ending.kind != "finished":
            outcome = {"fell_behind": "pruned"}.get(ending.kind, ending.kind)
            trial.set_user_attr("result", {"outcome": outcome, "reason": ending.words})
            # A diverged one is told as pruned, not failed: the sampler should learn to stay away from such values.
            self._study.tell(trial, state=shared.trial_state("FAIL" if outcome == "failed" else "PRUNED"))
        found, name = self._now(trial), self._plan.objective.name
        values = settings_words(named_settings(self._plan.parameters, found.params), " ")
        shown = f" {name} {100 * found.value:.1f}" if found.value is not None else ""
        return f"trial {trial.number} {ending.kind.replace('_', ' ')}:{shown} ({values})"

    def _complete(self, trial: Trial, run: PlannedRun, ending: Ending) -> Ending:
        plan = self._plan
        accuracies = validation_accuracies(run.folder.path, ending.selected_epoch)
        value = plan.objective.value(accuracies)
        if value != value:
            return Ending("failed", f"no value of {plan.objective.name} on validation")
        trial.set_user_attr("result", {"accuracies": accuracies})
        reference = self._study.user_attrs.get("reference")
        if plan.keep_easy and reference is not None and CONSTRAINT not in trial.constraints:
            trial.set_constraint(CONSTRAINT, easy_violation(accuracies, reference["easy"], plan.easy_slack))
        self._study.tell(trial, value)
        return ending
