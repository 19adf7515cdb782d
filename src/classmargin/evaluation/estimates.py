"""Headline numbers of one model with their intervals, and what must be said about them."""

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
from classmargin.evaluation.inputs import FloatArray, IntArray
from classmargin.evaluation.intervals import (
    centred_interval,
    class_mean_counts,
    small_sample_factor,
    with_few_events,
    with_few_in_parts,
)
from classmargin.evaluation.outcomes import OutcomeTable
from classmargin.evaluation.settings import AuditSettings
from classmargin.evaluation.tiers import REMAINDER_RULE, tier_codes

# Copies of a test set vary less in their lowest class accuracy than test sets do: without this factor nominal 95 % covers
# 92.7 to 95.7 % in the simulations of tests/evaluation/test_estimates.py, with it 94 to 97 %.
WORST_FACTOR = 1.07


@dataclass(frozen=True)
class HeadlineEstimates:
    """Headline numbers of one model.

    Attributes:
        values: Each of overall, easy, medium, hard, worst, gap.
        intervals: Their intervals.
        codes: Tier of each class ``[K]`` as shown in the class table.
        notes: Sentences about ranking, remainder, absent classes and what the intervals cover.
    """

    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    codes: IntArray
    notes: tuple[str, ...]


def estimate_headlines(table: OutcomeTable, settings: AuditSettings) -> HeadlineEstimates:
    """Return headline numbers and intervals of a table of one run."""
    codes = _codes(table, settings)
    rule = TierRule(settings.ranking, codes if settings.ranking == "reference" else None)
    rng = np.random.default_rng(settings.seed)
    observed = observed_headlines(table, (1,), rule, rng)[0]
    draws = None
    if settings.bootstrap:
        draws = resampled_headlines(table, (1,), rule, settings.bootstrap, rng, resample_runs=False)[:, 0]
    crossfit = observed_headlines(table, (1,), TierRule("crossfit"), np.random.default_rng(settings.seed))[0]
    return HeadlineEstimates(
        values=dict(zip(HEADLINES, observed.tolist(), strict=True)),
        intervals=_intervals(
            table, _measured_codes(table, codes, rule), observed, draws, settings.confidence
        ),
        codes=codes,
        notes=_notes(table, settings, observed, crossfit),
    )


def _codes(table: OutcomeTable, settings: AuditSettings) -> IntArray:
    accuracy = table.class_accuracy()[:, 0]
    if settings.reference is None:
        return tier_codes(accuracy)
    unknown = np.flatnonzero(np.isnan(settings.reference) & ~np.isnan(accuracy))
    if len(unknown):
        raise ValueError(f"reference must rank every class with samples, got NaN for class {int(unknown[0])}")
    return tier_codes(np.where(np.isnan(accuracy), np.nan, settings.reference))


def _measured_codes(table: OutcomeTable, codes: IntArray, rule: TierRule) -> IntArray:
    """Return the tier of each class behind the thirds: crossfit leaves out classes that it cannot halve."""
    if rule.ranking != "crossfit":
        return codes
    return tier_codes(np.where(table.n >= MIN_CROSSFIT_SAMPLES, table.class_accuracy()[:, 0], np.nan))


def _intervals(
    table: OutcomeTable, codes: IntArray, observed: FloatArray, draws: FloatArray | None, confidence: float
) -> dict[str, tuple[float, float]]:
    if draws is None:
        return dict.fromkeys(HEADLINES, (float("nan"), float("nan")))
    widen = small_sample_factor(table.n)
    intervals = {
        name: centred_interval(
            float(value),
            draws[:, j],
            confidence,
            proportion=name != "gap",
            widen=widen * WORST_FACTOR if name == "worst" else widen,
        )
        for j, (name, value) in enumerate(zip(HEADLINES, observed, strict=True))
    }
    resampled = dict(intervals)
    right = np.einsum("kc,kcm->k", table.counts, table.patterns)
    for name, inside in _groups(table, codes, right).items():
        events, number = right[inside].sum(), float(table.n[inside].sum())
        if name != "overall":  # where every sample counts the same, not every class
            events, number = class_mean_counts(right[inside], table.n[inside])
        intervals[name] = with_few_events(intervals[name], float(events), number, confidence)
    if any(intervals[name] != resampled[name] for name in ("easy", "hard")) and not np.isnan(observed[-1]):
        thirds = ((float(observed[j]), *intervals[HEADLINES[j]]) for j in (1, 3))
        intervals["gap"] = with_few_in_parts(intervals["gap"], *thirds)
    return intervals


