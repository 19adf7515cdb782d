"""The six headline numbers (overall, easy, medium, hard, worst, gap) as functions of counts, observed and resampled.

Samples of one class with the same pattern of right and wrong over the compared runs are exchangeable, so a class is fully described by
how many samples show each pattern, and resampling its samples is one multinomial draw. Axes: ``B`` copies, ``K`` classes, ``C`` patterns,
``M`` runs, ``S`` sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from classmargin._progress import progress_if_long
from classmargin.evaluation.class_metrics import ranked_tier_means, share, tier_means
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray

# Up to this many runs every class has one column for each of the 2^M patterns.
_RUNS_WITH_ALL_PATTERNS = 2


class OutcomeTable(NamedTuple):
    """Counts of right-wrong patterns per class."""

    counts: IntArray  # samples of each class that show each pattern [K, C]
    patterns: FloatArray  # which runs are right in each pattern [K, C, M], float 0 or 1 (padding has count 0)

    @property
    def n(self) -> IntArray:
        """Samples of each class ``[K]``."""
        return np.asarray(self.counts.sum(axis=1))

    def class_accuracy(self) -> FloatArray:
        """Return the accuracy of every run in every class ``[K, M]``; NaN for a class without samples."""
        right = np.einsum("kc,kcm->km", self.counts, self.patterns)
        return share(right, np.broadcast_to(self.n[:, None], right.shape))


def outcome_table(labels: IntArray, correct: AnyArray, num_classes: int) -> OutcomeTable:
    """Count patterns."""
    runs = correct.shape[1]
    if runs <= _RUNS_WITH_ALL_PATTERNS:
        code = correct @ (2 ** np.arange(runs)[::-1])
        counts = np.bincount(labels * 2**runs + code, minlength=num_classes * 2**runs)
        patterns = np.array(list(product((0.0, 1.0), repeat=runs)))
        every = np.broadcast_to(patterns, (num_classes, *patterns.shape))
        return OutcomeTable(counts.reshape(num_classes, 2**runs), every)
    return _patterns_seen(labels, correct, num_classes)


def settled_shares(table: OutcomeTable) -> FloatArray:
    """Return pattern shares ``[K, C]`` that differ between classes as much as true ones do.

    Drawing from the observed shares would add the sampling noise twice. So the shares are moved towards their mean over classes until
    their variance is that of the true accuracies (by moments). Tables of more than two runs are left as observed.
    """
    n = table.n
    present = n > 0
    shares = table.counts / np.maximum(n, 1)[:, None]
    shares[~present, 0] = 1.0  # nothing is drawn there, but the shares must sum to one
    if table.patterns.shape[2] <= _RUNS_WITH_ALL_PATTERNS and present.sum() > 1:
        mean = shares[present].mean(axis=0)
        accuracy, trials = table.class_accuracy()[present].mean(axis=1), np.maximum(n[present], 2)
        within = float((accuracy * (1 - accuracy) * trials / (trials - 1)).mean())  # variance of one sample
        noise = within / n[present]
        true = max(float(accuracy.var(ddof=1)) - float(noise.mean()), 0.0)
        # Root of true variance over observed variance.
        kept = np.sqrt(np.divide(true, true + noise, out=np.ones_like(noise), where=(true + noise) > 0))
        shares[present] = mean + kept[:, None] * (shares[present] - mean)
    return shares


def block_sizes(n: IntArray, blocks: int, rng: np.random.Generator) -> IntArray:
    """Divide the samples of each class into blocks whose sizes differ by at most one ``[K, blocks]``; which are larger is random."""
    places = rng.permuted(np.broadcast_to(np.arange(blocks), (len(n), blocks)), axis=1)
    return n[:, None] // blocks + (places < (n % blocks)[:, None])


def deal(table: OutcomeTable, sizes: IntArray, rng: np.random.Generator) -> IntArray:
    """Deal the samples of each class at random into blocks of the given sizes."""
    left = table.counts.copy()
    dealt = np.empty((*sizes.shape, left.shape[1]), dtype=np.int64)
    for block in range(sizes.shape[1]):
        # Without replacement: a multivariate hypergeometric draw, column by column.
        wanted, rest = sizes[:, block], left.sum(axis=1)
        for pattern in range(left.shape[1]):
            rest = rest - left[:, pattern]
            dealt[:, block, pattern] = rng.hypergeometric(left[:, pattern], rest, wanted)
            wanted = wanted - dealt[:, block, pattern]
        left -= dealt[:, block]
    return dealt


def resample(table: OutcomeTable, sizes: IntArray, replicates: int, rng: np.random.Generator) -> IntArray:
    """Draw each class's samples again, block by block, from :func:`settled_shares`."""
    shares = settled_shares(table)[:, None, :]
    return rng.multinomial(sizes, shares, size=(replicates, *sizes.shape))


def _patterns_seen(labels: IntArray, correct: AnyArray, num_classes: int) -> OutcomeTable:
    _, code = np.unique(correct, axis=0, return_inverse=True)
    distinct, first, counts = np.unique(
        labels * (int(code.max()) + 1) + code.reshape(-1), return_index=True, return_counts=True
    )
    owner = labels[first]
    place = np.arange(len(distinct)) - np.searchsorted(owner, owner)  # 0, 1, … within each class
    table = np.zeros((num_classes, int(place.max()) + 1), dtype=np.int64)
    patterns = np.zeros((*table.shape, correct.shape[1]))
    table[owner, place] = counts
    patterns[owner, place] = correct[first]
    return OutcomeTable(table, patterns)


