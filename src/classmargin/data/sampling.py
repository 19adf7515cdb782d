"""Which samples are trained on, which choose models, which judge, and in which order they come.

A random stream is addressed by (seed, epoch, step, view, position), so that a run resumed at any step, with any number of
workers or processes, draws exactly what the uninterrupted run drew. Nothing touches the global random states.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from torch import Tensor

from classmargin.data.raw import IntArray


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
    """Return the random stream at one address."""
    # Always the same number of words: SeedSequence pads with zeros, so (1,) and (1, 0) would be one stream.
    return np.random.default_rng([int(purpose), seed, epoch, step, view, position])


def hold_out_rows(labels: IntArray, share: float, *, num_classes: int, part: int = 0) -> tuple[IntArray, IntArray]:
    """Split rows into kept and held-out ones, ascending, whatever the seed; each ``part`` (0 validation, 1 test) holds out others.

    With a positive ``share`` every class of two or more samples gives at least one and keeps at least one.
    """
    kept, held_out = [], []
    for rows in _rows_of_classes(labels, num_classes, stream(Purpose.HOLD_OUT, step=part)):
        count = 0 if share == 0.0 else max(min(max(round(share * len(rows)), 1), len(rows) - 1), 0)
        held_out.append(rows[:count])
        kept.append(rows[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def subset_rows(
    labels: IntArray, *, num_classes: int, fraction: float = 1.0, imbalance: float = 1.0, seed: int = 0
) -> IntArray:
    """Return the rows that stay, ascending: a share of every class (a larger one contains it), then the long tail."""
    classes = _rows_of_classes(labels, num_classes, stream(Purpose.SUBSET, seed=seed))
    classes = [rows[: max(round(fraction * len(rows)), min(1, len(rows)))] for rows in classes]
    if imbalance > 1.0:
        counts = long_tail_counts(max(len(rows) for rows in classes), num_classes, imbalance)
        classes = [rows[:count] for rows, count in zip(classes, counts, strict=True)]
    return np.sort(np.concatenate(classes))


def long_tail_counts(largest: int, num_classes: int, imbalance: float) -> IntArray:
    """Return how many samples each class keeps, ``[K]``: ``n_k = n_max * R^(-k / (K - 1))``, rounded down, at least 1."""
    position = np.arange(num_classes) / max(num_classes - 1, 1)
    # A tiny amount is added because 500 * 0.01 ** 1.0 may come out as 4.999999999.
    counts = np.floor(largest * float(imbalance) ** -position + 1e-9).astype(np.int64)
    return np.maximum(counts, 1)


def _rows_of_classes(labels: IntArray, num_classes: int, random: np.random.Generator) -> list[IntArray]:
    """Return the rows of each class in one random order per class."""
    shuffled = random.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    ends = np.cumsum(np.bincount(labels, minlength=num_classes))
    return np.split(by_class, ends[:-1])


class InOrder:
    """Every row once, in order; the last batch may be smaller. For evaluation."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._batches = [np.arange(k, min(k + batch_size, count)) for k in range(0, count, batch_size)]
        self.steps = len(self._batches)

    def plan(self, epoch: int) -> list[IntArray]:
        """Return consecutive rows, the same in every epoch."""
        return self._batches


