"""What came out of a sweep: one row a trial and the choice; as a sentence, tables and files.

Everything is about validation but :attr:`SweepResult.test`, which is filled for one trial, after the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classmargin.evaluation.json_values import json_text
from classmargin.recipes.record import headline_columns
from classmargin.recipes.record_pages import written_page
from classmargin.recipes.sweep_space import Parameter
from classmargin.recipes.sweep_study import SweepPlan, counted
from classmargin.recipes.train_run import METRICS
from classmargin.report.tables import Column, Table, markdown_report
from classmargin.training.config_reader import to_toml
from classmargin.training.run_folder import write_text

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

CONSTRAINT = "easy must not drop"
MOST_ROWS = 20
SELECTION_NOTE = (
    "Every value in this table is an accuracy on validation samples, of the weights that count at the end of "
    "the trial; thirds are ranked by the trial's own accuracies. The best of many trials looks better on "
    "validation than it is: only the test set tells."
)
TEST_NOTE = "The test set was looked at once, after the choice. No other trial was ever tried on the test set."
REFERENCE_NOTE = "The reference has the shared settings of the sweep, untuned: the difference is not a fair comparison."


@dataclass(frozen=True)
class TrialRow:
    """One trial."""

    number: int
    outcome: str  # finished, pruned, diverged, failed or running
    labels: Mapping[str, Any]  # what the study suggested, by key
    value: float | None = None  # objective on validation; the last one reported, if it did not finish
    accuracies: Mapping[str, float] = field(default_factory=dict)  # on validation; empty unless finished
    violation: float | None = None  # by how much the easy third falls below the reference
    reason: str = ""  # why it did not finish
    folder: str = ""
    host: str = ""  # machine of that folder
    begun_as: int | None = None  # the number it was begun under, where its worker died and another took over

    @property
    def keeps_easy(self) -> bool | None:
        """Whether the easy third does not drop; None where nothing was asked or known."""
        return None if self.violation is None else self.violation <= 0.0


@dataclass(frozen=True)
class SweepResult:
    """A sweep as far as it is."""

    plan: SweepPlan
    rows: tuple[TrialRow, ...]
    best: TrialRow | None  # None as long as no trial has finished
    reference: Mapping[str, float] | None  # accuracies on validation
    test: Mapping[str, float] | None = None  # of the best, once they were computed
    missing: str = ""  # why there are no test accuracies

    @property
    def is_complete(self) -> bool:
        """Whether as many trials have ended as are asked for; more that were begun are waited for no longer."""
        return len(self.rows) - self.count("running") >= self.plan.budget

    def count(self, outcome: str) -> int:
        """Return how many trials ended that way."""
        return sum(row.outcome == outcome for row in self.rows)

    def settings(self, row: TrialRow) -> dict[str, Any]:
        """Return the searched settings of a trial under the names people use."""
        return named_settings(self.plan.parameters, row.labels)


def named_settings(parameters: Sequence[Parameter], labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"mean_margin": 2}`` for what a study holds."""
    return {p.name: p.value_of(labels[p.key]) for p in parameters if p.key in labels}


def settings_words(settings: Mapping[str, Any], separator: str) -> str:
    """Return settings as words, in few digits."""
    return separator.join(f"{name}={_short(value)}" for name, value in settings.items())


def read_result(study: Study, plan: SweepPlan) -> SweepResult:
    """Return the result of a study as it is now."""
    rows = tuple(_row(trial) for trial in counted(study))
    return SweepResult(plan, rows, choose(rows), study.user_attrs.get("reference"))


def _row(trial: FrozenTrial) -> TrialRow:
    result, worker = trial.user_attrs.get("result", {}), trial.user_attrs.get("worker", {})
    outcomes = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
    state, reported = trial.state.name, trial.intermediate_values
    return TrialRow(
        number=trial.number,
        outcome="running" if state == "RUNNING" else result.get("outcome", outcomes[state]),
        labels=dict(trial.params),
        value=trial.value if state == "COMPLETE" else reported.get(max(reported, default=0)),
        violation=trial.constraints.get(CONSTRAINT),
        folder=worker.get("folder", ""),
        host=worker.get("host", ""),
        begun_as=trial.system_attrs.get("failed_trial"),
        **{name: result[name] for name in ("accuracies", "reason") if name in result},
    )


def choose(rows: Sequence[TrialRow]) -> TrialRow | None:
    """Return the best finished trial that keeps the easy third, the earlier of equals; if none keeps it, who loses least."""
    finished = [row for row in rows if row.outcome == "finished" and row.value is not None]
    return min(finished, key=lambda row: (max(row.violation or 0.0, 0.0), *_merit(row)), default=None)


def _merit(row: TrialRow) -> tuple[float, int]:
    """Return what puts the better trial first, and of equal ones the earlier, whoever was killed in between."""
    return -(row.value or 0.0), row.number if row.begun_as is None else row.begun_as


def to_dict(result: SweepResult) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    return {
        "plan": result.plan.question().to_dict(),
        "complete": result.is_complete,
        "selected_on": "validation",
        "best": None if result.best is None else _row_dict(result, result.best),
        "test_of_best": result.test,
        "reference_on_validation": result.reference,
        "trials": [_row_dict(result, row) for row in result.rows],
        "missing": [result.missing] if result.missing else [],
    }


