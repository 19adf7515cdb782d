"""Estimates of the *true* class accuracies: what is left of thirds, worst class and gap once the noise of the test set is taken away.

A third ranked by observed accuracies describes mostly the noise: 100 classes that are all right 80 % of the time, with 50 samples each,
show a gap of 12 points. Here the counts of all classes together tell how much true accuracies vary (empirical Bayes), and vectors of
true accuracies are drawn given the counts. The variation is estimated in five ways, and each interval is the hull of their answers:

- *smooth*: true accuracies follow a beta distribution; its mean and strength are drawn from their posterior;
- *free*: any distribution on a grid (nonparametric maximum likelihood by EM), on a Bayesian bootstrap of the classes;
- *in between*: the same, smoothed by a kernel and mixed with a little of the uniform distribution (only for the worst class);
- *as equal as the data allow*: the likeliest distributions without very low or high accuracies, within a limit of the best;
- *two groups*: two groups of equal classes, if the data do not contradict them.

If a test does not reject that all classes are equal, the intervals contain that case, too. ``make bench BENCH=coverage`` simulates how
often they hold the truth. The values themselves are means of the free draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from classmargin.evaluation.class_metrics import normal_quantile, tier_sizes, wilson_interval
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray

MEASURES = ("easy", "medium", "hard", "worst", "gap", "std", "gini")
EQUAL_LEVEL = 0.05
_DRAWS = 200
_GRID_POINTS = (60, 120)
_FIRST_STEPS, _BOOTSTRAP_STEPS, _CUT_STEPS, _GROUP_STEPS = 500, 20, 120, 60
_CUTS = 40
# Twice the loss of log likelihood that a distribution may cost, in units of the squared normal quantile. One would do for a regular
# parameter; the free distribution fits noise, which costs more (found by simulation).
_LIKELIHOOD_FACTOR = 1.5625
_UNIFORM_CLASSES = 2.0
# More different pairs (x, n) than this are put into cells of similar ones.
_MOST_PAIRS = 250
_CELLS_AT_ONCE = 4_000_000
_TINY = 1e-40


class TrueAccuracies(NamedTuple):
    """Estimates of true class accuracies."""

    values: Mapping[str, float]  # each of MEASURES (NaN for thirds with fewer than three classes)
    intervals: Mapping[str, tuple[float, float]]  # their intervals
    estimate: FloatArray  # accuracy of each class, moved towards the others as far as its samples leave room [K]; NaN without samples
    low: FloatArray  # lower limit of each class [K]
    high: FloatArray  # upper limit of each class [K]
    equal_p_value: float  # P-value of the test that all classes have the same accuracy (NaN with one class)


def true_accuracies(
    right: IntArray, n: IntArray, *, confidence: float = 0.95, seed: int = 0, intervals: bool = True
) -> TrueAccuracies:
    """Estimate the true accuracies of all classes with samples."""
    present = n > 0
    counts = _Counts.of(right[present], n[present])
    equal = equal_classes_p_value(right, n)
    points = len(counts.points)
    flat = np.full((1, points), 1 / points)
    best = _em(flat, (counts.classes / counts.classes.sum())[None], counts.likelihood, _FIRST_STEPS)
    free, worst, estimate, low, high = _free_draws(counts, best, confidence, np.random.default_rng([seed, 0]))
    values = np.clip(free.mean(axis=0), 0, 1)
    ends = np.full((2, len(MEASURES)), np.nan)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    if intervals:
        smooth = _measures(_smooth_draws(counts, np.random.default_rng([seed, 1])))
        groups = _two_groups(counts, best, confidence, np.random.default_rng([seed, 2]))
        parts = [np.quantile(part, tails, axis=0) for part in (smooth, free, *groups)]
        nearly_equal = _nearly_equal(counts, best, confidence)
        parts += [np.stack([nearly_equal.min(axis=0), nearly_equal.max(axis=0)]), np.stack([values, values])]
        if not equal <= EQUAL_LEVEL:
            # If all are equal there is no gap, and every class is at the overall accuracy.
            overall = wilson_interval(np.array(float(right.sum())), np.array(float(n.sum())), confidence)
            same = [(0.0, 0.0) if name in ("gap", "std", "gini") else overall for name in MEASURES]
            parts.append(np.array(same).T)
        of_worst = parts[-1].copy()
        of_worst[:, MEASURES.index("worst")] = np.quantile(worst, tails)
        several = np.stack([*parts, of_worst])
        ends = np.stack([several[:, 0].min(axis=0), several[:, 1].max(axis=0)])
        # The ends come from draws given *estimated* distributions, which are least certain where classes are few.
        widening = 1.15 + 2 / counts.classes.sum()
        ends = np.clip(values + widening * (ends - values), 0, 1)
    of_classes = np.full((3, len(n)), np.nan)
    of_classes[:, present] = estimate, low, high
    estimate, low, high = of_classes
    limits = {name: (float(ends[0, j]), float(ends[1, j])) for j, name in enumerate(MEASURES)}
    return TrueAccuracies(dict(zip(MEASURES, values.tolist(), strict=True)), limits, estimate, low, high, equal)


def equal_classes_p_value(right: IntArray, n: IntArray) -> float:
    """Return the p-value of "all classes have the same accuracy" (Pearson's statistic, gamma distribution), NaN with fewer than two."""
    from scipy.special import gammaincc

    right, n = right[n > 0], n[n > 0].astype(np.float64)
    if len(n) < 2:
        return float("nan")
    p = right.sum() / n.sum()
    if p in (0.0, 1.0):
        return 1.0
    statistic = ((right - n * p) ** 2 / (n * p * (1 - p))).sum()
    mean = len(n) - 1.0
    variance = mean / len(n) * (2 + (1 - 6 * p * (1 - p)) / (n * p * (1 - p)) - 2 / n).sum()
    variance = max(float(variance), 1e-9)
    return float(gammaincc(mean**2 / variance, statistic * mean / variance))


def lagging(right: IntArray, n: IntArray, confidence: float) -> tuple[AnyArray, float]:
    """Return which classes lie below the overall accuracy by more than chance explains ``[K]``, and how many would by chance.

    A class lags if so few right samples have a probability of at most (1 - confidence) / 2 at the overall accuracy (exact binomial tail).
    """
    from scipy.special import bdtr, bdtrik

    p, level = right.sum() / n.sum(), (1 - confidence) / 2
    lags = (n > 0) & (bdtr(right, n, p) <= level)
    if not 0 < p < 1:
        return np.zeros(len(n), bool), 0.0
    most = np.floor(np.nan_to_num(bdtrik(level, n.astype(np.float64), p), nan=-1.0) + 1e-9)
    most = np.where((most >= 0) & (bdtr(np.maximum(most, 0), n, p) > level), most - 1, most)
    chance = np.where((n > 0) & (most >= 0), bdtr(np.maximum(most, 0), n, p), 0.0)
    return lags, float(chance.sum())


class _Counts(NamedTuple):
    """Different pairs of right and all samples, how many classes have each, and where each class is."""

    x: FloatArray  # right samples [U] (a mean where pairs were put together)
    n: FloatArray  # samples [U]
    classes: IntArray  # classes with this pair [U]
    place: IntArray  # pair of each class [K]
    points: FloatArray  # grid of accuracies [M], ascending, even on the arcsine scale
    likelihood: FloatArray  # of each grid point for each pair [U, M], in units of the largest of its row
    log_largest: FloatArray  # logarithm of that unit [U]

    @classmethod
    def of(cls, right: IntArray, n: IntArray) -> _Counts:
        pairs = np.stack([right, n])
        _, place = np.unique(pairs, axis=1, return_inverse=True)
        if place.max() >= _MOST_PAIRS:
            step = np.round(np.log(n) / 0.2)
            angle = _angle((right + 0.5) / (n + 1)) * 2 * np.exp(0.1 * step)  # in units of its deviation
            _, place = np.unique(np.stack([step, np.round(angle / 0.35)]), axis=1, return_inverse=True)
        place = place.reshape(-1)
        classes = np.bincount(place)
        x, size = (np.bincount(place, weights=values) / classes for values in (right, n))
        deviation = 0.5 / np.sqrt(size)
        angle = _angle((x + 0.5) / (size + 1))
        low = max(0.0, float((angle - 2 * deviation).min()))
        high = min(np.pi / 2, float((angle + 2 * deviation).max()))
        steps = int(np.clip((high - low) / (0.2 * deviation.min()), *_GRID_POINTS))
        points = np.asarray(np.sin(low + (high - low) * (np.arange(steps) + 0.5) / steps) ** 2)
        log = x[:, None] * np.log(points) + (size - x)[:, None] * np.log1p(-points)
        largest = log.max(axis=1)
        likelihood = np.exp(np.maximum(log - largest[:, None], -80))
        return cls(x, size, classes, place, points, likelihood, largest)

    def log_likelihood(self, chances: FloatArray) -> FloatArray:
        """Return it ``[R]`` for the chance of each pair in units of ``log_largest`` ``[R, U]``."""
        return np.asarray(np.log(np.maximum(chances, 1e-300)) @ self.classes)


def _angle(p: FloatArray) -> FloatArray:
    return np.asarray(np.arcsin(np.sqrt(p)))


def _smooth_draws(counts: _Counts, rng: np.random.Generator) -> FloatArray:
    """Return sorted true accuracies ``[B, K]`` under a beta distribution: flat mean, uniform shrinkage prior of its strength."""
    from scipy.special import betaln

    x, n, classes = counts.x, counts.n, counts.classes
    total = classes.sum()
    size = total / (classes / n).sum()
    observed = (x + 0.5) / (n + 1)
    centre = float((observed * classes).sum() / total)
    noise = max(centre * (1 - centre), 1e-3) / size
    scale = np.sqrt((noise + ((observed - centre) ** 2 * classes).sum() / total) / total)
    mean = np.clip(centre + scale * np.linspace(-4.5, 4.5, 41), 1e-4, 1 - 1e-4)
    moved = (np.arange(60) + 0.5) / 60
    strength = size * moved / (1 - moved)
    a, b = (np.outer(part, strength).reshape(-1) for part in (mean, 1 - mean))
    log = sum(
        count * (betaln(a + hit, b + miss) - betaln(a, b)) for hit, miss, count in zip(x, n - x, classes, strict=True)
    )
    chance = np.exp(log - np.max(log))
    chosen = rng.choice(len(a), _DRAWS, p=chance / chance.sum())
    x, n = np.repeat(x, classes), np.repeat(n, classes)
    return np.sort(rng.beta(a[chosen, None] + x, b[chosen, None] + n - x), axis=1)


def _em(start: FloatArray, weights: FloatArray, likelihood: FloatArray, steps: int) -> FloatArray:
    """Return distributions ``[R, M]`` after EM steps; points that have no weight at the start keep none."""
    found, allowed = start, start > 0
    for _ in range(steps):
        found = found * ((weights / np.maximum(found @ likelihood.T, 1e-200)) @ likelihood)
        found = np.where(allowed, np.maximum(found, _TINY), 0.0)  # the floor keeps denormal numbers out
    return np.asarray(found)


def _free_draws(
    counts: _Counts, best: FloatArray, confidence: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return measures of free draws ``[B, 7]``, the worst class of smoothed ones ``[B]``, and estimate and limits of each class."""
    points, total = counts.points, float(counts.classes.sum())
    weights = rng.gamma(counts.classes, size=(_DRAWS, len(counts.classes)))
    weights /= weights.sum(axis=1, keepdims=True)
    start = np.repeat(0.9 * best + 0.1 / len(points), _DRAWS, axis=0)
    found = _em(start, weights, counts.likelihood, _BOOTSTRAP_STEPS)
    found /= found.sum(axis=1, keepdims=True)
    angle = _angle(points)
    width = float(np.median(0.5 / np.sqrt(np.repeat(counts.n, counts.classes))))
    kernel = np.exp(-0.5 * ((angle[:, None] - angle) / width) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    smoothed = (total * (found @ kernel) + _UNIFORM_CLASSES / len(points)) / (total + _UNIFORM_CLASSES)
    rows = []
    for posterior in _posteriors(found, counts):
        drawn = rng.multinomial(counts.classes, posterior).sum(axis=1)
        rows.append(_measures(np.stack([np.repeat(points, part) for part in drawn])))
    worst, mean = [], np.zeros(counts.likelihood.shape)
    for posterior in _posteriors(smoothed, counts):
        drawn = rng.multinomial(counts.classes, posterior).sum(axis=1)
        worst.append(points[(drawn > 0).argmax(axis=1)])
        mean += posterior.sum(axis=0) / _DRAWS
    below, place, tails = np.cumsum(mean, axis=1), counts.place, ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = (points[np.minimum((below < tail).sum(axis=1), len(points) - 1)][place] for tail in tails)
    return np.concatenate(rows), np.concatenate(worst), (mean @ points)[place], low, high


def _posteriors(found: FloatArray, counts: _Counts) -> Iterator[FloatArray]:
    """Yield the distribution of each pair's accuracy ``[b, U, M]``, some draws at a time."""
    step = max(1, _CELLS_AT_ONCE // counts.likelihood.size)
    for start in range(0, len(found), step):
        part = found[start : start + step, None, :] * counts.likelihood
        yield part / part.sum(axis=2, keepdims=True)


def _nearly_equal(counts: _Counts, best: FloatArray, confidence: float) -> FloatArray:
    """Return measures ``[R, 7]`` of distributions cut off below, above or on both sides that the data do not contradict."""
    points, weights = counts.points, counts.classes / counts.classes.sum()
    overall = float((counts.x * counts.classes).sum() / (counts.n * counts.classes).sum())
    middle = int(np.searchsorted(points, overall))
    last = len(points) - 1
    lower = np.unique(np.linspace(0, min(middle, last), _CUTS).astype(int))
    upper = np.unique(np.linspace(max(middle - 1, 0), last, _CUTS).astype(int))
    cuts = [(i, last) for i in lower] + [(0, j) for j in upper]
    cuts += [(i, j) for i in lower[::4] for j in upper[::4] if i <= j]
    index = np.arange(len(points))
    allowed = np.array([(index >= i) & (index <= j) for i, j in cuts])
    start = allowed * (best + 1e-2 / len(points))
    start /= start.sum(axis=1, keepdims=True)
    found = _em(start, weights[None], counts.likelihood, _CUT_STEPS)
    fits = (counts.log_likelihood(part @ counts.likelihood.T) for part in (best, found))
    lost = 2 * (next(fits) - next(fits))
    near = lost <= max(_LIKELIHOOD_FACTOR * normal_quantile(confidence) ** 2, float(lost.min()))
    return _measures_of_distributions(
        found[near], points[None], points[allowed[near].argmax(axis=1)], int(counts.classes.sum())
    )


def _two_groups(counts: _Counts, best: FloatArray, confidence: float, rng: np.random.Generator) -> list[FloatArray]:
    """Return measures ``[B, 7]`` of two groups of equal classes (EM on a Bayesian bootstrap); none if the data contradict them."""
    x, n = counts.x, counts.n
    weights = np.concatenate([counts.classes[None], rng.gamma(counts.classes, size=(_DRAWS, len(x)))])
    weights = weights / weights.sum(axis=1, keepdims=True)
    start = counts.points[
        np.searchsorted(np.cumsum(best[0]), np.array([0.25, 0.75]) * best.sum()).clip(max=len(best[0]) - 1)
    ]
    start = np.clip(start * [0.98, 1.0], 1e-6, 1 - 1e-6)  # equal ones would stay equal
    centres, shares = np.tile(start, (len(weights), 1)), np.full((len(weights), 2), 0.5)
    for step in range(_GROUP_STEPS + 1):
        log = x[:, None] * np.log(centres[:, None]) + (n - x)[:, None] * np.log1p(-centres[:, None])
        part = shares[:, None] * np.exp(np.clip(log - counts.log_largest[:, None], -80, 80))
        total = part.sum(axis=2)
        if step == _GROUP_STEPS:
            break
        member = weights[:, :, None] * part / np.maximum(total, 1e-300)[:, :, None]
        shares = np.maximum(member.sum(axis=1), 1e-12)
        hits, tries = np.einsum("rug,u->rg", member, x), np.einsum("rug,u->rg", member, n)
        centres = np.clip(hits / np.maximum(tries, 1e-12), 1e-6, 1 - 1e-6)
    lost = 2 * (counts.log_likelihood(best @ counts.likelihood.T) - counts.log_likelihood(total))
    fits = lost <= 2 * _LIKELIHOOD_FACTOR * normal_quantile(confidence) ** 2
    # Draws in which a group that the data show has vanished are left out.
    near = np.flatnonzero(fits[1:]) + 1
    if not (fits[0] and len(near)):
        return []
    order = np.argsort(centres, axis=1)
    centres, shares = (np.take_along_axis(each, order, axis=1)[near] for each in (centres, shares))
    return [_measures_of_distributions(shares, centres, centres[:, 0], int(counts.classes.sum()))]


def _measures(accuracy: FloatArray) -> FloatArray:
    """Return ``MEASURES`` of sorted accuracies ``[B, K]`` as ``[B, 7]``."""
    count = accuracy.shape[1]
    easy, medium, hard = tier_sizes(count)
    thirds = np.full((3, len(accuracy)), np.nan)
    for row, (start, size) in enumerate(((hard + medium, easy), (hard, medium), (0, hard))):
        if size:
            thirds[row] = accuracy[:, start : start + size].mean(axis=1)
    ranks = 2 * np.arange(1, count + 1) - count - 1
    unequal = (accuracy @ ranks) / np.maximum(count * accuracy.sum(axis=1), 1e-12)
    columns = [*thirds, accuracy[:, 0], thirds[0] - thirds[2], accuracy.std(axis=1), unequal]
    return np.stack(columns, axis=1)


def _measures_of_distributions(found: FloatArray, points: FloatArray, worst: FloatArray, count: int) -> FloatArray:
    """Return ``MEASURES`` of distributions ``[R, M]`` over ascending points ``[R or 1, M]``, of which ``worst`` ``[R]`` are the lowest."""
    found = found / found.sum(axis=1, keepdims=True)
    below = np.cumsum(found, axis=1)
    mean = (found * points).sum(axis=1)
    easy, medium, hard = (size / count for size in tier_sizes(count))

    def part(start: float, size: float) -> FloatArray:
        if not size:
            return np.full(len(found), np.nan)
        inside = np.clip(below, start, start + size)
        return np.asarray((np.diff(inside, prepend=start, axis=1) * points).sum(axis=1) / size)

    thirds = part(hard + medium, easy), part(hard, medium), part(0.0, hard)
    deviation = np.sqrt(np.maximum((found * points**2).sum(axis=1) - mean**2, 0))
    pairs = (below[:, :-1] * (1 - below[:, :-1]) * np.diff(points, axis=1)).sum(axis=1)
    return np.stack([*thirds, worst, thirds[0] - thirds[2], deviation, pairs / np.maximum(mean, 1e-12)], axis=1)
