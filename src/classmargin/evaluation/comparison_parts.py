"""The parts of a comparison: shared samples, frames and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.class_tests import ClassDifferences, class_differences
from classmargin.evaluation.differences import HeadlineDifferences
from classmargin.evaluation.estimates import too_few_note
from classmargin.evaluation.headlines import HEADLINES, MIN_CROSSFIT_SAMPLES
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray
from classmargin.evaluation.pairing import paired_correctness, shared_class_names
from classmargin.evaluation.tiers import TIERS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ModelPair:
    """Two models on shared samples.

    Attributes:
        labels: True classes ``[N]``.
        correct: Which run is right on which sample ``[N, M]``, the runs of the baseline first.
        runs: Number of runs of baseline and candidate.
        class_names: One name a class.
        differences: Class by class.
    """

    labels: IntArray
    correct: AnyArray
    runs: tuple[int, int]
    class_names: tuple[str, ...]
    differences: ClassDifferences

    @classmethod
    def of(cls, baseline: Audit | Sequence[Audit], candidate: Audit | Sequence[Audit]) -> ModelPair:
        """Bring two models to the same samples."""
        left, right = _runs("baseline", baseline), _runs("candidate", candidate)
        labels, correct = paired_correctness([*left, *right])
        runs = len(left), len(right)
        names = shared_class_names([*left, *right])
        return cls(labels, correct, runs, names, class_differences(labels, correct, runs, len(names)))


def _runs(name: str, audits: Audit | Sequence[Audit]) -> list[Audit]:
    runs = [audits] if isinstance(audits, Audit) else list(audits)
    if not runs or not all(isinstance(run, Audit) for run in runs):
        raise TypeError(f"{name} must be an Audit or a non-empty list of them, got {type(audits).__name__}")
    return runs


def class_difference_frame(pair: ModelPair, q_value: FloatArray, alpha: float) -> pd.DataFrame:
    """Return one row a class: accuracies, difference, changed samples, p- and q-value, outcome."""
    import pandas as pd

    found = pair.differences
    difference = found.candidate - found.baseline
    direction = np.where(difference > 0, "gained", "lost")
    outcome = np.where(
        found.n == 0, "absent", np.where((q_value <= alpha) & (difference != 0), direction, "noise")
    )
    return pd.DataFrame(
        {
            "class_name": list(pair.class_names),
            "n": found.n,
            "baseline": found.baseline,
            "candidate": found.candidate,
            "difference": difference,
            "gained_samples": found.gained,
            "lost_samples": found.lost,
            "p_value": found.p_value,
            "q_value": q_value,
            "outcome": outcome,
        }
    )


def summary_frame(headlines: HeadlineDifferences) -> pd.DataFrame:
    """Return one row a headline number: both values, difference and interval."""
    import pandas as pd

    rows = [(name, *headlines.values[name], *headlines.deltas[name]) for name in HEADLINES]
    return pd.DataFrame(rows, columns=["metric", "baseline", "candidate", "difference", "low", "high"])


def comparison_notes(pair: ModelPair, ranking: str) -> tuple[str, ...]:
    """Return what a reader must know about thirds, tests, runs and absent classes."""
    notes = [_RANKING_NOTES[ranking]]
    if pair.runs == (1, 1):
        notes.append("Class p-values: exact McNemar test on paired samples; q-values: Benjamini-Hochberg.")
        notes.append(
            "One run of each model: intervals cover the choice of test samples, not the noise of training."
        )
    else:
        notes.append(
            f"{pair.runs[0]} and {pair.runs[1]} runs: runs and samples are resampled; class p-values are t-tests with both "
            "kinds of variance; q-values: Benjamini-Hochberg."
        )
        if min(pair.runs) == 1:
            notes.append(
                "A model with one run shows no training noise; its share is missing from the intervals."
            )
    n = pair.differences.n
    absent = int((n == 0).sum())
    if absent:
        notes.append(
            f"{absent} of {len(pair.class_names)} classes have no samples; they are left out of all means."
        )
    few = int(((n > 0) & (n < MIN_CROSSFIT_SAMPLES)).sum())
    if ranking == "crossfit" and few:
        notes.append(too_few_note(few))
    if len(n) - absent - (few if ranking == "crossfit" else 0) < len(TIERS):
        notes.append("Thirds need at least three classes; those without a class are not given.")
    return tuple(notes)


_RANKING_NOTES = {
    "crossfit": (
        "Thirds: classes ranked by the mean accuracy of both models on one half of the samples, measured on the other half, both "
        "ways, averaged over ten splits."
    ),
    "pooled": "Thirds: classes ranked by the mean accuracy of both models on all samples.",
    "own": "Thirds: each model ranks the classes by its own accuracies, so the thirds may hold different classes.",
    "baseline": (
        "Thirds: classes ranked by the baseline's accuracies on the same samples, which flatters the candidate on the hard third "
        "and the baseline on the easy one."
    ),
}
