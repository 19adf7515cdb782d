"""How many samples and seeds it takes to see a drop: the power of the gate, and plans before a test set is collected."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from classmargin._checks import check_int, check_number
from classmargin.evaluation.input_checks import IntArray, check_fraction
from classmargin.evaluation.intervals import normal_quantile
from classmargin.evaluation.paired_tests import chance_of_few_gains, likeliest_gain, margin_p_values

POWER = 0.8
# Up to this many samples the region in which the gate fails is exact; above it is that of the normal distribution.
_EXACT_SAMPLES = 150
_MOST_SAMPLES = 10_000_000
_CHECKED_SAMPLES = 20_000


def catch_probability(drop: float, n: int, *, churn: float, max_drop: float, level: float) -> float:
    """Return the probability that the gate catches a true drop in one class.

    A class fails if the test of "the true drop is at most ``max_drop``" is at or below ``level``. Each sample is lost with probability
    ``churn / 2 + drop`` and gained with ``churn / 2``, independently.
    """
    gain = min(churn / 2, max(1 - drop, 0.0) / 2)
    most = np.array(_largest_gain_still_caught(n, max_drop, level))
    return chance_of_few_gains(most, gain, min(gain + drop, 1 - gain))


def smallest_caught_drop(n: int, *, churn: float, max_drop: float, level: float) -> float:
    """Return the smallest drop (in steps of half a point) that is caught with probability ``POWER``, NaN if none is."""
    steps = range(1, 201)
    options = {"churn": churn, "max_drop": max_drop, "level": level}
    # The probability grows with the drop, so halving finds the first step that reaches it.
    first = bisect_left(steps, POWER, key=lambda step: catch_probability(step / 200, n, **options))
    return steps[first] / 200 if first < len(steps) else float("nan")


@lru_cache(maxsize=64)
def _largest_gain_still_caught(n: int, max_drop: float, level: float) -> tuple[int, ...]:
    """For each number of lost samples, return how many gained samples still let the class fail (-1: none)."""
    lost = np.arange(n + 1)
    z = -NormalDist().inv_cdf(level)

    def fails(gained: IntArray) -> IntArray:
        if n <= _EXACT_SAMPLES or max_drop == 0:
            return np.asarray(margin_p_values(gained, lost, np.full(n + 1, n), max_drop) <= level)
        gain = likeliest_gain(gained, lost, n, max_drop)
        deviation = np.sqrt(np.maximum(n * (2 * gain + max_drop * (1 - max_drop)), 1e-12))
        return np.asarray(lost - gained - n * max_drop >= z * deviation)

    # Every gained sample weakens the evidence, so the largest number is found by halving.
    low, high = np.full(n + 1, -1), np.minimum(lost, n - lost)
    while (low < high).any():
        middle = (low + high + 1) // 2
        failed = fails(np.maximum(middle, 0))
        low, high = np.where(failed, middle, low), np.where(failed, high, middle - 1)
    return tuple(low.tolist())


def samples_for_drop(see: float, *, churn: float, max_drop: float, level: float, power: float = POWER) -> int:
    """Return the samples per class from which a gate catches a true drop of ``see`` with the given probability.

    By the normal distribution, and for test sets of ordinary size raised until the exact test has the power.
    """
    extra = see - max_drop
    alone = math.sqrt(churn + see - max_drop**2)  # of one sample, as the test sees it: so many change sides
    there = math.sqrt(churn + see - see**2)
    quantiles = -NormalDist().inv_cdf(level) * alone + NormalDist().inv_cdf(power) * there
    n = min(_MOST_SAMPLES, max(1, math.ceil((quantiles / extra) ** 2)))
    # The exact test needs a little more.
    options = {"churn": churn, "max_drop": max_drop, "level": level}
    while n < _CHECKED_SAMPLES and catch_probability(see, n, **options) < power:
        n += max(1, n // 40)
    return n


def seeds_for_difference(see: float, run_deviation: float, *, alpha: float = 0.05, power: float = POWER) -> int:
    """Return the runs of each of two methods after which a t-test sees a difference of their means."""
    from scipy.special import nctdtr, stdtrit

    for runs in range(2, 100_000):
        freedom = 2 * runs - 2
        shift = see / run_deviation * math.sqrt(runs / 2)
        if 1 - nctdtr(freedom, shift, stdtrit(freedom, 1 - alpha / 2)) >= power:
            return runs
    return 100_000


@dataclass(frozen=True)
class Plan:
    """What it takes to see a difference."""

    interval_samples: int  # samples per class for an interval of a class accuracy of plus or minus see
    gate_samples: (
        int  # samples per class for a gate that catches a true drop of see in one class with probability power
    )
    seeds: int  # runs of each method for a comparison that sees a difference of see in one headline number
    notes: tuple[str, ...]  # what was assumed


def plan(
    num_classes: int,
    *,
    accuracy: float = 0.8,
    see: float = 0.03,
    max_drop: float = 0.0,
    churn: float | None = None,
    run_deviation: float = 0.01,
    alpha: float = 0.05,
    power: float = POWER,
) -> Plan:
    """Return the samples per class and the seeds that are needed to see ``see``."""
    check_int("num_classes", num_classes, minimum=1)
    for name, value in (("accuracy", accuracy), ("see", see), ("alpha", alpha), ("power", power)):
        check_fraction(name, value)
    check_number("max_drop", max_drop, minimum=0.0, maximum=1.0)
    check_number("run_deviation", run_deviation, above=0.0)
    if max_drop >= see:
        raise ValueError(f"max_drop must be below see, got {max_drop:g} and {see:g}")
    moved = (1 - accuracy) / 2 if churn is None else check_number("churn", churn, minimum=0.0, maximum=1.0)
    level = alpha / (num_classes + 1)
    return Plan(
        interval_samples=math.ceil(accuracy * (1 - accuracy) * (normal_quantile(0.95) / see) ** 2),
        gate_samples=samples_for_drop(see, churn=moved, max_drop=max_drop, level=level, power=power),
        seeds=seeds_for_difference(see, run_deviation, alpha=alpha, power=power),
        notes=(
            f"Gate: {num_classes + 1} tests, {100 * alpha:g} % error rate in all; {100 * moved:g} % of samples change sides by chance.",
            f"Seeds: the number varies by {100 * run_deviation:g} points (standard deviation) from run to run; measure it on the baseline.",
            f"Probability of seeing it: {power:g}.",
        ),
    )