class Shuffled:
    """Every row once (or as often as ``rows`` repeats it) in a new order each epoch; an incomplete last batch is left out."""

    def __init__(self, rows: IntArray, batch_size: int, *, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self.steps = max(len(rows) // batch_size, 1)

    def plan(self, epoch: int) -> list[IntArray]:
        """Return the order of one epoch, cut into batches."""
        order = stream(Purpose.ORDER, seed=self._seed, epoch=epoch).permutation(self._rows)
        return [order[step * self._batch_size : (step + 1) * self._batch_size] for step in range(self.steps)]


class ClassBalanced:
    """Batches of ``P = batch_size / M`` slots, each of ``M`` samples of one class side by side (P x M sampling).

    All classes come equally often, none twice in a batch as long as ``P <= K``. The samples of a class are visited in random
    rounds; only classes with fewer than ``M = samples_per_class`` samples repeat one inside a slot.
    """

    def __init__(self, rows: IntArray, labels: IntArray, *, batch_size: int, samples_per_class: int, seed: int) -> None:
        if batch_size % samples_per_class:
            needed = f"a multiple of samples_per_class={samples_per_class} for the class-balanced sampler"
            raise ValueError(f"batch_size must be {needed}, got {batch_size}")
        self._members = [rows[labels == label] for label in np.unique(labels)]
        self._per_class, self._slots, self._seed = samples_per_class, batch_size // samples_per_class, seed
        self.steps = max(len(rows) // batch_size, 1)

    def plan(self, epoch: int) -> list[IntArray]:
        """Return the batches of one epoch, all of full size."""
        random = stream(Purpose.ORDER, seed=self._seed, epoch=epoch)
        classes = self._class_of_slots(random)
        slots = np.empty((len(classes), self._per_class), dtype=np.int64)
        for number, members in enumerate(self._members):
            places = np.flatnonzero(classes == number)
            slots[places] = _rounds_of(members, self._per_class, len(places), random)
        return list(slots.reshape(self.steps, -1))

    def _class_of_slots(self, random: np.random.Generator) -> IntArray:
        """Return the class of each slot of the epoch: random rounds of classes, no repeat in a batch."""
        total, count = self.steps * self._slots, len(self._members)
        order: list[int] = []
        while len(order) < total:
            fresh = random.permutation(count).tolist()
            begun = len(order) % self._slots
            if begun and self._slots <= count:
                # The batch at the seam first takes classes that it does not have yet.
                taken = set(order[-begun:])
                free = [label for label in fresh if label not in taken][: self._slots - begun]
                fresh = free + [label for label in fresh if label not in set(free)]
            order.extend(fresh)
        return np.array(order[:total], dtype=np.int64)


def _rounds_of(members: IntArray, per_slot: int, slots: int, random: np.random.Generator) -> IntArray:
    """Return ``[slots, per_slot]`` members in random rounds, no member twice in a slot if possible."""
    if len(members) < per_slot:
        repeats = -(-per_slot // len(members))
        drawn = [np.tile(random.permutation(members), repeats)[:per_slot] for _ in range(slots)]
        return np.array(drawn, dtype=np.int64).reshape(slots, per_slot)
    # What does not fill a slot at the end of a round sits this round out; each round leaves out others.
    slots_per_round = len(members) // per_slot
    rounds = -(-slots // slots_per_round)
    parts = [random.permutation(members)[: slots_per_round * per_slot] for _ in range(rounds)]
    order = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return order[: slots * per_slot].reshape(slots, per_slot)


Sampler = InOrder | Shuffled | ClassBalanced


def repeated_rows(count: int, multiplicity: Tensor | None, index: Tensor, full_size: int) -> IntArray:
    """Return the rows of a split as often as its multiplicity says: one for each row, or each position of the full set."""
    if multiplicity is None:
        return np.arange(count, dtype=np.int64)
    if multiplicity.is_floating_point() or multiplicity.dim() != 1 or multiplicity.shape[0] not in (count, full_size):
        found = f"{multiplicity.dtype} of shape {tuple(multiplicity.shape)}"
        raise ValueError(f"multiplicity must hold integers of shape ({count},) or ({full_size},), got {found}")
    # With both lengths equal the split is the whole set in order, and both readings agree.
    times = multiplicity if multiplicity.shape[0] == count else multiplicity[index]
    if int(times.min()) < 0 or int(times.sum()) == 0:
        raise ValueError("multiplicity must be non-negative and positive somewhere")
    return np.repeat(np.arange(count, dtype=np.int64), times.cpu().numpy())
