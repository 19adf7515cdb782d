"""What came out of a sweep: one row a trial, the choice, and which parameters mattered.

Everything here is about validation. Only :attr:`SweepResult.test` is about the test set, and it is filled for
one trial, after the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from classmargin.recipes.sweep_plan import SweepPlan
from classmargin.recipes.sweep_space import Parameter

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

FEWEST_FOR_IMPORTANCE = 4
CONSTRAINT = "easy must not drop"


@dataclass(frozen=True)
class TrialRow:
    """One trial.

    Attributes:
        number: In the study.
        outcome: ``finished``, ``pruned``, ``diverged``, ``failed`` or ``running``.
        labels: What the study suggested, by key.
        value: Objective on validation; of a trial that did not finish, the last one reported.
        accuracies: On validation, of the weights that count; empty unless finished.
        violation: By how much the easy third falls below the reference; None without a constraint.
        seconds: Training time in its last session.
        reason: Why it did not finish.
        folder: Its run folder.
        host: Machine of that folder.
        same_as: Number of the trial whose result it shares, having the same settings.
    """

    number: int
    outcome: str
    labels: Mapping[str, Any]
    value: float | None = None
    accuracies: Mapping[str, float] = field(default_factory=dict)
    violation: float | None = None
    seconds: float | None = None
    reason: str = ""
    folder: str = ""
    host: str = ""
    same_as: int | None = None

    @property
    def keeps_easy(self) -> bool | None:
        """Whether the easy third does not drop; None where nothing was asked or known."""
        return None if self.violation is None else self.violation <= 0.0


@dataclass(frozen=True)
class SweepResult:
    """A sweep as far as it is.

    Attributes:
        plan: What was asked.
        rows: All trials, by number.
        best: The chosen one; None as long as no trial has finished.
        reference: Accuracies on validation of the reference run, where there is one.
        test: Accuracies of ``best`` on the test set, once they were computed.
        importance: Share of each parameter in the differences between finished trials; empty if unknown.
        missing: Why something above is not there.
    """

    plan: SweepPlan
    rows: tuple[TrialRow, ...]
    best: TrialRow | None
    reference: Mapping[str, float] | None
    test: Mapping[str, float] | None = None
    importance: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def running(self) -> int:
        """Trials that somebody is at."""
        return sum(row.outcome == "running" for row in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether as many trials have ended as are asked for.

        One more may have been left by an interruption before fewer were asked for; it is waited for no longer.
        """
        return len(self.rows) - self.running >= self.plan.budget

    def count(self, outcome: str) -> int:
        """Return how many trials ended that way."""
        return sum(row.outcome == outcome for row in self.rows)

    def settings(self, row: TrialRow) -> dict[str, Any]:
        """Return the searched settings of a trial under the names people use."""
        return named_settings(self.plan.parameters, row.labels)


