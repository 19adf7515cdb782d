"""Learning rate as a pure function of the position in a stage: nothing to save, nothing to drift on resume.

With ``t`` the optimiser step in the stage, ``W`` the steps of warm-up, ``T`` the steps of the stage and ``η``
the peak::

    t < W      η · (start + (1 − start) · (t + 1) / W)
    cosine     min + (η − min) · (1 + cos(π · (t − W) / (T − W))) / 2
    step       η · factor^(milestones passed)
    constant   η
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from classmargin.training.config import ScheduleConfig

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig, *, peak: float, epochs: int, steps_per_epoch: int) -> Schedule:
    """Return the learning rate of each optimiser step of a stage (0-based).

    Args:
        config: Name and shape.
        peak: Largest learning rate.
        epochs: Length of the stage.
        steps_per_epoch: Optimiser steps in an epoch.

    Example:
        >>> rate = make_schedule(ScheduleConfig("cosine"), peak=1.0, epochs=2, steps_per_epoch=5)
        >>> rate(0), round(rate(5), 6)
        (1.0, 0.5)
    """
    total = max(1, epochs * steps_per_epoch)
    warmup = config.warmup_steps or round(config.warmup_epochs * steps_per_epoch)
    # A warm-up longer than the whole stage (a smoke run of a paper preset) would never reach the peak.
    warmup = min(warmup, total // 2)
    body = _BODIES[config.name](config, peak, total, warmup, steps_per_epoch)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (config.warmup_start + (1.0 - config.warmup_start) * (step + 1) / warmup)
        return body(step)

    return rate


def _cosine(config: ScheduleConfig, peak: float, total: int, warmup: int, steps_per_epoch: int) -> Schedule:
    def rate(step: int) -> float:
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return config.minimum + (peak - config.minimum) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return rate


def _step(config: ScheduleConfig, peak: float, total: int, warmup: int, steps_per_epoch: int) -> Schedule:
    milestones = sorted(config.milestones)
    return lambda step: peak * config.factor ** bisect_right(milestones, step // steps_per_epoch)


def _constant(config: ScheduleConfig, peak: float, total: int, warmup: int, steps_per_epoch: int) -> Schedule:
    return lambda step: peak


_BODIES = {"cosine": _cosine, "step": _step, "constant": _constant}
