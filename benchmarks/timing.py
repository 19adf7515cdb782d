"""Ratios that mean something on a noisy machine: interleaved calls, medians, one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved_medians(
    calls: dict[str, Callable[[int], object]], *, rounds: int, warmup: int = 3
) -> dict[str, float]:
    """Return the median seconds of each call; all are called once in every round, so noise hits them alike."""
    for call in calls.values():
        for index in range(warmup):
            call(index)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call(index)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
