"""Headline numbers of two models on the same samples, their differences and the intervals of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.headlines import (
    HEADLINES,
    MIN_CROSSFIT_SAMPLES,
    TierRule,
    observed_headlines,
    resampled_headlines,
)
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray
from classmargin.evaluation.intervals import (
    centred_interval,
    class_mean_counts,
    normal_quantile,
    small_sample_factor,
    with_few_changes,
    with_few_in_parts,
)
from classmargin.evaluation.outcomes import OutcomeTable, outcome_table
from classmargin.evaluation.tiers import TIERS, tier_codes


@dataclass(frozen=True)
class HeadlineDifferences:
    """Headline numbers of baseline and candidate.

    Attributes:
        values: ``{name: (baseline, candidate)}``.
        deltas: ``{name: (difference, low, high)}``, candidate minus baseline.
    """

    values: Mapping[str, tuple[float, float]]
    deltas: Mapping[str, tuple[float, float, float]]


def headline_differences(
    labels: IntArray,
    correct: AnyArray,
    runs: tuple[int, int],
    num_classes: int,
    *,
    ranking: str,
    confidence: float,
    bootstrap: int,
    seed: int,
) -> HeadlineDifferences:
    """Return the paired differences of all headline numbers.

    Samples are resampled within classes, the same for all runs; with several runs of a model these are resampled too, see
    :func:`_two_level_factor`.
    """
    table = outcome_table(labels, correct, num_classes)
    rule = TierRule(ranking)
    rng = np.random.default_rng(seed)
    observed = observed_headlines(table, runs, rule, rng)
    several = max(runs) > 1
    draws = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=several)
    deltas = draws[:, 1] - draws[:, 0]
    widen = np.full(len(HEADLINES), small_sample_factor(table.n))
    if several:
        samples = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=False)
        only = resampled_headlines(
            table, runs, rule, bootstrap, rng, resample_runs=True, resample_samples=False
        )
        of_samples, of_runs = ((part[:, 1] - part[:, 0]).var(axis=0) for part in (samples, only))
        widen *= _two_level_factor(deltas.var(axis=0), of_samples, of_runs, sum(runs) - 2, confidence)
    difference = observed[1] - observed[0]
    intervals = {
        name: centred_interval(
            float(difference[j]), deltas[:, j], confidence, proportion=False, widen=float(widen[j])
        )
        for j, name in enumerate(HEADLINES)
    }
    intervals = _guard_few_changes(intervals, table, runs, difference, ranking, confidence)
    return HeadlineDifferences(
        values={name: (float(observed[0, j]), float(observed[1, j])) for j, name in enumerate(HEADLINES)},
        deltas={name: (float(difference[j]), *intervals[name]) for j, name in enumerate(HEADLINES)},
    )


def _two_level_factor(
    both: FloatArray, of_samples: FloatArray, of_runs: FloatArray, run_freedom: int, confidence: float
) -> FloatArray:
    """Return the factor on the deviations of copies in which runs and samples were both resampled.

    *Variance.* Runs and samples are crossed: every run sees every sample. Let e be the variance of the mean of what is peculiar to a run
    on a sample. Resampling samples alone gives s + e, runs alone r + e, and both together r + s + 3e (drawing R - 1 of R runs doubles
    the share of e among the samples), while the truth is r + s + e = 2 (of_samples + of_runs) - both.

    *Few runs* make r uncertain: Student's t replaces the normal quantile, with Satterthwaite's degrees of freedom.
    """
    from scipy.special import stdtrit

    total = np.maximum(2 * (of_samples + of_runs) - both, np.maximum(of_samples, of_runs))
    freedom = run_freedom * np.divide(total, of_runs, out=np.full(total.shape, 1e3), where=of_runs > 0) ** 2
    student = stdtrit(np.minimum(freedom, 1e6), 0.5 + confidence / 2) / normal_quantile(confidence)
    return np.asarray(student * np.sqrt(np.divide(total, both, out=np.ones_like(total), where=both > 0)))


def _guard_few_changes(
    intervals: dict[str, tuple[float, float]],
    table: OutcomeTable,
    runs: tuple[int, int],
    difference: FloatArray,
    ranking: str,
    confidence: float,
) -> dict[str, tuple[float, float]]:
    """Keep intervals honest where hardly any sample changed sides, so that there is little to resample."""
    first, second = table.patterns[..., : runs[0]].mean(axis=-1), table.patterns[..., runs[0] :].mean(axis=-1)
    gained = (table.counts * second * (1 - first)).sum(axis=1)
    lost = (table.counts * first * (1 - second)).sum(axis=1)
    accuracy = table.class_accuracy()
    pooled = (accuracy[:, : runs[0]].mean(axis=1) + accuracy[:, runs[0] :].mean(axis=1)) / 2
    halved = table.n >= MIN_CROSSFIT_SAMPLES
    codes = tier_codes(np.where(halved, pooled, np.nan) if ranking == "crossfit" else pooled)
    groups = {"overall": table.n > 0, **{name: codes == code for code, name in enumerate(TIERS)}}
    groups["worst"] = np.arange(len(codes)) == np.nanargmin(pooled)
    guarded = dict(intervals)
    for name, inside in groups.items():
        changed, n = np.stack([gained, lost])[:, inside], table.n[inside]
        counts, number = (
            (changed.sum(axis=1), n.sum()) if name == "overall" else class_mean_counts(changed, n)
        )
        if not np.isnan(intervals[name][0]):
            guarded[name] = with_few_changes(intervals[name], counts[0], counts[1], number, confidence)
    if any(guarded[name] != intervals[name] for name in ("easy", "hard")) and not np.isnan(difference[-1]):
        thirds = ((float(difference[j]), *guarded[HEADLINES[j]]) for j in (1, 3))
        guarded["gap"] = with_few_in_parts(intervals["gap"], *thirds)
    return {name: _possible(limits, 2.0 if name == "gap" else 1.0) for name, limits in guarded.items()}


def _possible(limits: tuple[float, float], most: float) -> tuple[float, float]:
    """Cut an interval at the largest difference there can be: 1 of two accuracies, 2 of two gaps."""
    low, high = np.clip(limits, -most, most)
    return float(low), float(high)
