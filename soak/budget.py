"""Time that is really over when it is over: an alarm ends whatever waits, and what was begun is stopped.

A part of the harness that the alarm ends is *cut short*: what it did not get to is neither a broken promise nor a
kept one, and the numbers say so.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType


class OutOfTimeError(Exception):
    """The time of a part is used up."""


@contextlib.contextmanager
def time_until(deadline: float) -> Iterator[None]:
    """Raise :class:`OutOfTimeError` in the block when ``time.monotonic()`` reaches ``deadline``; main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        # Rings again should the first alarm end nothing but a clean-up in a library.
        signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - time.monotonic()), 5.0)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def no_more_alarms() -> None:
    """Leave a part that was ended by the clock the moment it needs to write down what it has."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def share(weights: dict[str, float], name: str, names: list[str], left: float) -> float:
    """Return the seconds for a part: its share of what is left, so that a slow part does not cost the later ones.

    Example:
        >>> share({"a": 1.0, "b": 3.0}, "a", ["a", "b"], 100.0)
        25.0
    """
    return left * weights[name] / sum(weights[later] for later in names[names.index(name) :])
