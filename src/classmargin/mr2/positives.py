"""Classmates beyond the batch: a small memory of recent features, and a closed form that needs no pairs.

With B = 128 and K = 1000 only 12 % of the samples have a classmate in the batch. Three ways to find positives:

========== ============================== ========================= ==========================================
choice     pairs                          extra cost                bias against Eq. 2 over the training set
========== ============================== ========================= ==========================================
batch      classmates in the batch        O(pairs·d)                most anchors have none when K is large
memory     batch + ring of M per class    O(B·M·d), buffer [K,M,d]  stored features lag behind the network
moments    none: class mean and spread    O(B·d)                    one average positive; below the pair form
                                                                    by Jensen's inequality
========== ============================== ========================= ==========================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from classmargin._distributed import gather_rows
from classmargin.mr2.class_groups import Groups, uses_dense_layout
from classmargin.mr2.class_statistics import ClassStatistics
from classmargin.mr2.full_precision import FullPrecisionModule, new_buffer
from classmargin.mr2.representation_margin import NO_PAIR, log_one_plus_sum_exp, pair_losses


class FeatureMemory(FullPrecisionModule):
    """A ring of the ``M`` most recent detached features of each class.

    Args:
        num_classes: ``K``.
        size: ``M``.

    Example:
        >>> memory = FeatureMemory(2, size=1)
        >>> memory.store(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]))
        >>> memory.ring[0], memory.filled
        (tensor([[2.]]), tensor([1, 0]))
    """

    ring: Tensor
    filled: Tensor
    cursor: Tensor

    def __init__(self, num_classes: int, size: int) -> None:
        super().__init__()
        self.num_classes, self.size = num_classes, size
        self.register_buffer("ring", torch.zeros(num_classes, size, 0))
        self.register_buffer("filled", torch.zeros(num_classes, dtype=torch.long))
        self.register_buffer("cursor", torch.zeros(num_classes, dtype=torch.long))

    def take_shape(self, rows: Tensor) -> None:
        """Give the ring its feature size and precision at the first batch."""
        if self.ring.shape[2] == 0:
            self.ring = new_buffer(self.ring, self.num_classes, self.size, rows.shape[1])
        if rows.dtype == torch.float64 and self.ring.dtype != torch.float64:
            self.ring = self.ring.double()

    def exponents(
        self, features: Tensor, labels: Tensor, mean_spread: Tensor, temperature: Tensor | float
    ) -> Tensor:
        """Return the exponents of Eq. 2 against the stored classmates, ``[B, M]``; empty places count nothing."""
        self.take_shape(features)
        stored = self.ring.index_select(0, labels).to(features.dtype)
        distances = (features.unsqueeze(1) - stored).square().sum(2)
        empty = torch.arange(self.size, device=features.device) >= self.filled.index_select(
            0, labels
        ).unsqueeze(1)
        return ((distances - 2.0 * mean_spread) / temperature).masked_fill(empty, NO_PAIR)

    @torch.no_grad()
    def store(self, rows: Tensor, labels: Tensor, row_weight: Tensor | None = None) -> None:
        """Put the rows of a batch into the rings, oldest out first; static shapes, no loop over classes."""
        dense = uses_dense_layout(rows)
        if row_weight is not None:
            keep = row_weight > 0
            if dense:  # sent past the last class, where nothing is kept
                labels = torch.where(keep, labels, self.num_classes)
            else:
                rows, labels = rows[keep], labels[keep]
        if labels.numel() == 0:
            return
        self.take_shape(rows)
        order = torch.argsort(labels, stable=True)
        classes = labels[order]
        counts = torch.zeros(self.num_classes + 1, dtype=torch.long, device=labels.device)
        counts.index_add_(0, classes, torch.ones_like(classes))
        everyone = torch.arange(classes.shape[0], device=labels.device)
        place = everyone - (torch.cumsum(counts, 0) - counts)[classes]
        # More rows of a class than places: every row that shares a place takes the value of the last of them.
        last = place + self.size * torch.div(counts[classes] - 1 - place, self.size, rounding_mode="floor")
        values = rows[order[everyone + last - place]].to(self.ring.dtype)
        cursor = torch.cat((self.cursor, self.cursor.new_zeros(1)))
        target = classes * self.size + (cursor[classes] + place) % self.size
        flat = self.ring.view(-1, self.ring.shape[2])
        if dense:
            spare = flat.new_zeros(self.size, flat.shape[1])
            flat.copy_(torch.cat((flat, spare)).index_copy(0, target, values)[: flat.shape[0]])
        else:
            flat.index_copy_(0, target, values)
        self.filled.copy_((self.filled + counts[:-1]).clamp_max(self.size))
        self.cursor.copy_((self.cursor + counts[:-1]) % self.size)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        saved = state_dict.get(f"{prefix}ring")
        if isinstance(saved, Tensor) and saved.dim() == 3:
            if self.ring.shape[2] == 0:
                self.ring = torch.zeros_like(saved, device=self.ring.device)
            elif saved.shape[2] == 0:  # saved before the first batch
                state_dict[f"{prefix}ring"] = torch.zeros_like(self.ring)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def classmate_losses(
    rows: Tensor,
    labels: Tensor,
    mean_spread: Tensor,
    temperature: Tensor | float,
    groups: Groups | None,
    row_weight: Tensor | None,
    memory: FeatureMemory | None,
    synchronize: bool,
) -> Tensor:
    """Return Eq. 2 of each row ``[B]`` against its classmates: in the batch (of all processes), and in the memory if there is one."""
    every, every_label, every_weight, start = rows, labels, row_weight, 0
    if synchronize:
        (every, start), groups = gather_rows(rows), None
        every_label = gather_rows(labels)[0]
        every_weight = None if row_weight is None else gather_rows(row_weight)[0]
    losses = pair_losses(every, every_label, mean_spread, temperature, groups, every_weight)
    losses = losses[start : start + rows.shape[0]] if synchronize else losses
    if memory is None or labels.is_floating_point():
        return losses
    stored = log_one_plus_sum_exp(memory.exponents(rows, labels, mean_spread, temperature))
    # ln(1 + A + B) from ln(1 + A) and ln(1 + B), without overflow
    top = torch.maximum(losses, stored).detach()
    return top + torch.log((losses - top).exp() + (stored - top).exp() - (-top).exp())


def moment_losses(
    features: Tensor,
    labels: Tensor,
    statistics: ClassStatistics,
    mean_spread: Tensor,
    temperature: Tensor | float,
) -> Tensor:
    """Return ``ln[1 + exp((‖φ - μ̂_y‖² + ‖ŝ_y‖² - 2 s̄) / τ)]`` per row, ``[B]``.

    ``‖φ - μ̂_y‖² + ‖ŝ_y‖²`` is the expected squared distance of ``φ`` to a classmate, so this is Eq. 2 with one average positive. By
    Jensen's inequality it lies below the mean of the pair form over that positive. Soft labels mix the distances. A class
    that has not been seen has no classmates, and no pull.
    """
    mean, spread = statistics.class_mean.to(features.dtype), statistics.class_spread.to(features.dtype)
    if labels.is_floating_point():
        target = labels.to(features.dtype)
        distance = features.square().sum(1) - 2.0 * (features * (target @ mean)).sum(1)
        distance = distance + target @ (mean.square().sum(1) + spread)
        known = target @ statistics.seen.to(features.dtype)
    else:
        distance = (features - mean.index_select(0, labels)).square().sum(1) + spread.index_select(0, labels)
        known = statistics.seen.index_select(0, labels).to(features.dtype)
    return known * soft_excess(distance, mean_spread, temperature)


def soft_excess(distance: Tensor, mean_spread: Tensor | float, temperature: Tensor | float) -> Tensor:
    """Return ``ln[1 + exp((distance - 2 s̄) / τ)]``, Eq. 2 with one positive at that squared distance."""
    exponent = (distance - 2.0 * mean_spread) / temperature
    return torch.logaddexp(exponent, torch.zeros_like(exponent))
