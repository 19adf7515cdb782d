"""All randomness of the input pipeline is a pure function of named numbers.

A stream is addressed by (seed, epoch, step, view, position), so that a run resumed at any step, with any
number of workers or processes, draws exactly what the uninterrupted run drew. Nothing touches the global
random states.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What the numbers are for; two purposes never share a stream."""

    SUBSET = 1
    HOLD_OUT = 2
    ORDER = 3
    CROP = 4
    POLICY = 5
    DECODE = 6
    SYNTHETIC = 7


def stream(
    purpose: Purpose, *, seed: int = 0, epoch: int = 0, step: int = 0, view: int = 0, position: int = 0
) -> np.random.Generator:
    """Return the random stream at one address.

    Example:
        >>> a, b = stream(Purpose.CROP, seed=1, step=3), stream(Purpose.CROP, seed=1, step=3)
        >>> bool(a.random() == b.random())
        True
    """
    # Always the same number of words: SeedSequence pads with zeros, so (1,) and (1, 0) would be one stream.
    return np.random.default_rng([int(purpose), seed, epoch, step, view, position])
