"""Remedies that need predictions alone: class offsets fitted on validation, tested once. No training, no torch."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.improve.improvement import Improvement, assemble
from classmargin.recipes.improve.improvement_page import write_improvement
from classmargin.recipes.improve.judging import (
    Row,
    Samples,
    changes,
    fit_offsets,
    held_out_offsets,
    judged,
    log_probabilities,
    make_aim,
)


def improve_predictions(
    validation: str | os.PathLike[str],
    test: str | os.PathLike[str],
    *,
    objective: str = "hard",
    keep: str = "easy:0.5",
    out: str | os.PathLike[str] | None = None,
) -> Improvement:
    """Fit class offsets on the predictions of any model on validation, and test them once. Nothing is trained.

    Raises:
        ValueError: No scores, or other classes.
    """
    if out is not None and os.path.lexists(out) and not os.path.isdir(out):
        raise ValueError(f"--out must be a folder, got the file {str(out)!r}")
    found = [read_predictions(validation), read_predictions(test)]
    scores = [log_probabilities(one) for one in found]
    parts = [Samples.of(one) for one in found]
    if scores[0].shape[1] != scores[1].shape[1] or parts[0].class_names != parts[1].class_names:
        raise ValueError(
            f"{validation} and {test} must have the same classes, got {scores[0].shape[1]} and {scores[1].shape[1]}"
        )
    aim = make_aim(objective, keep, parts[0].class_names)
    before = parts[0].lean_audit(scores[0])
    rows, fitted = [], {}
    goals = ["cost"] if aim.objective == "cost" else ["hard", "worst"]
    for goal in goals:
        fitted[goal] = fit_offsets(scores[0], parts[0].labels, goal, aim.costs)
        after = parts[0].lean_audit(held_out_offsets(scores[0], parts[0].labels, goal, aim.costs))
        deltas, _ = changes(aim, [before], [after])
        row = Row(goal, f"Class offsets for {goal}", "offsets", "finalist", runs=1)
        rows.append(judged(aim, row, deltas, len(goals)))
    able = [row for row in rows if not row.broken and row.gain > 0]
    best = max(able, key=lambda one: one.gain, default=None)
    runs = {"baseline": [scores[1]]}
    if best is not None:
        runs["choice"] = [scores[1] + fitted[best.name]]
    notes = [
        f"{len(parts[0].labels):,} validation and {len(parts[1].labels):,} test samples; nothing was trained.",
        "Offsets are chosen by what those fitted on one half of validation do on the other; those that are given are fitted on all of it.",
    ]
    result = assemble(
        aim,
        parts[1],
        runs,
        {},
        rows,
        (None if best is None else best.title, best),
        facts={"data": Path(test).stem, "objective": aim.words, "keep": keep, "seeds": 1},
        notes=notes,
        folder=None if out is None else Path(out),
        winner=(),
        commands=(),
        offsets=np.zeros(0) if best is None else fitted[best.name],
        images=None,
        trade=True,
        baseline="the model as it is",
    )
    if out is not None:
        write_improvement(result, Path(out))
    return result
