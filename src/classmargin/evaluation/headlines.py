"""The six headline numbers (overall, easy, medium, hard, worst, gap) as functions of pattern counts.

One function serves one model (an audit) and two (a comparison), the observed table and all its resampled copies, so an interval
is always that of the number it stands beside. Axes: ``B`` copies, ``K`` classes, ``C`` patterns, ``M`` runs, ``S`` sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from classmargin.evaluation.inputs import FloatArray, IntArray
from classmargin.evaluation.long_work import watched
from classmargin.evaluation.outcomes import OutcomeTable, block_sizes, deal, resample
from classmargin.evaluation.tiers import ranked_tier_means, tier_means

HEADLINES = ("overall", "easy", "medium", "hard", "worst", "gap")
# Crossfit deals each class into six blocks; three of six make a half, which gives ten balanced splits.
BLOCKS = 6
SPLITS = BLOCKS * (BLOCKS - 1) * (BLOCKS - 2) // 12
# With fewer samples a split could leave a class without samples in one half.
MIN_CROSSFIT_SAMPLES = 4
# Copies held in memory at once are chosen so that one array stays near 32 MB.
_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class TierRule:
    """How classes are ranked into thirds.

    Attributes:
        ranking: "own" (each side by itself), "reference" (given codes), "pooled" (mean of the sides), "baseline" (first
            side) or "crossfit" (mean of the sides on one half of the samples, measured on the other half).
        codes: Tier of each class ``[K]``, for "reference".
    """

    ranking: str
    codes: IntArray | None = None

    @property
    def blocks(self) -> int:
        """Into how many blocks the samples of a class are dealt."""
        return BLOCKS if self.ranking == "crossfit" else 1


def observed_headlines(
    table: OutcomeTable, run_counts: tuple[int, ...], rule: TierRule, rng: np.random.Generator
) -> FloatArray:
    """Return the headline numbers of each side ``[S, 6]`` in the order of ``HEADLINES``.

    Args:
        table: Pattern counts of all runs.
        run_counts: How many runs each side has; the runs of the first side come first.
        rule: How thirds are made.
        rng: Source of the random halves of crossfit.
    """
    counts = deal(table, block_sizes(table.n, rule.blocks, rng), rng)
    return np.asarray(headline_values(table, counts[None], even_run_weights(run_counts), rule)[0])


def resampled_headlines(
    table: OutcomeTable,
    run_counts: tuple[int, ...],
    rule: TierRule,
    replicates: int,
    rng: np.random.Generator,
    *,
    resample_runs: bool,
    resample_samples: bool = True,
) -> FloatArray:
    """Return the headline numbers of stratified bootstrap copies ``[B, S, 6]``.

    First level: runs of each side (n - 1 of n, which makes the variance of a mean unbiased; Rao and Wu 1988), if asked
    for. Second level: samples within each class, the same for all runs (paired), unless they are kept as observed.
    """
    cells = table.counts.size * rule.blocks + (
        len(table.n) * SPLITS * len(run_counts) if rule.blocks > 1 else 0
    )
    step = max(1, min(replicates, _CELLS_AT_ONCE // cells))
    parts = []
    for start in watched(range(0, replicates, step), "resampling"):
        count = min(step, replicates - start)
        weights = (
            random_run_weights(run_counts, count, rng) if resample_runs else even_run_weights(run_counts)
        )
        sizes = block_sizes(table.n, rule.blocks, rng)
        counts = (
            resample(table, sizes, count, rng)
            if resample_samples
            else deal(table, sizes, rng)[None].repeat(count, 0)
        )
        parts.append(headline_values(table, counts, weights, rule))
    return np.concatenate(parts)


def headline_values(
    table: OutcomeTable, counts: IntArray, run_weights: FloatArray, rule: TierRule
) -> FloatArray:
    """Return the headline numbers of each side of each copy ``[B, S, 6]``; NaN for thirds without classes.

    Args:
        table: Patterns of all runs.
        counts: Pattern counts ``[B, K, blocks, C]``.
        run_weights: Weight of each run for each side ``[B or 1, M, S]``; columns sum to one.
        rule: How thirds are made.
    """
    right = _right_samples(table, counts, run_weights)  # [B, S, K, blocks]
    n = table.n
    present = n > 0
    accuracy = right.sum(axis=-1)[..., present] / n[present]
    overall = (accuracy * n[present]).sum(axis=-1) / n.sum()
    if rule.ranking == "crossfit":
        thirds = _crossfit_thirds(right, counts.sum(axis=-1)[0], n)
    else:
        thirds = _thirds(accuracy, rule, np.flatnonzero(present))
    columns = [overall, *np.moveaxis(thirds, -1, 0), accuracy.min(axis=-1), thirds[..., 0] - thirds[..., 2]]
    return np.stack(columns, axis=-1)


def even_run_weights(run_counts: tuple[int, ...]) -> FloatArray:
    """Return weights ``[1, M, S]`` that average the runs of each side.

    Example:
        >>> even_run_weights((1, 2))[0].tolist()
        [[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]]
    """
    weights = np.zeros((1, sum(run_counts), len(run_counts)))
    start = 0
    for side, count in enumerate(run_counts):
        weights[:, start : start + count, side] = 1.0 / count
        start += count
    return weights


def random_run_weights(run_counts: tuple[int, ...], replicates: int, rng: np.random.Generator) -> FloatArray:
    """Return weights of resampled runs ``[B, M, S]``; a single run is always itself."""
    weights = np.zeros((replicates, sum(run_counts), len(run_counts)))
    start = 0
    for side, count in enumerate(run_counts):
        draws = max(count - 1, 1)
        picked = rng.multinomial(draws, np.full(count, 1.0 / count), size=replicates)
        weights[:, start : start + count, side] = picked / draws
        start += count
    return weights


def _right_samples(table: OutcomeTable, counts: IntArray, run_weights: FloatArray) -> FloatArray:
    """Return how many samples each side has right, per class and block ``[B, S, K, blocks]``."""
    by_run = np.einsum("bkqc,kcm->bmkq", counts, table.patterns, optimize=True)
    if run_weights.shape[1] == run_weights.shape[2]:
        return np.asarray(by_run)  # one run a side: nothing to average
    weights = np.broadcast_to(run_weights, (len(counts), *run_weights.shape[1:]))
    return np.asarray(np.einsum("bmkq,bms->bskq", by_run, weights))


def _thirds(accuracy: FloatArray, rule: TierRule, present: IntArray) -> FloatArray:
    if rule.ranking == "reference":
        assert rule.codes is not None
        return tier_means(accuracy, rule.codes[present])
    if rule.ranking == "own":
        return ranked_tier_means(accuracy, accuracy)
    by = accuracy[..., :1, :] if rule.ranking == "baseline" else accuracy.mean(axis=-2, keepdims=True)
    return ranked_tier_means(accuracy, np.broadcast_to(by, accuracy.shape))


def _crossfit_thirds(right: FloatArray, block_n: IntArray, n: IntArray) -> FloatArray:
    usable = n >= MIN_CROSSFIT_SAMPLES
    right, block_n = right[:, :, usable], block_n[usable]
    total = np.zeros((*right.shape[:2], 3))
    splits = [half for half in combinations(range(BLOCKS), BLOCKS // 2) if 0 in half]
    for half in splits:
        rest = [block for block in range(BLOCKS) if block not in half]
        one, other = (_accuracy(right, block_n, part) for part in (list(half), rest))
        for ranked, measured in ((one, other), (other, one)):
            by = np.broadcast_to(ranked.mean(axis=1, keepdims=True), ranked.shape)
            total += ranked_tier_means(measured, by)
    return total / (2 * len(splits))


def _accuracy(right: FloatArray, block_n: IntArray, blocks: list[int]) -> FloatArray:
    return np.asarray(right[..., blocks].sum(axis=-1) / block_n[:, blocks].sum(axis=-1))
