"""What ``improve`` found, as one frozen record: the answer, the choice, the table of remedies, and how to train the winner."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.comparison import Comparison, points
from classmargin.evaluation.json_values import to_plain
from classmargin.evaluation.prediction_files import Predictions
from classmargin.evaluation.samples import flipped_samples
from classmargin.recipes.improve.judging import (
    CONFIDENCE,
    FINAL_BOOTSTRAP,
    METRICS,
    SHOWN,
    Aim,
    Delta,
    Row,
    Samples,
    answer_of,
    changes,
    log_probabilities,
    simultaneous,
)

if TYPE_CHECKING:
    import pandas as pd

TUNED, GIVEN = "the tuned baseline", "the given baseline"
# Samples of a class that gained, shown in tables.
MOST_SAMPLES = 5


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
    validation: Mapping[str, Delta]
    test: Mapping[str, Delta]
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
        from classmargin.recipes.saved_model import DeployedModel, load_model

        if not self.winner:
            raise ValueError("there is no model: the answer came from predictions alone; see offsets")
        models = [load_model(run) for run in self.winner]
        model = DeployedModel(models[0]) if len(models) == 1 else EnsembleModel(models)
        return (_with_offsets(model, self.offsets) if any(self.offsets) else model).eval()

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
        plain: dict[str, Any] = to_plain(
            {
                "answer": self.answer,
                "verdict": self.verdict,
                "choice": self.choice,
                "facts": dict(self.facts),
                "validation": dict(self.validation),
                "test": dict(self.test),
                "accuracies": {
                    name: {key: float(getattr(audit, key)) for key in METRICS} for name, audit in self.audits.items()
                },
                "against": {
                    name: {"deltas": dict(pair.deltas), "gained": pair.gained, "lost": pair.lost}
                    for name, pair in self.comparisons.items()
                },
                "remedies": self.table.to_dict("records"),
                "advice": self.advice.to_dict("records"),
                "commands": self.commands,
                "winner": [run.name for run in self.winner],
                "offsets": self.offsets,
                "notes": self.notes,
            }
        )
        return plain

    def __str__(self) -> str:
        return self.verdict

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def _with_offsets(model: Any, offsets: Sequence[float]) -> Any:
    import torch
    from torch import Tensor, nn

    class Shifted(nn.Module):
        """Scores plus one number per class."""

        shift: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = model
            self.register_buffer("shift", torch.tensor(offsets, dtype=torch.float32))

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            scores, features = self.inner(inputs)
            # Offsets were fitted on logarithms of probabilities.
            return scores.log_softmax(dim=1) + self.shift, features

    return Shifted()


def frame_of(rows: Sequence[Any]) -> pd.DataFrame:
    """Return the rows of a search as a table, the best objective first within each stage."""
    import pandas as pd

    stages = ("combined", "finalist", "screened", "tuning", "not tried")
    records = []
    for row in rows:
        record = {name: getattr(row, name) for name in ("title", "remedy", "stage", "runs", "cost", "members")}
        for name in (*METRICS, "objective"):
            value, low, high = row.deltas.get(name, (float("nan"),) * 3)
            record |= {name: value, f"{name}_low": low, f"{name}_high": high}
        records.append({**record, "note": row.note})
    frame = pd.DataFrame.from_records(records, columns=None if records else ["title", "stage", "objective"])
    order = frame["stage"].map({name: place for place, name in enumerate(stages)})
    final = order.where(order > 0, 1)  # finalists and their combinations are compared with one another
    return (
        frame.assign(final=final, gain=-frame["objective"].astype(float))
        .sort_values(["final", "gain"], kind="stable", na_position="last")
        .drop(columns=["final", "gain"])
        .reset_index(drop=True)
    )


def verdict_of(
    aim: Aim,
    choice: str | None,
    validation: Mapping[str, Delta],
    test: Mapping[str, Delta],
    tried: int,
    *,
    baseline: str = "the tuned baseline",
    trade: bool = False,
) -> tuple[str, str]:
    """Return the answer and the sentence that says it with its numbers."""
    what = aim.words
    if choice is None:
        words = f"none of {tried} candidates raises the {what} on validation by more than half its standard error"
        return (
            "no clear gain",
            f"No clear gain: {words}; {baseline} stays, and more data for the classes that lag is the next step.",
        )
    answer = answer_of(aim, test, trade=trade)
    gain, there = test["objective"], validation["objective"]
    numbers = (
        f"{points(gain[0])} points on the {what} of the test set "
        f"({100 * CONFIDENCE:g} % interval {points(gain[1])} to {points(gain[2])}; {points(there[0])} on validation)"
    )
    others = [name for name in SHOWN if name != aim.objective]
    rest = ", ".join(
        f"{name} {points(test[name][0])} ({points(test[name][1])} to {points(test[name][2])})" for name in others
    )
    begin = {"better": "Better", "a trade": "A trade", "no clear gain": "No clear gain"}[answer]
    clear = [name for name in others if test[name][1] > 0] if answer == "no clear gain" else []
    beside = f" What is clear is the gain in {' and '.join(clear)} accuracy." if clear else ""
    return answer, f"{begin}: {choice} gives {numbers} against {baseline}; {rest}.{beside}"


def still_lagging(audit: Audit, gained: Sequence[str]) -> pd.DataFrame:
    """Return the classes that lag although the choice was made, with what to do about them."""
    frame = audit.by_class
    left = frame[frame["lags"].astype(bool) & ~frame["class_name"].isin(list(gained))]
    return left[["class_name", "n", "accuracy", "reason", "next_step"]].sort_values("accuracy").reset_index(drop=True)


def scores_of(given: Predictions) -> Any:
    """Return scores of the given baseline; certain ones where it has only predictions."""
    if given.logits is not None or given.probabilities is not None:
        return log_probabilities(given)
    count = len(given.class_names or ())
    return np.log(np.maximum(np.eye(count)[np.asarray(given.predictions, dtype=np.int64)], 1e-6))


def assemble(
    aim: Aim,
    samples: Samples,
    scores: Mapping[str, list[Any]],
    others: Mapping[str, list[Any]],
    rows: Sequence[Row],
    chosen: tuple[str | None, Row | None],
    *,
    facts: Mapping[str, Any],
    notes: Sequence[str],
    folder: Path | None,
    winner: tuple[Path, ...],
    commands: tuple[str, ...],
    offsets: Any,
    images: Any,
    trade: bool,
    baseline: str = TUNED,
) -> Improvement:
    """Read the test set for the baselines and the choice, and say what came out."""
    title, row = chosen
    lean = {name: [samples.lean_audit(one) for one in runs] for name, runs in {**scores, **others}.items()}
    audits = {name: samples.full_audit(runs[0]) for name, runs in scores.items()}
    comparisons: dict[str, Comparison] = {}
    test: dict[str, Delta] = {}
    judged = "choice" if title is not None else "baseline"
    pairs = {baseline: "baseline", **{name: name for name in others}}
    if title is None:
        pairs.pop(baseline)
    said = ""
    for name, key in pairs.items():
        deltas, pair = changes(
            aim,
            lean[key],
            lean[judged],
            bootstrap=FINAL_BOOTSTRAP,
            names=(name, title or baseline),
        )
        deltas = simultaneous(deltas, len(pairs))
        comparisons[name] = _widened(pair, deltas)
        if name == baseline:
            test = deltas
        else:
            value, low, high = deltas["objective"]
            said = f" Against {name}: {points(value)} ({points(low)} to {points(high)})."
    validation = {} if row is None else dict(row.deltas)
    tried = sum(one.stage != "not tried" for one in rows)
    answer, words = verdict_of(aim, title, validation, test, tried, baseline=baseline, trade=trade)
    flipped = flipped_samples(audits["baseline"], audits[judged])
    gained = comparisons[baseline].gained if baseline in comparisons else ()
    return Improvement(
        answer=answer,
        verdict=words + said,
        choice=title,
        table=frame_of(rows),
        validation=validation,
        test=test,
        comparisons=comparisons,
        audits=audits,
        flipped=flipped,
        advice=still_lagging(audits[judged], gained),
        commands=commands,
        folder=folder,
        winner=winner,
        offsets=tuple(float(one) for one in offsets),
        facts=facts,
        notes=tuple(notes),
        images=images,
    )


def _widened(pair: Comparison, deltas: Mapping[str, Delta]) -> Comparison:
    """Return a comparison with the intervals of ``deltas``."""
    summary = pair.summary.copy()
    for place, name in enumerate(summary["metric"]):
        if name in deltas:
            summary.loc[place, ["low", "high"]] = deltas[name][1:]
    return replace(pair, deltas={**pair.deltas, **{name: deltas[name] for name in METRICS}}, summary=summary)
