"""What counts as an improvement: scores in, paired changes out, the guard, and the choice. Needs no torch.

Every candidate is compared with the baseline on the same samples; classes are ranked into thirds by both models together and on other
samples than they are measured on, so that two equal models differ by nothing on average.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import check_choice
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.comparison import Comparison, Delta, compare, points
from classmargin.evaluation.prediction_files import Predictions, read_costs

Array = NDArray[np.float64]
Deltas = Mapping[str, Delta]
METRICS = ("overall", "easy", "medium", "hard", "worst")
SHOWN = ("overall", "easy", "hard", "worst")
CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
# Probabilities below this are taken for it: a logarithm of zero cannot be shifted.
SMALLEST = 1e-30
BOOTSTRAP, FINAL_BOOTSTRAP = 400, 2000


@dataclass(frozen=True)
class Aim:
    """What is to rise, and what must not fall."""

    objective: str = "hard"  # one of METRICS, or cost
    keep: Mapping[str, float] = field(default_factory=lambda: {"easy": 0.005})  # share it may lose
    costs: Array | None = None  # of taking a class (row) for another (column)

    @property
    def words(self) -> str:
        """What rises, in a sentence."""
        names = {"overall": "overall accuracy", "cost": "mean cost (a rise is a saving)", "worst": "worst class"}
        return names.get(self.objective, f"{self.objective} third")


def make_aim(objective: str = "hard", keep: str = "easy:0.5", class_names: Sequence[str] | None = None) -> Aim:
    """Return the aim that words describe, without the numbers in a file of costs until its classes are given."""
    guard: dict[str, float] = {}
    for word in keep.split(",") if keep.strip() not in ("", "none") else []:
        name, _, number = word.strip().partition(":")
        check_choice("keep", name, METRICS)
        try:
            guard[name] = float(number) / 100
        except ValueError as error:
            raise ValueError(f"keep must be NAME:POINTS, e.g. easy:0.5, got {word!r}") from error
        if not 0.0 <= guard[name] <= 1.0:
            raise ValueError(f"keep must have points between 0 and 100, got {word!r}")
    if Path(objective).suffix.lower() != ".csv":
        return Aim(check_choice("objective", objective, METRICS), guard)
    if not os.path.isfile(objective):
        raise ValueError(f"objective must be {', '.join(METRICS)} or a CSV file of costs, got {objective!r}")
    return Aim("cost", guard, None if class_names is None else read_costs(objective, class_names))


def log_probabilities(found: Predictions) -> Array:
    """Return the logarithm of class probabilities ``[N, K]``; predictions without scores are refused."""
    if found.probabilities is not None:
        return np.log(np.maximum(np.asarray(found.probabilities, dtype=np.float64), SMALLEST))
    if found.logits is None:
        raise ValueError(f"{found.source} holds neither probabilities nor logits, so nothing can be changed about them")
    logits = np.asarray(found.logits, dtype=np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def mean_scores(members: Sequence[Array]) -> Array:
    """Return the logarithm of the mean of the members' probabilities."""
    if len(members) == 1:
        return members[0]
    return np.asarray(np.log(np.maximum(np.mean([np.exp(scores) for scores in members], axis=0), SMALLEST)))


def better_without(labels: NDArray[np.int64], kept: Array, dropped: Array) -> NDArray[np.int64]:
    """Return the classes that are more often right without something, by more than the standard error of the paired difference."""
    before, after = (scores.argmax(axis=1) == labels for scores in (kept, dropped))
    gained = np.bincount(labels, after & ~before, minlength=kept.shape[1])
    lost = np.bincount(labels, before & ~after, minlength=kept.shape[1])
    return np.flatnonzero(gained - lost > np.sqrt(gained + lost))


