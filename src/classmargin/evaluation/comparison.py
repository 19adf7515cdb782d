"""Two or more models on the same test set: who gained, who lost, and what is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_choice, check_int
from classmargin.evaluation.audit import Audit
from classmargin.evaluation.class_tests import ClassDifferences, class_differences
from classmargin.evaluation.comparison_text import pair_verdict, set_verdict
from classmargin.evaluation.differences import HeadlineDifferences, headline_differences
from classmargin.evaluation.headlines import HEADLINES
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray, check_fraction
from classmargin.evaluation.pairing import paired_correctness
from classmargin.evaluation.plain import fields_to_plain
from classmargin.evaluation.significance import benjamini_hochberg

if TYPE_CHECKING:
    import pandas as pd

COMPARISON_RANKINGS = ("crossfit", "pooled", "own", "baseline")


@dataclass(frozen=True)
class Comparison:
    """A candidate against a baseline on the same samples.

    Attributes:
        baseline_name: What the baseline is called in sentences and tables.
        candidate_name: What the candidate is called.
        class_names: One name a class.
        num_samples: Number of shared samples.
        runs: Number of runs (seeds) of baseline and candidate.
        deltas: ``{"overall": (difference, low, high), ...}`` candidate minus baseline; read it with :meth:`delta`.
        summary: Rows overall, easy, medium, hard, worst, gap: ``metric``, ``baseline``, ``candidate``,
            ``difference``, ``low``, ``high``. Thirds are those of the comparison (same classes for both models).
        by_class: One row a class: ``class_name``, ``n``, ``baseline``, ``candidate`` accuracy, ``difference``,
            ``gained_samples`` and ``lost_samples`` (only the candidate right / only the baseline right), ``p_value`` (exact McNemar),
            ``q_value`` (Benjamini-Hochberg), ``outcome`` "gained", "lost", "noise" or "absent".
        verdict: One sentence that can be quoted.
        gained: Names of classes that gained (q <= alpha).
        lost: Names of classes that lost (q <= alpha).
        noise: Names of the other classes.
        confidence: Level of the intervals.
        alpha: False discovery rate of ``gained`` and ``lost``.
        ranking: How the thirds were made: "crossfit", "pooled", "baseline" or "own".
        notes: Sentences a reader must know.
    """

    baseline_name: str
    candidate_name: str
    class_names: tuple[str, ...]
    num_samples: int
    runs: tuple[int, int]
    deltas: Mapping[str, tuple[float, float, float]]
    summary: pd.DataFrame
    by_class: pd.DataFrame
    verdict: str
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    noise: tuple[str, ...]
    confidence: float
    alpha: float
    ranking: str
    notes: tuple[str, ...]

    def delta(self, name: str) -> tuple[float, float, float]:
        """Return (difference, low, high) of overall, easy, medium, hard, worst or gap."""
        if name not in self.deltas:
            raise ValueError(f"name must be one of {', '.join(self.deltas)}; got {name!r}")
        return self.deltas[name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values that ``json.dumps`` takes (no NaN)."""
        return fields_to_plain(self)


@dataclass(frozen=True)
class ComparisonSet:
    """Several candidates against one baseline; class tests are controlled over all of them together.

    Attributes:
        names: Names of all models, the baseline first.
        comparisons: One :class:`Comparison` a candidate, in order.
        summary: Long form, one row a model and headline number: ``model``, ``metric``, ``value``, ``difference``,
            ``low``, ``high`` against the baseline (0 for the baseline itself; its values are those beside the first candidate).
        verdict: One sentence.
        notes: Sentences a reader must know.
    """

    names: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    summary: pd.DataFrame
    verdict: str
    notes: tuple[str, ...]


