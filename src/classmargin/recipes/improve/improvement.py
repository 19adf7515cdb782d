"""What ``improve`` found, as one frozen record: the answer, the choice, the table of remedies, and how to train the winner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.comparison import Comparison, Delta, points
from classmargin.evaluation.json_values import to_plain
from classmargin.evaluation.samples import flipped_samples
from classmargin.recipes.improve import judging
from classmargin.recipes.improve.judging import METRICS, SHOWN, Aim, Deltas, Row, Samples

if TYPE_CHECKING:
    import pandas as pd

TUNED, GIVEN = "the tuned baseline", "the given baseline"


@dataclass(frozen=True)
class Improvement:
    """The outcome of :func:`classmargin.improve`.

    Attributes:
        answer: ``better``, ``a trade`` or ``no clear gain``; what the test set says.
        verdict: One sentence that can be quoted.
        choice: Title of the chosen remedy; None if nothing gained on validation.
        table: One row per remedy: ``title``, ``remedy``, ``stage``, ``runs``, ``cost``, ``members``, changes on validation against the
            tuned baseline (``overall``, ``overall_low``, ``overall_high``, the same for easy, medium, hard and worst), ``note``.
        validation: Changes of the choice on validation with intervals, of each accuracy and of the ``objective``.
        test: The same on the test set, which was read once.
        comparisons: On the test set, by name of the baseline: the tuned one, and the given one where there is one.
        audits: Of ``baseline`` and ``choice`` on the test set.
        flipped: Test samples that the choice gets right and the baseline wrong, or the other way round.
        advice: Classes that still lag and did not gain: ``class_name``, ``accuracy``, ``reason``, ``next_step``.
        commands: Commands that train the winner anew.
        folder: Where everything lies.
        winner: The run folders of the winner.
        offsets: One number per class that is added to the scores of the winner; empty for none.
        facts: How the answer was found: splits, seeds, objective, guard, budget.
        notes: Sentences a reader must know.
    """

    answer: str
    verdict: str
    choice: str | None
    table: pd.DataFrame
    validation: Deltas
    test: Deltas
    comparisons: Mapping[str, Comparison]
    audits: Mapping[str, Audit]
    flipped: pd.DataFrame
    advice: pd.DataFrame
    commands: tuple[str, ...]
    folder: Path | None
    winner: tuple[Path, ...]
    offsets: tuple[float, ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    images: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> Any:
        """The winner as a ``torch.nn.Module`` from inputs to scores ``[B, K]`` and features; the baseline if nothing was chosen.

        Raises:
            ValueError: Nothing was trained: the answer came from predictions.
        """
        from classmargin.recipes.ensemble import EnsembleModel
        from classmargin.recipes.improve.candidates import ShiftedModel
        from classmargin.recipes.saved_model import DeployedModel, load_model

        if not self.winner:
            raise ValueError("there is no model: the answer came from predictions alone; see offsets")
        models = [load_model(run) for run in self.winner]
        model = DeployedModel(models[0]) if len(models) == 1 else EnsembleModel(models)
        return (ShiftedModel(model, self.offsets) if any(self.offsets) else model).eval()

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write one self-contained page that opens offline."""
        from classmargin.recipes.improve.improvement_page import write_improvement_html

        return write_improvement_html(self, path)

    def to_markdown(self) -> str:
        """Return the answer and its tables as Markdown."""
        from classmargin.recipes.improve.improvement_page import tables_of
        from classmargin.report.tables import markdown_report

        return markdown_report(self.verdict, tables_of(self), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; audits and comparisons in short."""
        said = {name: getattr(self, name) for name in ("answer", "verdict", "choice", "facts", "validation", "test")}
        accuracies = {name: {key: float(getattr(audit, key)) for key in METRICS} for name, audit in self.audits.items()}
        pairs, shown = self.comparisons.items(), ("deltas", "gained", "lost")
        against = {name: {key: getattr(pair, key) for key in shown} for name, pair in pairs}
        tables = {"remedies": self.table, "advice": self.advice, "commands": self.commands}
        winner = {"winner": [run.name for run in self.winner], "offsets": self.offsets, "notes": self.notes}
        plain: dict[str, Any] = to_plain({**said, "accuracies": accuracies, "against": against, **tables, **winner})
        return plain

    def __str__(self) -> str:
        return self.verdict

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def frame_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the rows of a search as a table, the best objective first within each stage."""
    import pandas as pd

    # Finalists and their combinations are compared with one another.
    stages = {"combined": 0, "finalist": 0, "screened": 1, "tuning": 2, "not tried": 3}
    records = []
    for row in sorted(rows, key=lambda one: (stages[one.stage], -one.deltas.get("objective", (-np.inf,))[0])):
        record = {name: getattr(row, name) for name in ("title", "remedy", "stage", "runs", "cost", "members")}
        for name in (*METRICS, "objective"):
            value, low, high = row.deltas.get(name, (np.nan,) * 3)
            record |= {name: value, f"{name}_low": low, f"{name}_high": high}
        records.append({**record, "note": row.note})
    return pd.DataFrame.from_records(records, columns=None if records else ["title", "stage", "objective"])


def verdict_of(
    aim: Aim, choice: str | None, validation: Deltas, test: Deltas, tried: int, base: str = TUNED, trade: bool = False
) -> tuple[str, str]:
    """Return the answer and the sentence that says it with its numbers."""
    what = aim.words
    if choice is None:
        words = f"none of {tried} candidates raises the {what} on validation by more than half its standard error"
        then = f"{base} stays, and more data for the classes that lag is the next step"
        return "no clear gain", f"No clear gain: {words}; {then}."
    answer = judging.answer_of(aim, test, trade=trade)
    gain, low, high = map(points, test["objective"])
    numbers = (
        f"{gain} points on the {what} of the test set ({100 * judging.CONFIDENCE:g} % interval {low} to {high}; "
        f"{points(validation['objective'][0])} on validation)"
    )
    others = [name for name in SHOWN if name != aim.objective]
    rest = ", ".join(f"{name} {with_interval(test[name])}" for name in others)
    clear = [name for name in others if test[name][1] > 0] if answer == "no clear gain" else []
    beside = f" What is clear is the gain in {' and '.join(clear)} accuracy." if clear else ""
    return answer, f"{answer.capitalize()}: {choice} gives {numbers} against {base}; {rest}.{beside}"


def with_interval(delta: Delta) -> str:
    """Return a change in points with its interval."""
    value, low, high = map(points, delta)
    return f"{value} ({low} to {high})"


def assemble(
    aim: Aim,
    samples: Samples,
    scores: Mapping[str, list[Any]],
    rows: Sequence[Row],
    chosen: Row | None,
    *,
    facts: Mapping[str, Any],
    notes: Sequence[str],
    folder: Path,
    winner: tuple[Path, ...] = (),
    offsets: Sequence[float] = (),
    images: Any = None,
    tuned: str = TUNED,
) -> Improvement:
    """Compare scores on the test set: those of the ``baseline``, of the ``choice`` and of the given baseline, where there are."""
    title = None if chosen is None else chosen.title
    judged = "baseline" if title is None else "choice"
    lean = {name: [samples.lean_audit(one) for one in runs] for name, runs in scores.items()}
    audits = {name: samples.full_audit(runs[0]) for name, runs in scores.items() if name != GIVEN}
    against = {} if title is None else {tuned: "baseline"}
    against |= {GIVEN: GIVEN} if GIVEN in scores else {}
    comparisons: dict[str, Comparison] = {}
    test: dict[str, Delta] = {}
    said = ""
    for name, key in against.items():
        options: Any = {"bootstrap": judging.FINAL_BOOTSTRAP, "names": (name, title or tuned)}
        found, pair = judging.changes(aim, lean[key], lean[judged], **options)
        deltas = judging.simultaneous(found, len(against))
        comparisons[name] = _widened(pair, deltas)
        if name == GIVEN:
            said = f" Against {name}: {with_interval(deltas['objective'])}."
        else:
            test = deltas
    validation = {} if chosen is None else dict(chosen.deltas)
    tried = sum(one.stage != "not tried" for one in rows)
    # Offsets take from one class what they give another.
    answer, words = verdict_of(aim, title, validation, test, tried, tuned, trade=bool(offsets))
    gained = comparisons[tuned].gained if tuned in comparisons else ()
    classes = audits[judged].by_class
    lagging = classes[classes["lags"].astype(bool) & ~classes["class_name"].isin(gained)].sort_values("accuracy")
    return Improvement(
        answer,
        words + said,
        title,
        frame_of(rows),
        validation,
        test,
        comparisons,
        audits,
        flipped=flipped_samples(audits["baseline"], audits[judged]),
        advice=lagging[["class_name", "n", "accuracy", "reason", "next_step"]].reset_index(drop=True),
        commands=_commands(winner, folder),
        folder=folder,
        winner=winner,
        offsets=tuple(offsets),
        facts=facts,
        notes=tuple(notes),
        images=images,
    )


def _widened(pair: Comparison, deltas: Deltas) -> Comparison:
    """Return a comparison with the intervals of ``deltas``."""
    summary = pair.summary.copy()
    for place, name in enumerate(summary["metric"]):
        if name in deltas:
            summary.loc[place, ["low", "high"]] = deltas[name][1:]
    return replace(pair, deltas={**pair.deltas, **{name: deltas[name] for name in METRICS}}, summary=summary)


def _commands(runs: Sequence[Path], folder: Path) -> tuple[str, ...]:
    """Return the commands that train a winner anew from the settings of its runs."""
    places = [folder / (f"winner/{number}" if len(runs) > 1 else "winner") for number in range(len(runs))]
    pairs = zip(runs, places, strict=True)
    lines = [f"classmargin train --config {run / 'config.toml'} --out {place}" for run, place in pairs]
    if len(runs) > 1:
        lines.append(f"classmargin ensemble {' '.join(map(str, places))} --out {folder / 'winner/ensemble'}")
    return tuple(lines)
