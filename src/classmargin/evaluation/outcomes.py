"""Who is right on what, as counts: the table that every resampling works on.

Samples of one class with the same pattern of right and wrong over the compared runs are exchangeable, so a class is fully
described by how many samples show each pattern. Resampling a class's samples is then one multinomial draw, dealing them into
blocks a hypergeometric one: thousands of replicates cost what one loop over the samples would.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from classmargin.evaluation.class_metrics import share
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray

# Up to this many runs every class has one column for each of the 2^M patterns.
_RUNS_WITH_ALL_PATTERNS = 2


@dataclass(frozen=True)
class OutcomeTable:
    """Counts of right-wrong patterns per class.

    Attributes:
        counts: Samples of each class that show each pattern ``[K, C]``.
        patterns: Which runs are right in each pattern ``[K, C, M]``, float 0 or 1 (padding has count 0).
    """

    counts: IntArray
    patterns: FloatArray

    @property
    def n(self) -> IntArray:
        """Samples of each class ``[K]``."""
        return np.asarray(self.counts.sum(axis=1))

    def class_accuracy(self) -> FloatArray:
        """Return the accuracy of every run in every class ``[K, M]``; NaN for a class without samples."""
        right = np.einsum("kc,kcm->km", self.counts, self.patterns)
        return share(right, np.broadcast_to(self.n[:, None], right.shape))


def outcome_table(labels: IntArray, correct: AnyArray, num_classes: int) -> OutcomeTable:
    """Count patterns.

    Args:
        labels: True classes ``[N]``.
        correct: Which run is right on which sample ``[N, M]`` (bool).
        num_classes: Number of classes K.

    Example:
        >>> table = outcome_table(np.array([0, 0, 1]), np.array([[1, 0], [1, 1], [0, 0]], bool), 2)
        >>> table.class_accuracy().tolist()
        [[1.0, 0.5], [0.0, 0.0]]
    """
    runs = correct.shape[1]
    if runs <= _RUNS_WITH_ALL_PATTERNS:
        code = correct @ (2 ** np.arange(runs)[::-1])
        counts = np.bincount(labels * 2**runs + code, minlength=num_classes * 2**runs)
        patterns = np.array(list(product((0.0, 1.0), repeat=runs)))
        return OutcomeTable(
            counts.reshape(num_classes, 2**runs), np.broadcast_to(patterns, (num_classes, *patterns.shape))
        )
    return _patterns_seen(labels, correct, num_classes)


def settled_shares(table: OutcomeTable) -> FloatArray:
    """Return pattern shares ``[K, C]`` that differ between classes as much as true ones do.

    Observed accuracies vary more between classes than true ones, by the sampling noise. Drawing from the observed shares would add
    that noise twice, and never draw a mistake in a class that happens to show none. So the shares are moved towards their mean over
    classes until their variance is that of the true accuracies (estimated by moments). With many samples a class this changes
    nothing. Tables of more than two runs, whose classes have their own patterns, are left as observed.
    """
    n = table.n
    present = n > 0
    shares = table.counts / np.maximum(n, 1)[:, None]
    shares[~present, 0] = 1.0  # nothing is drawn there, but the shares must sum to one
    if table.patterns.shape[2] <= _RUNS_WITH_ALL_PATTERNS and present.sum() > 1:
        mean = shares[present].mean(axis=0)
        kept = _kept_deviation(table.class_accuracy()[present].mean(axis=1), n[present])
        shares[present] = mean + kept[:, None] * (shares[present] - mean)
    return shares


def block_sizes(n: IntArray, blocks: int, rng: np.random.Generator) -> IntArray:
    """Divide the samples of each class into blocks whose sizes differ by at most one ``[K, blocks]``.

    Which blocks get one more is random, so that the larger blocks of different classes do not fall together.
    """
    places = rng.permuted(np.broadcast_to(np.arange(blocks), (len(n), blocks)), axis=1)
    return n[:, None] // blocks + (places < (n % blocks)[:, None])


def deal(table: OutcomeTable, sizes: IntArray, rng: np.random.Generator) -> IntArray:
    """Deal the samples of each class at random into blocks of the given sizes.

    Args:
        table: What is dealt.
        sizes: Size of every block ``[K, blocks]``; rows sum to ``table.n``.
        rng: Source of randomness.

    Returns:
        Pattern counts of every block ``[K, blocks, C]``.
    """
    left = table.counts.copy()
    dealt = np.empty((*sizes.shape, left.shape[1]), dtype=np.int64)
    for block in range(sizes.shape[1]):
        dealt[:, block] = _take(left, sizes[:, block], rng)
        left -= dealt[:, block]
    return dealt


def resample(table: OutcomeTable, sizes: IntArray, replicates: int, rng: np.random.Generator) -> IntArray:
    """Draw each class's samples again, block by block, from :func:`settled_shares`.

    Returns:
        Pattern counts ``[replicates, K, blocks, C]``; every block holds as many samples as in ``sizes`` ``[K, blocks]``.
    """
    shares = settled_shares(table)[:, None, :]
    return rng.multinomial(sizes, shares, size=(replicates, *sizes.shape))


def _take(counts: IntArray, wanted: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw ``wanted`` samples of each class without replacement: a multivariate hypergeometric, column by column."""
    taken = np.zeros_like(counts)
    left = counts.sum(axis=1)
    for pattern in range(counts.shape[1]):
        here = counts[:, pattern]
        left = left - here
        taken[:, pattern] = rng.hypergeometric(here, left, wanted)
        wanted = wanted - taken[:, pattern]
    return taken


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


def _kept_deviation(accuracy: FloatArray, n: IntArray) -> FloatArray:
    """Return the factor on each class's deviation: root of true variance over observed variance."""
    trials = np.maximum(n, 2)
    within = float((accuracy * (1 - accuracy) * trials / (trials - 1)).mean())  # variance of one sample
    noise = within / n
    true = max(float(accuracy.var(ddof=1)) - float(noise.mean()), 0.0)
    return np.sqrt(np.divide(true, true + noise, out=np.ones_like(noise), where=(true + noise) > 0))
