"""Ratios that mean something on a noisy machine: interleaved calls, medians, one thread."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable


def interleaved_medians(
    calls: dict[str, Callable[[int], object]],
    *,
    rounds: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each call; all are called once in every round, so noise hits them alike.

    The order is drawn anew in each round: a call pays for the caches that the one before it has filled with something else.
    """
    for call in calls.values():
        for index in range(warmup):
            call(index)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    for index in range(rounds):
        for name, call in order.sample(list(calls.items()), len(calls)):
            start = clock()
            call(index)
            seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def paired_ratio(
    base: Callable[[], object], other: Callable[[], object], *, rounds: int, warmup: int = 2
) -> tuple[float, float, float]:
    """Return the median seconds of both calls and the median over rounds of ``other / base``.

    For long calls that differ by little: the clock of a shared machine drifts by more than the difference from one
    minute to the next, but not within a round; who goes first changes every round.
    """
    for _ in range(warmup):
        base(), other()
    seconds: list[tuple[float, float]] = []
    for index in range(rounds):
        order = (base, other) if index % 2 == 0 else (other, base)
        taken = []
        for call in order:
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
        seconds.append((taken[0], taken[1]) if index % 2 == 0 else (taken[1], taken[0]))
    ratio = statistics.median(second / first for first, second in seconds)
    return statistics.median(s[0] for s in seconds), statistics.median(s[1] for s in seconds), ratio