def named_settings(parameters: Sequence[Parameter], labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"mean_margin": 2}`` for what a study holds."""
    return {p.name: p.value_of(labels[p.key]) for p in parameters if p.key in labels}


def read_result(study: Study, plan: SweepPlan) -> SweepResult:
    """Return the result of a study as it is now."""
    from classmargin.recipes.sweep_study import counted

    rows = tuple(_row(trial) for trial in counted(study.get_trials(deepcopy=False)))
    return make_result(plan, rows, study.user_attrs.get("reference"))


def make_result(
    plan: SweepPlan, rows: Sequence[TrialRow], reference: Mapping[str, float] | None
) -> SweepResult:
    """Choose among rows and say which parameters mattered; the engine that made the rows does not matter."""
    importance, missing = parameter_importance(plan, rows)
    return SweepResult(
        plan, tuple(rows), choose(rows), reference, None, importance, (missing,) if missing else ()
    )


def _row(trial: FrozenTrial) -> TrialRow:
    from classmargin.recipes.sweep_study import worker_of

    result, worker = trial.user_attrs.get("result", {}), worker_of(trial)
    outcomes = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
    outcome = result.get("outcome", outcomes[trial.state.name])
    last = max(trial.intermediate_values, default=None)
    reported = None if last is None else trial.intermediate_values[last]
    return TrialRow(
        number=trial.number,
        outcome="running" if trial.state.name == "RUNNING" else outcome,
        labels=dict(trial.params),
        value=trial.value if trial.state.name == "COMPLETE" else reported,
        accuracies=result.get("accuracies", {}),
        violation=trial.constraints.get(CONSTRAINT),
        seconds=result.get("seconds"),
        reason=result.get("reason", ""),
        folder=worker.get("folder", ""),
        host=worker.get("host", ""),
        same_as=result.get("same_as"),
    )


def choose(rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the finished trial with the highest value among those that keep the easy third.

    If none keeps it, the one that loses least of it. Ties go to the earlier trial. Looks at validation alone.
    """
    finished = [row for row in rows if row.outcome == "finished" and row.value is not None]
    if not finished:
        return None
    kept = [row for row in finished if row.keeps_easy is not False]
    if kept:
        return max(kept, key=lambda row: (row.value or 0.0, -row.number))
    return min(finished, key=lambda row: (row.violation or 0.0, -(row.value or 0.0), row.number))


def parameter_importance(plan: SweepPlan, rows: Sequence[TrialRow]) -> tuple[dict[str, float], str]:
    """Return each parameter's share in the variance of the objective (functional ANOVA), or why there is none.

    Only finished trials count: the values of pruned ones are of other epochs. Trials that share a result
    count once.
    """
    finished = [row for row in rows if row.outcome == "finished" and row.same_as is None]
    if len(finished) < FEWEST_FOR_IMPORTANCE:
        return {}, f"importance of parameters needs {FEWEST_FOR_IMPORTANCE} finished trials"
    if len({row.value for row in finished}) == 1:
        return {}, "all finished trials have the same value, so no parameter is more important than another"
    from classmargin.recipes.sweep_study import optuna_package, quiet_optuna

    optuna = optuna_package()
    spaces = {p.key: _distribution(p) for p in plan.parameters}
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
        study.add_trials(
            [
                optuna.trial.create_trial(params=dict(row.labels), distributions=spaces, value=row.value)
                for row in finished
            ]
        )
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    names = {p.key: p.name for p in plan.parameters}
    return {names[key]: float(share) for key, share in found.items()}, ""


def _distribution(p: Parameter) -> Any:
    from classmargin.recipes.sweep_study import optuna_package

    kinds = optuna_package().distributions
    if p.choices:
        return kinds.CategoricalDistribution(p.labels)
    if p.whole:
        return kinds.IntDistribution(int(p.low), int(p.high), log=p.log, step=int(p.step or 1))
    return kinds.FloatDistribution(p.low, p.high, log=p.log, step=p.step)


def with_test(result: SweepResult, test: Mapping[str, float]) -> SweepResult:
    """Return the result with the test accuracies of the chosen trial."""
    return replace(result, test=dict(test))


def to_dict(result: SweepResult) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    return {
        "plan": result.plan.to_dict(),
        "complete": result.is_complete,
        "selected_on": "validation",
        "best": None if result.best is None else _row_dict(result, result.best),
        "test_of_best": result.test,
        "reference_on_validation": result.reference,
        "importance": dict(result.importance),
        "trials": [_row_dict(result, row) for row in result.rows],
        "missing": list(result.missing),
    }


def _row_dict(result: SweepResult, row: TrialRow) -> dict[str, Any]:
    names = ("number", "outcome", "value", "violation", "keeps_easy", "seconds", "reason", "same_as")
    return {
        **{name: getattr(row, name) for name in names},
        "settings": result.settings(row),
        "validation": dict(row.accuracies),
        "folder": row.folder,
        "host": row.host,
    }