def fit_offsets(scores: Array, labels: NDArray[np.int64], aim: Aim) -> Array:
    """Return one offset per class ``[K]``: half overall accuracy, half the objective, on the given samples."""
    from classmargin.integrations.sklearn_offsets import best_offsets

    counts = np.bincount(labels, minlength=scores.shape[1])
    lowest = 1 if aim.objective == "worst" else max(len(counts) // 3, 1)
    missed = None if aim.costs is None else (aim.costs.sum(axis=1) / max(aim.costs.shape[1] - 1, 1))

    def value(right: Array) -> Array:
        overall = right.sum(axis=-1) / counts.sum()
        if missed is not None:
            other = -((counts - right) @ missed) / counts.sum()
        else:
            other = np.sort(right / np.maximum(counts, 1), axis=-1)[..., :lowest].mean(axis=-1)
        return np.asarray(0.5 * overall + 0.5 * other)

    return np.asarray(best_offsets(scores, labels, value, np.zeros(scores.shape[1])))


def held_out_offsets(scores: Array, labels: NDArray[np.int64], aim: Aim) -> Array:
    """Return scores with offsets that were fitted on the other half of the samples of each class."""
    order = np.argsort(np.random.default_rng(0).permutation(len(labels)), kind="stable")
    half = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        half[order[labels[order] == label][1::2]] = 1
    shifted = scores.copy()
    for side in (0, 1):
        shifted[half == side] += fit_offsets(scores[half != side], labels[half != side], aim)
    return shifted


@dataclass(frozen=True)
class Samples:
    """Who was predicted: labels, identities and names, the same for all models of one part of the data."""

    labels: NDArray[np.int64]
    sample_id: NDArray[np.int64] | None
    class_names: tuple[str, ...]

    @staticmethod
    def of(found: Predictions, scores: Array) -> Samples:
        """Return those of a prediction file with its scores ``[N, K]``."""
        names = tuple(found.class_names or map(str, range(scores.shape[1])))
        return Samples(np.asarray(found.labels, dtype=np.int64), found.sample_id, names)

    def lean_audit(self, scores: Array) -> Audit:
        """Return an audit that knows who is right on which sample, and no more."""
        return audit(**vars(self), predictions=scores.argmax(axis=1), bootstrap=0, ranking="own")

    def full_audit(self, scores: Array) -> Audit:
        """Return an audit with samples and reasons."""
        return audit(**vars(self), logits=scores, bootstrap=200)


def changes(
    aim: Aim, baseline: Sequence[Audit], candidate: Sequence[Audit], *, bootstrap: int = BOOTSTRAP, **options: Any
) -> tuple[dict[str, Delta], Comparison]:
    """Return the paired changes of all accuracies and of the ``objective``, and the comparison behind them."""
    # An ensemble has one set of predictions: its interval covers the choice of samples and the training noise of the baseline.
    runs = list(candidate) * (len(baseline) if len(candidate) == 1 else 1)
    found = compare(baseline, runs, confidence=CONFIDENCE, bootstrap=bootstrap, **options)
    deltas = {name: found.delta(name) for name in METRICS}
    cost = aim.objective == "cost"
    deltas["objective"] = _cost_change(aim, baseline, candidate) if cost else deltas[aim.objective]
    return deltas, found


def _cost_change(aim: Aim, baseline: Sequence[Audit], candidate: Sequence[Audit]) -> Delta:
    """Return what is saved per sample; the interval covers the choice of samples."""
    assert aim.costs is not None
    paid = [np.mean([aim.costs[one.labels, one.predictions] for one in runs], axis=0) for runs in (baseline, candidate)]
    saved = paid[0] - paid[1]
    value, error = float(saved.mean()), float(saved.std(ddof=1)) / len(saved) ** 0.5
    return value, value - Z * error, value + Z * error


def simultaneous(deltas: Deltas, candidates: int) -> dict[str, Delta]:
    """Return changes with intervals that hold for so many candidates at once (Bonferroni)."""
    wider = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / max(candidates, 1) / 2) / Z
    return {
        name: (value, value - (value - low) * wider, value + (high - value) * wider)
        for name, (value, low, high) in deltas.items()
    }


@dataclass(frozen=True)
class Row:
    """What came of one candidate on validation, against the tuned baseline."""

    title: str
    remedy: str
    stage: str  # tuning, screened, finalist, combined or not tried
    runs: int = 0  # repetitions that were compared
    cost: float = 0.0
    members: int = 1  # networks that make one prediction
    deltas: Deltas = field(default_factory=dict)
    note: str = ""  # what it lost beyond the guard, or why it was not tried
    gain: float = float("-inf")  # of the objective, less half its standard error

    @property
    def able(self) -> bool:
        """Whether it kept the guard and gained, so that it can be chosen."""
        return not self.note and self.gain > 0

    def judged(self, aim: Aim, deltas: Deltas, candidates: int) -> Row:
        """Return the row with what came of its candidate, one of so many."""
        lost = broken_guard(aim, deltas)
        note = f"loses {lost}" if lost else ""
        return replace(self, deltas=simultaneous(deltas, candidates), note=note, gain=sure_gain(deltas))


def broken_guard(aim: Aim, deltas: Deltas) -> str:
    """Return what a candidate loses beyond noise and beyond what it may; empty if nothing."""
    lost = [name for name, share in aim.keep.items() if deltas[name][0] < -share and deltas[name][2] < 0]
    return ", ".join(f"{name} {points(deltas[name][0])}" for name in lost)


def sure_gain(deltas: Deltas) -> float:
    """Return the gain of the objective minus half its standard error; above 0 a gain is about twice as likely as a loss."""
    value, low, high = deltas["objective"]
    return value - 0.5 * (high - low) / 2 / Z


def answer_of(aim: Aim, deltas: Deltas, *, trade: bool) -> str:
    """Return ``better``, ``a trade`` or ``no clear gain`` for changes on the test set."""
    if not deltas["objective"][1] > 0:
        return "no clear gain"
    loses = any(deltas[name][2] < 0 for name in {"overall", *aim.keep})
    return "a trade" if trade or loses else "better"
