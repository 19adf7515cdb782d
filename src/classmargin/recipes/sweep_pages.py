"""The result of a sweep for people: a sentence, tables, figures, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from classmargin.evaluation.json_values import json_text
from classmargin.recipes.sweep_result import SweepResult, TrialRow, to_dict
from classmargin.recipes.sweep_space import METRICS
from classmargin.report.figures import (
    ACCENT,
    NEUTRAL,
    Figure,
    axis_labels,
    empty_figure,
    percent_axis,
    plotly_text,
)
from classmargin.report.tables import Column, Table, markdown_report
from classmargin.training.config_reader import to_toml
from classmargin.training.run_folder import write_text

MOST_ROWS = 20
SELECTION_NOTE = (
    "Every value in this table is an accuracy on validation samples, of the weights that count at the end of "
    "the trial; thirds are ranked by the trial's own accuracies. The best of many trials looks better on "
    "validation than it is: only the test set tells."
)
TEST_NOTE = "Computed once, for the chosen trial alone, after the choice. No other trial was ever tried on the test set."


def verdict_of(result: SweepResult) -> str:
    """Return the answer in a few sentences: the choice, whether easy holds, what the test set says."""
    plan, best = result.plan, result.best
    ended = f"{len(result.rows)} trials ({_counts(result)})"
    if best is None:
        return f"No trial has finished: {ended}."
    chosen = f"trial {best.number} with {_settings_words(result, best)}, {_percent(best.value)}"
    words = [f"Best of {ended} by {plan.objective.name} on validation: {chosen}."]
    if plan.keep_easy and result.reference is not None and best.keeps_easy is not None:
        words.append(_easy_words(result, best))
    if result.test is not None:
        values = ", ".join(f"{name} {_percent(result.test[name])}" for name in METRICS if name in result.test)
        words.append(f"On the test set, looked at once for this trial alone: {values}.")
    if result.running and result.is_complete:
        words.append(f"{result.running} more were begun and are not asked for any more.")
    elif result.running:
        words.append(f"{result.running} trials are still under way: the choice may change.")
    return " ".join(words)


def _counts(result: SweepResult) -> str:
    names = ("finished", "pruned", "diverged", "failed", "running")
    return ", ".join(f"{result.count(name)} {name}" for name in names if result.count(name))


def _settings_words(result: SweepResult, row: TrialRow) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in result.settings(row).items())


def _easy_words(result: SweepResult, best: TrialRow) -> str:
    assert result.reference is not None
    easy, before = best.accuracies["easy"], result.reference["easy"]
    slack = f" (forgiven: {100 * result.plan.easy_slack:g} points)" if result.plan.easy_slack else ""
    numbers = f"{_percent(easy)} against {_percent(before)} of the reference ERM run{slack}"
    if best.keeps_easy:
        return f"The easy third does not drop: {numbers}."
    return f"NO trial keeps the easy third; this one loses least of it: {numbers}."


def tables_of(result: SweepResult, *, top: int = MOST_ROWS) -> list[Table]:
    """Return the trials, best first; the choice beside the reference; the test; the importance."""
    tables = [trials_table(result, top=top)]
    if result.best is not None:
        tables.append(choice_table(result))
    if result.test is not None:
        tables.append(test_table(result))
    if result.importance:
        tables.append(importance_table(result))
    return tables


def trials_table(result: SweepResult, *, top: int = MOST_ROWS) -> Table:
    """Return one row a trial: first those that may be chosen, by value; then the others."""
    parameters = [Column(f"set-{index}", p.name, "value") for index, p in enumerate(result.plan.parameters)]
    easy = (Column("easy_kept", "Easy kept", "text"),) if result.plan.keep_easy else ()
    columns = (
        Column("number", "Trial", "count"),
        *parameters,
        Column("value", result.plan.objective.name.capitalize(), "percent", "the objective, on validation"),
        *(Column(name, name.capitalize(), "percent") for name in METRICS),
        *easy,
        Column("outcome", "Outcome"),
    )
    ranked = sorted(result.rows, key=_rank)
    rows = [_table_row(result, row) for row in ranked[:top]]
    left = len(ranked) - len(rows)
    note = SELECTION_NOTE + (f" {left} more trials are in result.json." if left else "")
    return Table(f"Trials by {result.plan.objective.name} on validation", columns, rows, note)


def _rank(row: TrialRow) -> tuple[bool, bool, float, int]:
    return (row.outcome != "finished", row.keeps_easy is False, -(row.value or 0.0), row.number)


def _table_row(result: SweepResult, row: TrialRow) -> dict[str, Any]:
    settings = result.settings(row)
    outcome = row.outcome if row.same_as is None else f"same as {row.same_as}"
    kept = {True: "yes", False: "no", None: ""}[row.keeps_easy]
    names = {f"set-{i}": _short(settings.get(p.name)) for i, p in enumerate(result.plan.parameters)}
    return {
        "number": row.number,
        **names,
        "value": row.value,
        **{name: row.accuracies.get(name) for name in METRICS},
        "easy_kept": kept,
        "outcome": outcome,
    }


def choice_table(result: SweepResult) -> Table:
    """Return the chosen trial beside the reference run, both on validation."""
    assert result.best is not None
    rows = [{"who": f"trial {result.best.number} (chosen)", **result.best.accuracies}]
    if result.reference is not None:
        rows.insert(0, {"who": "reference ERM", **result.reference})
    columns = (Column("who", "Run"), *(Column(name, name.capitalize(), "percent") for name in METRICS))
    note = "The reference has the shared settings of the sweep, untuned: the difference is not a fair comparison."
    return Table("The choice on validation", columns, rows, note if result.reference is not None else "")


def test_table(result: SweepResult) -> Table:
    """Return the one look at the test set."""
    assert result.best is not None
    assert result.test is not None
    columns = (Column("who", "Run"), *(Column(name, name.capitalize(), "percent") for name in METRICS))
    row = {"who": f"trial {result.best.number} (chosen)", **result.test}
    return Table("The chosen trial on the test set", columns, [row], TEST_NOTE)


def importance_table(result: SweepResult) -> Table:
    """Return each parameter's share."""
    rows = [{"name": name, "share": share} for name, share in result.importance.items()]
    note = (
        "Share of the differences between finished trials that each parameter explains (functional ANOVA by "
        "Optuna). With few trials this is a hint, no more."
    )
    columns = (Column("name", "Parameter"), Column("share", "Importance", "percent"))
    return Table("Importance of parameters", columns, rows, note)