HEADLINES = ("overall", "easy", "medium", "hard", "worst", "gap")
# Crossfit deals each class into six blocks; three of six make a half, which gives ten balanced splits.
BLOCKS = 6
SPLITS = BLOCKS * (BLOCKS - 1) * (BLOCKS - 2) // 12
# With fewer samples a split could leave a class without samples in one half.
MIN_CROSSFIT_SAMPLES = 4
# Copies held in memory at once are chosen so that one array stays near 32 MB.
_CELLS_AT_ONCE = 4_000_000


class TierRule(NamedTuple):
    """How classes are ranked into thirds."""

    ranking: str
    codes: IntArray | None = None  # tier of each class [K], for "reference"

    @property
    def blocks(self) -> int:
        """Into how many blocks the samples of a class are dealt."""
        return BLOCKS if self.ranking == "crossfit" else 1


def observed_headlines(
    table: OutcomeTable, run_counts: tuple[int, ...], rule: TierRule, rng: np.random.Generator
) -> FloatArray:
    """Return the headline numbers of each side ``[S, 6]`` in the order of ``HEADLINES``."""
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

    First level: runs of each side (n - 1 of n; Rao and Wu 1988). Second level: samples within each class, the same for all runs.
    """
    splits = SPLITS if rule.blocks > 1 else 0
    cells = table.counts.size * rule.blocks + len(table.n) * splits * len(run_counts)
    step = max(1, min(replicates, _CELLS_AT_ONCE // cells))
    parts = []
    for start in progress_if_long(range(0, replicates, step), "resampling"):
        count = min(step, replicates - start)
        weights = random_run_weights(run_counts, count, rng) if resample_runs else even_run_weights(run_counts)
        sizes = block_sizes(table.n, rule.blocks, rng)
        if resample_samples:
            counts = resample(table, sizes, count, rng)
        else:
            counts = deal(table, sizes, rng)[None].repeat(count, 0)
        parts.append(headline_values(table, counts, weights, rule))
    return np.concatenate(parts)


def headline_values(table: OutcomeTable, counts: IntArray, run_weights: FloatArray, rule: TierRule) -> FloatArray:
    """Return the headline numbers of each side of each copy ``[B, S, 6]``; NaN for thirds without classes."""
    right = np.einsum("bkqc,kcm->bmkq", counts, table.patterns, optimize=True)
    if run_weights.shape[1] != run_weights.shape[2]:  # with one run per side there is nothing to average
        weights = np.broadcast_to(run_weights, (len(counts), *run_weights.shape[1:]))
        right = np.einsum("bmkq,bms->bskq", right, weights)  # [B, S, K, blocks]
    n = table.n
    present = n > 0
    accuracy = right.sum(axis=-1)[..., present] / n[present]
    overall = (accuracy * n[present]).sum(axis=-1) / n.sum()
    if rule.ranking == "crossfit":
        thirds = _crossfit_thirds(right, counts.sum(axis=-1)[0], n)
    elif rule.ranking == "reference":
        assert rule.codes is not None
        thirds = tier_means(accuracy, rule.codes[present])
    else:
        ranked_by = {
            "own": accuracy,
            "baseline": accuracy[..., :1, :],
            "pooled": accuracy.mean(axis=-2, keepdims=True),
        }[rule.ranking]
        thirds = ranked_tier_means(accuracy, ranked_by)
    columns = [overall, *np.moveaxis(thirds, -1, 0), accuracy.min(axis=-1), thirds[..., 0] - thirds[..., 2]]
    return np.stack(columns, axis=-1)


def even_run_weights(run_counts: tuple[int, ...]) -> FloatArray:
    """Return weights ``[1, M, S]`` that average the runs of each side."""
    return np.repeat(np.diag(1.0 / np.array(run_counts)), run_counts, axis=0)[None]


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


def _crossfit_thirds(right: FloatArray, block_n: IntArray, n: IntArray) -> FloatArray:
    usable = n >= MIN_CROSSFIT_SAMPLES
    by_block = np.ascontiguousarray(np.moveaxis(right[:, :, usable], -1, 0))  # [blocks, B, S, K]
    block_n = np.ascontiguousarray(block_n[usable].T)
    total = np.zeros((*right.shape[:2], 3))
    splits = [half for half in combinations(range(BLOCKS), BLOCKS // 2) if 0 in half]
    for half in splits:
        rest = [block for block in range(BLOCKS) if block not in half]
        one, other = (_accuracy(by_block, block_n, part) for part in (half, rest))
        for ranked, measured in ((one, other), (other, one)):
            total += ranked_tier_means(measured, ranked.mean(axis=1, keepdims=True))
    return total / (2 * len(splits))


def _accuracy(by_block: FloatArray, block_n: IntArray, blocks: Sequence[int]) -> FloatArray:
    # Whole arrays added to one another: a sum over a short last axis takes four times as long.
    right: FloatArray = by_block[blocks[0]].copy()
    for block in blocks[1:]:
        right += by_block[block]
    right /= block_n[list(blocks)].sum(axis=0)
    return right