def compare(
    baseline: Audit | Sequence[Audit],
    candidate: Audit | Sequence[Audit],
    *,
    names: tuple[str, str] = ("baseline", "candidate"),
    ranking: str = "crossfit",
    confidence: float = 0.95,
    alpha: float = 0.05,
    bootstrap: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same samples; several runs (seeds) of a model may be given as a list of audits.

    Args:
        baseline: Audit of the model in use, or audits of its runs.
        candidate: Audit of the new model, or audits of its runs, on the same samples.
        names: What the two are called.
        ranking: How classes are ranked into thirds. "crossfit" (by the mean of both models on one half of the samples, measured
            on the other half) and "pooled" (by the mean of both) treat the models alike, so two equal models differ by
            nothing on average. "own" ranks each model by itself. "baseline" ranks by the baseline, which
            flatters the candidate (noise made some classes look hard for the baseline alone).
        confidence: Level of the intervals.
        alpha: False discovery rate at which a class has "gained" or "lost".
        bootstrap: Resampled copies, at least 1.
        seed: Seed of all random draws.

    Raises:
        ValueError: Different samples, labels or classes.

    Example:
        >>> from classmargin.evaluation.audit import audit
        >>> labels = [0, 1, 2] * 40
        >>> worse = audit(labels, predictions=[0, 1, 0] * 40, num_classes=3, bootstrap=0)
        >>> better = audit(labels, predictions=[0, 1, 2] * 40, num_classes=3, bootstrap=0)
        >>> result = compare(worse, better, bootstrap=200)
        >>> round(result.delta("overall")[0], 3), result.gained, result.lost
        (0.333, ('2',), ())
    """
    pair = _Pair.of(baseline, candidate)
    q_value = benjamini_hochberg(pair.differences.p_value)
    return _compare(pair, names, q_value, ranking, confidence, alpha, bootstrap, seed)


def compare_many(
    models: Mapping[str, Audit | Sequence[Audit]],
    *,
    ranking: str = "crossfit",
    confidence: float = 0.95,
    alpha: float = 0.05,
    bootstrap: int = 2000,
    seed: int = 0,
) -> ComparisonSet:
    """Compare every model with the first one; class tests are controlled over all comparisons together.

    Args:
        models: Name -> audit (or audits of several runs); the first is the baseline.
        ranking: As in :func:`compare`; so are the other arguments.
        confidence: Level of the intervals.
        alpha: False discovery rate.
        bootstrap: Resampled copies.
        seed: Seed of all random draws.
    """
    if len(models) < 2:
        raise ValueError(f"models must hold a baseline and at least one candidate, got {len(models)}")
    names = tuple(models)
    pairs = [_Pair.of(models[names[0]], models[name]) for name in names[1:]]
    q_values = benjamini_hochberg(np.stack([pair.differences.p_value for pair in pairs]))
    comparisons = tuple(
        _compare(pair, (names[0], name), q_value, ranking, confidence, alpha, bootstrap, seed)
        for name, pair, q_value in zip(names[1:], pairs, q_values, strict=True)
    )
    return ComparisonSet(
        names=names,
        comparisons=comparisons,
        summary=_joint_summary(comparisons),
        verdict=set_verdict(comparisons),
        notes=(
            f"Every model is compared with {names[0]}; q-values control the false discovery rate over all together.",
            *comparisons[0].notes,
        ),
    )


@dataclass(frozen=True)
class _Pair:
    """Two models on shared samples."""

    labels: IntArray
    correct: AnyArray
    runs: tuple[int, int]
    class_names: tuple[str, ...]
    differences: ClassDifferences

    @classmethod
    def of(cls, baseline: Audit | Sequence[Audit], candidate: Audit | Sequence[Audit]) -> _Pair:
        left, right = _runs("baseline", baseline), _runs("candidate", candidate)
        labels, correct = paired_correctness([*left, *right])
        runs = len(left), len(right)
        names = left[0].class_names
        return cls(labels, correct, runs, names, class_differences(labels, correct, runs, len(names)))


def _runs(name: str, audits: Audit | Sequence[Audit]) -> list[Audit]:
    runs = [audits] if isinstance(audits, Audit) else list(audits)
    if not runs or not all(isinstance(run, Audit) for run in runs):
        raise TypeError(f"{name} must be an Audit or a non-empty list of them, got {type(audits).__name__}")
    return runs


def _compare(
    pair: _Pair,
    names: tuple[str, str],
    q_value: FloatArray,
    ranking: str,
    confidence: float,
    alpha: float,
    bootstrap: int,
    seed: int,
) -> Comparison:
    check_choice("ranking", ranking, COMPARISON_RANKINGS)
    check_fraction("alpha", alpha)
    headlines = headline_differences(
        pair.labels,
        pair.correct,
        pair.runs,
        len(pair.class_names),
        ranking=ranking,
        confidence=check_fraction("confidence", confidence),
        bootstrap=check_int("bootstrap", bootstrap, minimum=1),
        seed=check_int("seed", seed, minimum=0),
    )
    by_class = _class_frame(pair, q_value, alpha)
    named = {
        key: tuple(by_class["class_name"][by_class["outcome"] == key]) for key in ("gained", "lost", "noise")
    }
    return Comparison(
        baseline_name=names[0],
        candidate_name=names[1],
        class_names=pair.class_names,
        num_samples=len(pair.labels),
        runs=pair.runs,
        deltas=headlines.deltas,
        summary=_summary(headlines),
        by_class=by_class,
        verdict=pair_verdict(
            names, headlines.deltas, {k: len(v) for k, v in named.items()}, confidence, alpha
        ),
        gained=named["gained"],
        lost=named["lost"],
        noise=named["noise"],
        confidence=confidence,
        alpha=alpha,
        ranking=ranking,
        notes=_notes(pair, ranking),
    )


def _class_frame(pair: _Pair, q_value: FloatArray, alpha: float) -> pd.DataFrame:
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


def _summary(headlines: HeadlineDifferences) -> pd.DataFrame:
    import pandas as pd

    rows = [(name, *headlines.values[name], *headlines.deltas[name]) for name in HEADLINES]
    return pd.DataFrame(rows, columns=["metric", "baseline", "candidate", "difference", "low", "high"])


def _joint_summary(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    import pandas as pd

    first = comparisons[0]
    rows: list[Any] = [
        (first.baseline_name, row.metric, row.baseline, 0.0, 0.0, 0.0) for row in first.summary.itertuples()
    ]
    for comparison in comparisons:
        rows += [
            (comparison.candidate_name, row.metric, row.candidate, row.difference, row.low, row.high)
            for row in comparison.summary.itertuples()
        ]
    return pd.DataFrame(rows, columns=["model", "metric", "value", "difference", "low", "high"])


def _notes(pair: _Pair, ranking: str) -> tuple[str, ...]:
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
    absent = int((pair.differences.n == 0).sum())
    if absent:
        notes.append(
            f"{absent} of {len(pair.class_names)} classes have no samples; they are left out of all means."
        )
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
