"""A subsample of features that does not depend on order or on how samples are divided among processes.

Every sample gets a priority from a hash of its identity; those with the smallest priorities are kept.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from classmargin.evaluation.inputs import AnyArray, IntArray

Priorities = NDArray[np.uint64]


class KeptFeatures:
    """At most ``limit`` feature rows with the smallest priorities so far.

    Args:
        limit: How many rows are kept.
        seed: Seed of the priorities.
    """

    def __init__(self, limit: int, seed: int) -> None:
        self.limit = limit
        self.seed = seed
        self.features: AnyArray | None = None
        self.positions: IntArray = np.zeros(0, dtype=np.int64)
        self.priorities: Priorities = np.zeros(0, dtype=np.uint64)

    def add(self, features: AnyArray, sample_id: AnyArray | None, *, first: int) -> None:
        """Look at rows ``[B, d]`` whose positions start at ``first``."""
        positions = first + np.arange(len(features))
        self.keep(
            features, positions, priorities_of(positions if sample_id is None else sample_id, self.seed)
        )

    def merge(self, other: KeptFeatures, *, shift: int) -> None:
        """Take rows of another subsample whose positions come ``shift`` later."""
        if other.features is not None:
            self.keep(other.features, other.positions + shift, other.priorities)

    def rows(self) -> tuple[AnyArray, IntArray] | None:
        """Return the kept features ``[M, d]`` and their positions, in order of position."""
        if self.features is None or not len(self.positions):
            return None
        order = np.argsort(self.positions, kind="stable")
        return self.features[order], self.positions[order]

    def keep(self, features: AnyArray, positions: IntArray, priorities: Priorities) -> None:
        """Keep those of the given rows whose priorities are among the smallest."""
        if self.features is None:
            self.features = np.zeros((0, features.shape[1]), dtype=np.float32)
        together = np.concatenate([self.priorities, priorities])
        kept = np.sort(np.argsort(together, kind="stable")[: self.limit])
        old, new = (
            kept[kept < len(self.priorities)],
            kept[kept >= len(self.priorities)] - len(self.priorities),
        )
        self.features = np.concatenate([self.features[old], features[new].astype(np.float32)])
        self.positions = np.concatenate([self.positions[old], positions[new]])
        self.priorities = together[kept]


def priorities_of(identities: AnyArray, seed: int) -> Priorities:
    """Return a well-mixed 64-bit number for every identity (splitmix64 of the number, or of the text's checksum).

    Example:
        >>> int(priorities_of(np.array([0]), 0)[0])
        16294208416658607535
    """
    if identities.dtype.kind in "US":
        numbers = np.array([zlib.crc32(str(text).encode()) for text in identities.tolist()], dtype=np.uint64)
    else:
        numbers = identities.astype(np.uint64)
    mixed = numbers + np.uint64((0x9E3779B97F4A7C15 * (seed + 1)) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
