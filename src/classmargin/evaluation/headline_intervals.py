"""Headline numbers of one model, and their differences between two, with intervals.

The settings of an audit are checked here, and the notes are written that a reader needs to understand the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import MOST_RESAMPLES, check_choice, check_int, check_number
from classmargin.evaluation.class_metrics import RANKINGS, REMAINDER_RULE, TIERS, tier_codes
from classmargin.evaluation.corrected import TrueAccuracies, true_accuracies
from classmargin.evaluation.headlines import (
    HEADLINES,
    MIN_CROSSFIT_SAMPLES,
    OutcomeTable,
    TierRule,
    observed_headlines,
    outcome_table,
    resampled_headlines,
)
from classmargin.evaluation.input_checks import (
    AnyArray,
    FloatArray,
    IntArray,
    check_fraction,
    shared_names,
    to_array,
)
from classmargin.evaluation.intervals import (
    Interval,
    centred_interval,
    class_mean_counts,
    normal_quantile,
    small_sample_factor,
    wilson_interval,
    with_few_changes,
    with_few_events,
    with_few_in_parts,
)

if TYPE_CHECKING:
    import pandas as pd

Intervals = dict[str, Interval]


@dataclass(frozen=True)
class AuditSettings:
    """Choices of an audit."""

    ranking: str  # "corrected", "own", "reference" or "crossfit"
    reference: FloatArray | None  # class accuracies [K] that rank the classes, for "reference"
    confidence: float  # level of the intervals, in (0, 1)
    bootstrap: int  # number of resampled copies; 0 leaves intervals of the headline numbers out (NaN)
    seed: int  # seed of all random draws
    mean_margin: float  # mean of the margins γ shown in the class table
    costs: FloatArray | None = None  # cost of taking a class (row) for another (column) [K, K], or None


def check_settings(
    num_classes: int,
    *,
    ranking: str = "corrected",
    reference: Any = None,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
    mean_margin: float = 1.0,
    costs: Any = None,
    class_names: tuple[str, ...] | None = None,
) -> AuditSettings:
    """Return checked settings; ``reference`` may be an audit (of the same ``class_names``) or class accuracies ``[K]``."""
    check_choice("ranking", ranking, RANKINGS)
    if (ranking == "reference") != (reference is not None):
        raise ValueError(
            'ranking="reference" and reference (an audit or one accuracy per class) go together, '
            f"got ranking={ranking!r} {'without' if reference is None else 'with'} reference"
        )
    if reference is not None:
        if hasattr(reference, "by_class"):
            if class_names is not None and len(reference.class_names) == num_classes:
                shared_names([class_names, reference.class_names])
            reference = reference.by_class["accuracy"]
        reference = to_array("reference", reference).astype(np.float64)
        if reference.shape != (num_classes,):
            raise ValueError(f"reference must hold one accuracy per class ({num_classes}), got shape {reference.shape}")
        if np.isinf(reference).any() or (reference < 0).any() or (reference > 1).any():
            raise ValueError("reference must hold accuracies in [0, 1] (NaN for unknown classes)")
    if costs is not None:
        costs = to_array("costs", costs).astype(np.float64)
        if costs.shape != (num_classes, num_classes) or not np.isfinite(costs).all():
            raise ValueError(
                f"costs must be finite, one row per true and one column per predicted class ({num_classes} x {num_classes}), "
                f"got shape {costs.shape}"
            )
    return AuditSettings(
        ranking=ranking,
        reference=reference,
        confidence=check_fraction("confidence", confidence),
        bootstrap=check_int("bootstrap", bootstrap, minimum=0, maximum=MOST_RESAMPLES),
        seed=check_int("seed", seed, minimum=0),
        mean_margin=check_number("mean_margin", mean_margin, above=0.0),
        costs=costs,
    )


# Copies of a test set vary less in their lowest class accuracy than test sets do: without this factor nominal 95 % covers
# 92.7 to 95.7 % in the simulations of tests/evaluation/test_estimates.py, with it 94 to 97 %.
WORST_FACTOR = 1.07


@dataclass(frozen=True)
class HeadlineEstimates:
    """Headline numbers of one model."""

    values: Mapping[str, float]  # each of overall, easy, medium, hard, worst, gap
    intervals: Mapping[str, tuple[float, float]]  # their intervals
    codes: IntArray  # tier of each class [K] as shown in the class table
    notes: tuple[str, ...]  # sentences about ranking, remainder, absent classes and what the intervals cover
    true: TrueAccuracies  # estimates of the true class accuracies


def estimate_headlines(table: OutcomeTable, settings: AuditSettings) -> HeadlineEstimates:
    """Return headline numbers and intervals of a table of one run."""
    right = np.rint(np.einsum("kc,kcm->k", table.counts, table.patterns)).astype(np.int64)
    n, confidence = table.n, settings.confidence
    corrected = settings.ranking == "corrected"
    with_intervals = settings.bootstrap > 0
    true = true_accuracies(right, n, confidence=confidence, seed=settings.seed, intervals=corrected and with_intervals)
    intervals: Intervals = dict.fromkeys(HEADLINES, (float("nan"), float("nan")))
    if corrected:
        total = np.array(n.sum())
        values = {
            "overall": float(right.sum() / total),
            **{name: true.values[name] for name in HEADLINES[1:]},
        }
        codes = tier_codes(true.estimate)
        if with_intervals:
            low, high = wilson_interval(np.array(right.sum()), total, confidence)
            intervals = {"overall": (float(low), float(high))}
            intervals |= {name: true.intervals[name] for name in HEADLINES[1:]}
    else:
        accuracy = table.class_accuracy()[:, 0]
        ranked_by = accuracy
        if settings.reference is not None:
            unknown = np.flatnonzero(np.isnan(settings.reference) & ~np.isnan(accuracy))
            if len(unknown):
                raise ValueError(f"reference must rank every class with samples, got NaN for class {int(unknown[0])}")
            ranked_by = np.where(np.isnan(accuracy), np.nan, settings.reference)
        codes = tier_codes(ranked_by)
        rule = TierRule(settings.ranking, codes if settings.ranking == "reference" else None)
        rng = np.random.default_rng(settings.seed)
        observed = observed_headlines(table, (1,), rule, rng)[0]
        values = dict(zip(HEADLINES, observed.tolist(), strict=True))
        if with_intervals:
            draws = resampled_headlines(table, (1,), rule, settings.bootstrap, rng, resample_runs=False)[:, 0]
            measured = codes
            if rule.ranking == "crossfit":  # leaves out classes that it cannot halve
                halved = n >= MIN_CROSSFIT_SAMPLES
                measured = tier_codes(np.where(halved, accuracy, np.nan))
            intervals = _intervals(n, right, measured, observed, draws, confidence)
    return HeadlineEstimates(values, intervals, codes, _notes(n, settings, values, true), true)


def _intervals(
    n: IntArray, right: IntArray, codes: IntArray, observed: FloatArray, draws: FloatArray, confidence: float
) -> Intervals:
    widen = small_sample_factor(n)
    resampled = {
        name: centred_interval(
            float(value),
            draws[:, j],
            confidence,
            proportion=name != "gap",
            widen=widen * WORST_FACTOR if name == "worst" else widen,
        )
        for j, (name, value) in enumerate(zip(HEADLINES, observed, strict=True))
    }
    # Classes behind each proportion; the worst class only where resampling cannot move it (all wrong or all right).
    present = np.flatnonzero(n > 0)
    groups = {"overall": present, **{name: np.flatnonzero(codes == code) for code, name in enumerate(TIERS)}}
    rates = right[present] / n[present]
    if rates.min() in (0.0, 1.0):
        groups["worst"] = present[[np.argmin(rates)]]
    intervals = dict(resampled)
    for name, inside in groups.items():
        hits: FloatArray = right[inside].astype(np.float64)
        events, number = hits.sum(), float(n[inside].sum())
        if name != "overall":  # where every sample counts the same, not every class
            events, number = class_mean_counts(hits, n[inside])
        intervals[name] = with_few_events(intervals[name], float(events), number, confidence)
    return intervals | _gap_of_thirds(resampled, intervals, observed)


def _gap_of_thirds(resampled: Intervals, guarded: Intervals, values: FloatArray) -> Intervals:
    """Return the interval of the gap if that of one of its thirds was widened, else nothing."""
    if all(guarded[name] == resampled[name] for name in ("easy", "hard")) or np.isnan(values[-1]):
        return {}
    thirds = ((float(values[j]), *guarded[HEADLINES[j]]) for j in (1, 3))
    return {"gap": with_few_in_parts(resampled["gap"], *thirds)}


def _notes(n: IntArray, settings: AuditSettings, values: Mapping[str, float], true: TrueAccuracies) -> tuple[str, ...]:
    few = int(((n > 0) & (n < MIN_CROSSFIT_SAMPLES)).sum())
    notes = [f"Thirds: {_RULE_TEXT[settings.ranking]} Remainder: {REMAINDER_RULE}."]
    if settings.ranking in _BIAS_TEXT:
        notes += _distance_from_true(settings.ranking, values, true)
    absent = int((n == 0).sum())
    if absent:
        notes.append(f"{absent} of {len(n)} classes have no samples; they are left out of all means.")
    if settings.ranking == "crossfit" and few:
        notes.append(TOO_FEW_NOTE.format(few))
    if len(n) - absent < 3:
        notes.append("Thirds need at least three classes with samples; those without a class are not given.")
    text = _CORRECTED_TEXT if settings.ranking == "corrected" else _INTERVAL_TEXT
    notes.append(text.format(level=100 * settings.confidence))
    return tuple(notes)


def _distance_from_true(ranking: str, values: Mapping[str, float], true: TrueAccuracies) -> list[str]:
    """Say what the true thirds are estimated to be, where that differs from what is shown."""
    shown = {name: [f"{100 * found[name]:.1f} %" for found in (true.values, values)] for name in ("hard", "easy")}
    changed = [f"{new} instead of {old} for the {name} third" for name, (new, old) in shown.items() if new != old]
    if not changed or math.isnan(values["hard"]):
        return []
    return [f"The true accuracies (estimated, ranking='corrected') are {' and '.join(changed)}: {_BIAS_TEXT[ranking]}."]


TOO_FEW_NOTE = f"{{}} classes with fewer than {MIN_CROSSFIT_SAMPLES} samples are left out of the thirds."
_BIAS_TEXT = {
    "own": "noise helps to rank, so thirds ranked by the accuracies that they show lie too far apart",
    "crossfit": "half of the samples rank with more noise than all, so crossfitted thirds lie too close together",
}
_RULE_TEXT = {
    "corrected": (
        "estimates of the true class accuracies (ranking='corrected'). Thirds ranked by observed accuracies (ranking='own', as in the "
        "paper) lie further apart, because noise helps to rank."
    ),
    "own": "classes are ranked by this model's accuracies on the same samples (ranking='own').",
    "reference": "classes are ranked by the accuracies given as reference (ranking='reference').",
    "crossfit": (
        "classes are ranked on one half of the samples of each class and measured on the other, both ways, averaged over "
        "ten splits (ranking='crossfit'); the tiers in the class table are those of all samples."
    ),
}
_CORRECTED_TEXT = (
    "Intervals ({level:g} %) are about true accuracies: those of thirds, worst class and gap hold what these classes would show on endless "
    "test sets; those of single classes borrow strength from the other classes. The worst class is the lowest true accuracy, whichever "
    "class has it."
)
_INTERVAL_TEXT = (
    "Intervals ({level:g} %): Wilson for single classes; for the other numbers a stratified bootstrap centred on the observed "
    "value, which covers what the same procedure gives on average over fresh test sets of this size."
)


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
    candidates: int = 1,
) -> pd.DataFrame:
    """Return the headline numbers of baseline and candidate with their paired differences, see ``Comparison.summary``.

    Samples are resampled within classes, the same for all runs; with several runs of a model these are resampled too, see
    :func:`_two_level_factor`. Intervals hold for all of several ``candidates`` at once.
    """
    import pandas as pd

    table = outcome_table(labels, correct, num_classes)
    rule = TierRule(ranking)
    rng = np.random.default_rng(seed)
    observed = observed_headlines(table, runs, rule, rng)
    several = max(runs) > 1
    draws = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=several)
    deltas = draws[:, 1] - draws[:, 0]
    simultaneous = normal_quantile(1 - (1 - confidence) / candidates) / normal_quantile(confidence)
    widen = np.full(len(HEADLINES), small_sample_factor(table.n) * simultaneous)
    if several:
        samples = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=False)
        only = resampled_headlines(table, runs, rule, bootstrap, rng, resample_runs=True, resample_samples=False)
        of_samples, of_runs = ((part[:, 1] - part[:, 0]).var(axis=0) for part in (samples, only))
        lent = max(runs) if min(runs) == 1 else 0
        widen *= _two_level_factor(deltas.var(axis=0), of_samples, of_runs, lent, sum(runs) - 2, confidence)
    difference = observed[1] - observed[0]
    intervals = {
        name: centred_interval(float(difference[j]), deltas[:, j], confidence, proportion=False, widen=float(widen[j]))
        for j, name in enumerate(HEADLINES)
    }
    intervals = _guard_few_changes(intervals, table, runs, difference, ranking, confidence)
    frame = pd.DataFrame({"metric": HEADLINES, "baseline": observed[0], "candidate": observed[1]})
    return frame.assign(
        difference=difference,
        low=[intervals[name][0] for name in HEADLINES],
        high=[intervals[name][1] for name in HEADLINES],
    )


def _two_level_factor(
    both: FloatArray,
    of_samples: FloatArray,
    of_runs: FloatArray,
    lent: int,
    run_freedom: int,
    confidence: float,
) -> FloatArray:
    """Return the factor on the deviations of copies in which runs and samples were both resampled.

    *Variance.* Runs and samples are crossed: every run sees every sample. Let e be the variance of the mean of what is peculiar to a run
    on a sample. Resampling samples alone gives s + e, runs alone r + e, and both together r + s + 3e (drawing R - 1 of R runs doubles
    the share of e among the samples), while the truth is r + s + e = 2 (of_samples + of_runs) - both.

    *One run* of a model shows nothing of r. It borrows that of the other model: with R runs there, R times the variance of their mean.

    *Few runs* make r uncertain: Student's t replaces the normal quantile, with Satterthwaite's degrees of freedom.
    """
    from scipy.special import stdtrit

    total = np.maximum(2 * (of_samples + of_runs) - both, np.maximum(of_samples, of_runs)) + lent * of_runs
    of_runs = (1 + lent) * of_runs
    freedom = run_freedom * np.divide(total, of_runs, out=np.full(total.shape, 1e3), where=of_runs > 0) ** 2
    student = stdtrit(np.minimum(freedom, 1e6), 0.5 + confidence / 2) / normal_quantile(confidence)
    return np.asarray(student * np.sqrt(np.divide(total, both, out=np.ones_like(total), where=both > 0)))


def _guard_few_changes(
    intervals: Intervals,
    table: OutcomeTable,
    runs: tuple[int, int],
    difference: FloatArray,
    ranking: str,
    confidence: float,
) -> Intervals:
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
        counts, number = (changed.sum(axis=1), n.sum()) if name == "overall" else class_mean_counts(changed, n)
        if not np.isnan(intervals[name][0]):
            guarded[name] = with_few_changes(intervals[name], counts[0], counts[1], number, confidence)
    guarded |= _gap_of_thirds(intervals, guarded, difference)
    # The largest difference there can be is 1 of two accuracies, 2 of two gaps.
    most = {name: 2.0 if name == "gap" else 1.0 for name in guarded}
    return {name: (float(max(low, -most[name])), float(min(high, most[name]))) for name, (low, high) in guarded.items()}
