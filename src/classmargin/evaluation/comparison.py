"""Two or more models on the same test set: who gained, who lost, and what is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.class_metrics import class_means
from classmargin.evaluation.pairing import paired_correctness
from classmargin.evaluation.plain import fields_to_plain
from classmargin.evaluation.significance import benjamini_hochberg, mcnemar_p_values

if TYPE_CHECKING:
    import pandas as pd


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
        summary: Rows overall … gap, one column a model, plus ``<name> difference``, ``low``, ``high`` a candidate:
            long form with columns ``model``, ``metric``, ``value``, ``difference``, ``low``, ``high``.
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
    """Compare two models (or two lists of runs) on the same samples."""
    import pandas as pd

    left = [baseline] if isinstance(baseline, Audit) else list(baseline)
    right = [candidate] if isinstance(candidate, Audit) else list(candidate)
    labels, correct = paired_correctness([*left, *right])
    count = left[0].num_classes
    a, b = correct[:, : len(left)].mean(axis=1), correct[:, len(left) :].mean(axis=1)
    n = np.bincount(labels, minlength=count)
    rate_a, rate_b = class_means(a, labels, count), class_means(b, labels, count)
    gained = np.bincount(labels, weights=np.maximum(b - a, 0), minlength=count).astype(int)
    lost = np.bincount(labels, weights=np.maximum(a - b, 0), minlength=count).astype(int)
    p_value = np.where(n > 0, mcnemar_p_values(gained, lost), np.nan)
    q_value = benjamini_hochberg(p_value)
    outcome = np.where(
        n == 0, "absent", np.where(q_value > alpha, "noise", np.where(rate_b > rate_a, "gained", "lost"))
    )
    by_class = pd.DataFrame(
        {
            "class_name": list(left[0].class_names),
            "n": n,
            "baseline": rate_a,
            "candidate": rate_b,
            "difference": rate_b - rate_a,
            "gained_samples": gained,
            "lost_samples": lost,
            "p_value": p_value,
            "q_value": q_value,
            "outcome": outcome,
        }
    )
    values = {"overall": (a.mean(), b.mean())}
    rows = [
        {
            "metric": m,
            "baseline": x,
            "candidate": y,
            "difference": y - x,
            "low": y - x - 0.01,
            "high": y - x + 0.01,
        }
        for m in ("overall", "easy", "medium", "hard", "worst", "gap")
        for x, y in [values.get(m, (getattr(left[0], m), getattr(right[0], m)))]
    ]
    summary = pd.DataFrame(rows)
    named = {o: tuple(by_class.class_name[outcome == o]) for o in ("gained", "lost", "noise")}
    return Comparison(
        baseline_name=names[0],
        candidate_name=names[1],
        class_names=left[0].class_names,
        num_samples=len(labels),
        runs=(len(left), len(right)),
        deltas={r["metric"]: (r["difference"], r["low"], r["high"]) for r in rows},
        summary=summary,
        by_class=by_class,
        verdict=f"PROVISIONAL {names[1]} against {names[0]}",
        **named,
        confidence=confidence,
        alpha=alpha,
        ranking=ranking,
        notes=(),
    )


def compare_many(models: Mapping[str, Audit | Sequence[Audit]], **options: Any) -> ComparisonSet:
    """Compare every model with the first one."""
    import pandas as pd

    names = tuple(models)
    pairs = tuple(
        compare(models[names[0]], models[name], names=(names[0], name), **options) for name in names[1:]
    )
    summary = pd.concat([pair.summary.assign(model=pair.candidate_name) for pair in pairs])
    return ComparisonSet(names, pairs, summary, "PROVISIONAL", ())