def importance_figure(result: SweepResult) -> Figure:
    """Return bars: how much of the objective's variance each parameter explains."""
    names = list(result.importance)[::-1]
    shares = [result.importance[name] for name in names]
    figure = empty_figure(120 + 34 * len(names), xaxis=percent_axis("importance", range=[0, 1]))
    figure.add_bar(
        x=shares,
        y=axis_labels(names, longest=40),
        orientation="h",
        marker={"color": ACCENT},
        showlegend=False,
    )
    figure.update_yaxes(automargin=True)
    return figure


def history_figure(result: SweepResult) -> Figure:
    """Return the objective of every trial in the order they were begun, and what would have been chosen."""
    figure = empty_figure(
        320,
        xaxis={"title": {"text": "trial"}, "automargin": True},
        yaxis=percent_axis(f"{result.plan.objective.name} on validation"),
    )
    for outcome, colour in (("finished", ACCENT), ("pruned", NEUTRAL), ("diverged", "#d1495b")):
        rows = [row for row in result.rows if row.outcome == outcome and row.value is not None]
        figure.add_scatter(
            x=[row.number for row in rows],
            y=[row.value for row in rows],
            text=[plotly_text(_settings_words(result, row)) for row in rows],
            mode="markers",
            name=outcome,
            marker={"color": colour, "size": 9},
        )
    return figure


def notes_of(result: SweepResult) -> list[str]:
    """Return what a reader must know."""
    failed = [row for row in result.rows if row.outcome in ("failed", "diverged")]
    return [
        "Trials are compared, pruned and chosen by accuracies on validation samples; the test set plays no part.",
        *(f"trial {row.number} {row.outcome}: {row.reason}" for row in failed[:5]),
        *result.missing,
    ]


def write_result(result: SweepResult, folder: Path) -> list[Path]:
    """Write ``result.json``, ``table.md``, ``best.toml`` and, where the packages are there, ``report.html``."""
    verdict, tables, notes = verdict_of(result), tables_of(result, top=len(result.rows)), notes_of(result)
    written = [folder / "result.json", folder / "table.md"]
    write_text(written[0], json_text(to_dict(result)) + "\n")
    write_text(written[1], markdown_report(verdict, tables, notes) + "\n")
    if result.best is not None:
        written.append(folder / "best.toml")
        write_text(written[-1], to_toml(result.plan.trial_config(result.best.labels)))
    return [*written, *_write_page(result, folder, verdict, tables, notes)]


def _write_page(
    result: SweepResult, folder: Path, verdict: str, tables: Sequence[Table], notes: Sequence[str]
) -> list[Path]:
    from classmargin.report.html_pages import write_tables_html
    from classmargin.training.run_progress import say

    try:
        figures = {
            "history": (history_figure(result), "Objective of every trial", "Every trial, on validation.")
        }
        if result.importance:
            caption = "Share of the differences between finished trials that each parameter explains."
            label = "Importance of every parameter"
            figures = {"importance": (importance_figure(result), label, caption), **figures}
        title = f"Sweep of {result.plan.config.method.name} on {Path(result.plan.config.data.name).name}"
        page = folder / "report.html"
        return [
            write_tables_html(page, title=title, verdict=verdict, tables=tables, figures=figures, notes=notes)
        ]
    except ImportError as error:
        say(f"no report.html: {error}")
        return []


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