def _groups(table: OutcomeTable, codes: IntArray, right: FloatArray) -> dict[str, IntArray]:
    """Classes behind each proportion; the worst class only where resampling cannot move it (all wrong or all right)."""
    groups = {"overall": np.flatnonzero(table.n > 0)}
    groups |= {name: np.flatnonzero(codes == code) for code, name in enumerate(("easy", "medium", "hard"))}
    present = np.flatnonzero(table.n > 0)
    rates = right[present] / table.n[present]
    worst = present[np.argmin(rates)]
    if rates.min() in (0.0, 1.0):
        groups["worst"] = np.array([worst])
    return groups


def _notes(
    table: OutcomeTable, settings: AuditSettings, observed: FloatArray, crossfit: FloatArray
) -> tuple[str, ...]:
    n = table.n
    few = int(((n > 0) & (n < MIN_CROSSFIT_SAMPLES)).sum())
    notes = [f"Thirds: {_RULE_TEXT[settings.ranking]} Remainder: {REMAINDER_RULE}."]
    if settings.ranking == "own" and not np.isnan(crossfit[3]):
        notes.append(_crossfit_note(observed, crossfit, few))
    absent = int((n == 0).sum())
    if absent:
        notes.append(f"{absent} of {len(n)} classes have no samples; they are left out of all means.")
    if settings.ranking == "crossfit" and few:
        notes.append(too_few_note(few))
    if len(n) - absent < 3:
        notes.append("Thirds need at least three classes with samples; those without a class are not given.")
    notes.append(_INTERVAL_TEXT.format(level=100 * settings.confidence))
    return tuple(notes)


def too_few_note(few: int) -> str:
    """Return what a reader of crossfit thirds must know about classes that cannot be halved."""
    return f"{few} classes with fewer than {MIN_CROSSFIT_SAMPLES} samples are left out of the thirds."


def _crossfit_note(observed: FloatArray, crossfit: FloatArray, few: int) -> str:
    beginning = "On samples that took no part in the ranking (crossfit)"
    shown = {
        name: [f"{100 * values[HEADLINES.index(name)]:.1f} %" for values in (crossfit, observed)]
        for name in ("hard", "easy")
    }
    changed = [
        f"the {name} third measures {new} instead of {old}"
        for name, (new, old) in shown.items()
        if new != old
    ]
    if changed and few:
        # Both the ranking and the classes differ then, and nobody can tell which of them moved the thirds.
        return (
            f"{beginning} {' and '.join(changed)}; but crossfit leaves out classes with fewer than {MIN_CROSSFIT_SAMPLES} samples "
            f"(here {few}), so the difference does not come from ranking on noise alone."
        )
    if not changed:
        return f"{beginning} the hard and the easy third measure the same: no sign of ranking on noise."
    return (
        f"{beginning} {' and '.join(changed)}: the difference comes from ranking on noise (a half ranks with more of it than "
        "the whole)."
    )


_RULE_TEXT = {
    "own": "classes are ranked by this model's accuracies on the same samples (ranking='own').",
    "reference": "classes are ranked by the accuracies given as reference (ranking='reference').",
    "crossfit": (
        "classes are ranked on one half of the samples of each class and measured on the other, both ways, averaged over "
        "ten splits (ranking='crossfit'); the tiers in the class table are those of all samples."
    ),
}
_INTERVAL_TEXT = (
    "Intervals ({level:g} %): Wilson for single classes; for the other numbers a stratified bootstrap centred on the observed "
    "value, which covers what the same procedure gives on average over fresh test sets of this size."
)