def _row_dict(result: SweepResult, row: TrialRow) -> dict[str, Any]:
    told = {name: value for name, value in vars(row).items() if name not in ("labels", "accuracies")}
    more = {"settings": result.settings(row), "validation": dict(row.accuracies)}
    return {**told, "keeps_easy": row.keeps_easy, **more}


def verdict_of(result: SweepResult) -> str:
    """Return the answer in a few sentences: the choice, whether easy holds, what the test set says."""
    plan, best, running = result.plan, result.best, result.count("running")
    names = ("finished", "pruned", "diverged", "failed", "running")
    counts = ", ".join(f"{result.count(name)} {name}" for name in names if result.count(name))
    ended = f"{len(result.rows)} trials ({counts})"
    if best is None:
        return f"No trial has finished: {ended}."
    chosen = f"trial {best.number} with {settings_words(result.settings(best), ', ')}, {_percent(best.value)}"
    words = [f"Best of {ended} by {plan.objective.name} on validation: {chosen}."]
    if plan.keep_easy and result.reference is not None and best.keeps_easy is not None:
        easy, before = _percent(best.accuracies["easy"]), _percent(result.reference["easy"])
        slack = f" (forgiven: {100 * plan.easy_slack:g} points)" if plan.easy_slack else ""
        lost = "NO trial keeps the easy third; this one loses least of it"
        answer = "The easy third does not drop" if best.keeps_easy else lost
        words.append(f"{answer}: {easy} against {before} of the reference ERM run{slack}.")
    if result.test is not None:
        values = ", ".join(f"{name} {_percent(result.test[name])}" for name in METRICS if name in result.test)
        words.append(f"On the test set, looked at once for this trial alone: {values}.")
    if running and result.is_complete:
        words.append(f"{running} more were begun and are not asked for any more.")
    elif running:
        words.append(f"{running} trials are still under way: the choice may change.")
    return " ".join(words)


def tables_of(result: SweepResult, *, top: int = MOST_ROWS) -> list[Table]:
    """Return the trials, best first; and the choice beside the reference."""
    trials, best = _trials_table(result, top), result.best
    if best is None:
        return [trials]
    chosen = f"trial {best.number} (chosen)"
    found = {"reference ERM": result.reference, chosen: best.accuracies, f"{chosen}, test set": result.test}
    rows = [{"who": who, **accuracies} for who, accuracies in found.items() if accuracies]
    notes = " ".join([REFERENCE_NOTE] * bool(result.reference) + [TEST_NOTE] * bool(result.test))
    title = "The choice on validation" + " and on the test set" * bool(result.test)
    return [trials, Table(title, (Column("who", "Run"), *_METRIC_COLUMNS), rows, notes)]


_METRIC_COLUMNS = headline_columns(METRICS, "percent")


def _trials_table(result: SweepResult, top: int) -> Table:
    """Return one row a trial: first those that may be chosen, by value; then the others."""
    parameters, objective = result.plan.parameters, result.plan.objective.name
    columns = (
        Column("number", "Trial", "count"),
        *(Column(f"set-{index}", p.name, "value") for index, p in enumerate(parameters)),
        Column("value", objective.capitalize(), "percent", "the objective, on validation"),
        *_METRIC_COLUMNS,
        *((Column("easy_kept", "Easy kept", "text"),) if result.plan.keep_easy else ()),
        Column("outcome", "Outcome"),
    )
    ranked = sorted(result.rows, key=lambda row: (row.outcome != "finished", row.keeps_easy is False, *_merit(row)))
    lines = []
    for row in ranked[:top]:
        settings, kept = result.settings(row), {True: "yes", False: "no", None: ""}[row.keeps_easy]
        line: dict[str, Any] = {f"set-{index}": _short(settings.get(p.name)) for index, p in enumerate(parameters)}
        lines.append({**line, **vars(row), **row.accuracies, "easy_kept": kept})
    left = len(ranked) - len(lines)
    note = SELECTION_NOTE + (f" {left} more trials are in result.json." if left else "")
    return Table(f"Trials by {objective} on validation", columns, lines, note)


def notes_of(result: SweepResult) -> list[str]:
    """Return what a reader must know."""
    failed = [row for row in result.rows if row.outcome in ("failed", "diverged")]
    return [
        "Trials are compared, pruned and chosen by accuracies on validation samples; the test set plays no part.",
        *(f"trial {row.number} {row.outcome}: {row.reason}" for row in failed[:5]),
        *([result.missing] if result.missing else []),
    ]


def write_result(result: SweepResult, folder: Path) -> list[Path]:
    """Write ``result.json``, ``table.md``, ``best.toml`` and, where the packages are there, ``report.html``."""
    from classmargin.report.html_pages import write_tables_html

    verdict, tables, notes = verdict_of(result), tables_of(result, top=len(result.rows)), notes_of(result)
    written = [folder / "result.json", folder / "table.md"]
    write_text(written[0], json_text(to_dict(result)) + "\n")
    write_text(written[1], markdown_report(verdict, tables, notes) + "\n")
    if result.best is not None:
        written.append(folder / "best.toml")
        write_text(written[-1], to_toml(result.plan.trial_config(result.best.labels)))
    title = f"Sweep of {result.plan.config.method.name} on {Path(result.plan.config.data.name).name}"
    words: dict[str, Any] = {"title": title, "verdict": verdict, "tables": tables, "notes": notes}
    return written + written_page(lambda: write_tables_html(folder / "report.html", **words))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
