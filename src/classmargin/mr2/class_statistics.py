"""Statistics of the features of each class, and their moving average over batches.

Symbols (paper, section 3): class mean ``μ̂_k``, mean squared deviation ``‖ŝ_k‖²`` (*spread*, always L2), mean squared Lp
norm ``r²_{k,p} = mean ‖φ‖_p²`` (*sqnorm*), ``s̄ = mean_k ‖ŝ_k‖²`` over the classes seen. For p = 2, ``r² = ‖μ̂‖² + ‖ŝ‖²``.

Data flow of one update: features, labels -> groups -> sums per class (all-reduced over processes) -> moving average.

Two estimators:

* ``"moments"`` keeps, per class, count-weighted moving averages of the mean *vector* and of squared deviations around
  it. With one or two samples of a class in a batch the spread is still right (the batch estimate loses the factor
  ``(n-1)/n``: 0.29 of the truth at B = 128, K = 100). Deviations are taken from the running mean, so nothing cancels when
  the spread is small against the mean.
* ``"batch"`` is the paper to the letter: moving averages of the two *scalars* ``‖mean of the batch‖²`` and mean squared
  deviation from it. ``r²`` is unbiased, the spread is not.

A class's average moves only when the class occurs; its first sight assigns. The moments' averages are ratios of two
moving sums, hence bias-corrected from the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin._checks import check_choice, check_floating, check_int, check_number
from classmargin._distributed import all_reduce_sum, is_distributed
from classmargin.mr2.batch_table import BatchTable
from classmargin.mr2.class_groups import (
    CompactGroups,
    DenseGroups,
    Groups,
    class_sums,
    group_compact,
    group_dense,
    uses_dense_layout,
)
from classmargin.mr2.class_moments import squared_norm
from classmargin.mr2.class_separation import class_separation, relative_spread
from classmargin.mr2.full_precision import FullPrecisionModule, new_buffer
from classmargin.mr2.logit_margin import at_least_float32, check_targets
from classmargin.mr2.whole_set import fit_statistics

Estimator = Literal["moments", "batch"]
SqnormForm = Literal["norm", "mean_plus_deviation"]
OVERALL_EVERY = 10
Array = TypeVar("Array", Tensor, NDArray[Any])


def merge_scalars(old: Array, count: Array, sums: Array, decay: float) -> tuple[Array, Array, Array]:
    """Mix the sums of a batch into count-weighted moving averages; the same code for tensors and NumPy arrays.

    Args:
        old: Weight and averages so far, ``[1 + n, S]``; weight 0 = never seen, and then the batch is all there is.
        count: Samples in the batch ``[S]``, positive.
        sums: Their sums ``[n, S]``.
        decay: Weight of the past.

    Returns:
        New weight ``[S]``, new averages ``[n, S]``, and the weight of one new sample in them ``[S]``.
    """
    past = old[0] * decay
    weight = past + count * (1.0 - decay)
    share = (1.0 - decay) / weight
    return weight, old[1:] * (past / weight) + sums * share, share


class ClassStatistics(FullPrecisionModule):
    """Moving averages of class statistics, as persistent buffers.

    Args:
        num_classes: ``K``.
        feature_dim: ``d``; None takes it from the first batch or from a loaded state.
        norm_order: ``p >= 1`` of ``class_sqnorm``; the spread is always L2.
        ema_decay: Weight of the past in ``[0, 1)``; 0.9 in the paper.
        estimator: ``"moments"`` or ``"batch"``, see the module text.
        sqnorm_form: ``"norm"`` is the paper's ``r²_{k,p} = mean ‖φ‖_p²``; ``"mean_plus_deviation"`` is what the authors'
            release computes, ``‖mean‖_p² + mean ‖φ - mean‖_p²`` (the same for p = 2), with the spread in the Lp norm too.
            Needs ``estimator="batch"``.
        track_separation: Keep ``class_separation``, too. Needs ``estimator="moments"``, which knows the means.

    Attributes:
        class_mean: ``μ̂_k`` ``[K, d]`` (``[K, 0]`` for ``"batch"``).
        class_scalars: Four rows of ``[K]``, kept together because they move together: effective number of samples
            (0 = never seen), spread, mean squared L2 norm, mean squared Lp norm.
        feature_mean, feature_variance: Mean and ``mean ‖φ - mean φ‖²`` over all samples, moving, ``[d]`` and
            scalar; the first ``OVERALL_EVERY`` batches count, then every ``OVERALL_EVERY``-th.
        feature_weight: Their accumulated weight, for the bias correction, scalar.
        class_separation: Squared distance of each class mean to the nearest other one ``[K]``
            (:mod:`classmargin.mr2.class_separation`); only if tracked. Renewed by the first ``OVERALL_EVERY`` batches,
            then by every ``separation_every``-th.
        updates: Batches (with at least one row) so far.

    Example:
        >>> statistics = ClassStatistics(3)
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> statistics.update(phi, torch.tensor([0, 1, 2, 0]))
        >>> statistics.class_spread, statistics.mean_spread
        (tensor([1., 0., 0.]), tensor(0.3333))
    """

    class_mean: Tensor
    class_scalars: Tensor
    feature_mean: Tensor
    feature_variance: Tensor
    feature_weight: Tensor
    class_separation: Tensor
    updates: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        feature_dim: int | None = None,
        norm_order: float = 2.0,
        ema_decay: float = 0.9,
        estimator: Estimator = "moments",
        sqnorm_form: SqnormForm = "norm",
        track_separation: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.feature_dim = None if feature_dim is None else check_int("feature_dim", feature_dim, minimum=1)
        self.norm_order = check_number("norm_order", norm_order, minimum=1.0, finite=False)
        self.ema_decay = check_number("ema_decay", ema_decay, minimum=0.0, below=1.0)
        self.estimator = check_choice("estimator", estimator, ("moments", "batch"))
        self.sqnorm_form = check_choice("sqnorm_form", sqnorm_form, ("norm", "mean_plus_deviation"))
        if self.sqnorm_form == "mean_plus_deviation" and self.estimator != "batch":
            raise ValueError(
                "sqnorm_form='mean_plus_deviation' needs estimator='batch', got estimator='moments'"
            )
        self.track_separation = bool(track_separation)
        # All pairs of means cost O(K²·d): the more classes, the rarer, so that a step pays O(K·d).
        self.separation_every = OVERALL_EVERY * math.ceil(num_classes / 100)
        if self.track_separation and self.estimator != "moments":
            raise ValueError("track_separation needs estimator='moments', got estimator='batch'")
        self.register_buffer("class_scalars", torch.zeros(4, num_classes))
        self.register_buffer("class_mean", torch.zeros(num_classes, 0))
        self.register_buffer("feature_mean", torch.zeros(0))
        self.register_buffer("feature_variance", torch.zeros(()))
        self.register_buffer("feature_weight", torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        if self.track_separation:
            self.register_buffer("class_separation", torch.full((num_classes,), torch.inf))
        self.overall_moved = True  # whether the last update touched the statistics over all samples
        if feature_dim is not None:
            self.take_shape(feature_dim)

    def extra_repr(self) -> str:
        """Show the arguments in ``print(module)``."""
        return (
            f"num_classes={self.num_classes}, feature_dim={self.feature_dim}, norm_order={self.norm_order:g}, "
            f"ema_decay={self.ema_decay:g}, estimator={self.estimator!r}"
        )

    @property
    def class_weight(self) -> Tensor:
        """Effective number of samples behind each class ``[K]``, 0 = never seen."""
        return self.class_scalars[0]

    @property
    def class_spread(self) -> Tensor:
        """``‖ŝ_k‖²`` ``[K]``."""
        return self.class_scalars[1]

    @property
    def class_sqnorm(self) -> Tensor:
        """``r²_{k,p}`` ``[K]``."""
        return self.class_scalars[3]

    @property
    def class_mean_sqnorm(self) -> Tensor:
        """``‖μ̂_k‖²`` ``[K]``."""
        return (self.class_scalars[2] - self.class_scalars[1]).clamp_min(0.0)

    @property
    def class_relative_spread(self) -> Tensor:
        """``‖ŝ_k‖²`` over the squared distance to the nearest other mean ``[K]``; needs ``track_separation``."""
        return relative_spread(self.class_spread, self.class_separation)

    @property
    def seen(self) -> Tensor:
        """Which classes have been seen, bool ``[K]``."""
        return self.class_scalars[0] > 0

    @property
    def mean_spread(self) -> Tensor:
        """``s̄``: mean of the spread over the classes seen (0 before the first batch), scalar.

        Classes never seen have spread 0, so the sum needs no mask.
        """
        return self.class_scalars[1].sum() / self.seen.sum().clamp_min(1)

    @property
    def total_variance(self) -> Tensor:
        """``mean ‖φ - mean φ‖²`` over all samples: within plus between classes, scalar."""
        return self.feature_variance

    @property
    def spread_ratio(self) -> Tensor:
        """Spread within classes over distance between classes, ``s̄ / (total variance - s̄)``, scalar.

        Near 0: classes are compact against their distance. Large or growing: classes do not separate.
        """
        between = (self.total_variance - self.mean_spread).clamp_min(
            torch.finfo(self.class_scalars.dtype).tiny
        )
        return self.mean_spread / between

    @torch.no_grad()
    def update(
        self, features: Tensor, labels: Tensor, *, row_weight: Tensor | None = None, synchronize: bool = True
    ) -> None:
        """Move the averages by one batch, in place. No gradient flows.

        Args:
            features: ``φ``, shape ``[B, d]``; rows with NaN or inf are left out.
            labels: Classes ``[B]``, or class probabilities ``[B, K]``.
            row_weight: 0 for rows that do not count, 1 otherwise, ``[B]``.
            synchronize: Sum over processes first where ``torch.distributed`` runs.
        """
        check_floating("features", features, dim=2)
        check_targets(labels, batch=features.shape[0], num_classes=self.num_classes, ignore_index=None)
        labels = labels if labels.is_floating_point() else labels.long()
        rows = at_least_float32(features.detach())
        weight = self._finite_rows(rows, row_weight)
        if weight is not None:
            rows = torch.where(weight.unsqueeze(1) > 0, rows, torch.zeros_like(rows))
        self.apply_update(rows, labels, None, weight, synchronize)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Replace the averages by those of a whole data set: for frozen features (:mod:`classmargin.mr2.whole_set`).

        Args:
            batches: Features ``[b, d]`` with classes ``[b]``, each sample once.

        Example:
            >>> statistics = ClassStatistics(2)
            >>> statistics.fit([(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))])
            >>> statistics.class_spread
            tensor([1., 0.])
        """
        fit_statistics(self, batches)

    @staticmethod
    def _finite_rows(rows: Tensor, row_weight: Tensor | None) -> Tensor | None:
        finite = torch.isfinite(squared_norm(rows, 2.0))
        if row_weight is None and not uses_dense_layout(rows) and bool(finite.all()):
            return None
        weight = finite.to(rows.dtype)
        return weight if row_weight is None else weight * row_weight.to(rows.dtype)

    def apply_update(
        self,
        rows: Tensor,
        labels: Tensor,
        groups: Groups | None,
        row_weight: Tensor | None,
        synchronize: bool,
        square: Tensor | None = None,
    ) -> None:
        """Move the averages, without checks and without gradient mode off (the caller sees to both).

        Args:
            rows: Finite, and zero where ``row_weight`` is 0.
            labels: As in :meth:`update`.
            row_weight: As in :meth:`update`.
            synchronize: As in :meth:`update`.
            groups: Groups of ``labels`` where already known.
            square: Squared L2 norms of ``rows`` ``[B]`` where already known.
        """
        rows = self._fitting(rows)
        square = squared_norm(rows, 2.0) if square is None else square.to(rows.dtype)
        synchronize = synchronize and is_distributed()
        if labels.is_floating_point():
            self._update_soft(rows, square, labels, row_weight, synchronize)
        elif self.estimator == "batch" or synchronize or row_weight is not None or uses_dense_layout(rows):
            # Across processes the layout must be the same everywhere, so every class gets its row.
            dense = (
                groups
                if isinstance(groups, DenseGroups)
                else group_dense(labels, self.num_classes, row_weight)
            )
            update = self._update_batch if self.estimator == "batch" else self._update_dense
            update(rows, square, dense, synchronize)
        else:
            compact = groups if isinstance(groups, CompactGroups) else group_compact(labels)
            self._update_compact(rows, square, labels, compact)
        self._update_overall(rows, row_weight, synchronize)

    def apply_table(self, rows: Tensor, labels: Tensor, table: BatchTable) -> None:
        """Do the same for classes ``[B]`` in one process on the CPU, from the table of the batch (uses it up)."""
        if self.estimator == "batch":
            self.apply_update(rows, labels, table.groups, None, False)
            return
        rows = self._fitting(rows)
        means, scalars = self._buffer("class_mean").numpy(), self._buffer("class_scalars").numpy()
        power = None if self.norm_order == 2.0 else self._power_sums(rows, table.groups.labels)
        table.move(means, scalars, self.ema_decay, power)
        self._update_overall_on_host(rows)

    def _fitting(self, rows: Tensor) -> Tensor:
        """Return ``rows`` in the type of the averages, after giving these their size; float64 makes them float64."""
        if rows.shape[1] != self.feature_dim:
            self.take_shape(rows.shape[1])
        dtype = self._buffer("class_scalars").dtype
        if rows.dtype == dtype:
            return rows
        if rows.dtype == torch.float64:
            self.double()  # exact, and keeps float64 experiments in float64
            return rows
        return rows.to(dtype)

    def _update_compact(self, rows: Tensor, square: Tensor, labels: Tensor, groups: CompactGroups) -> None:
        if not len(groups.labels):
            return
        class_mean, scalars, values = self.class_mean, self.class_scalars.numpy(), groups.labels
        count = np.bincount(values, minlength=self.num_classes)
        if not scalars[0].all():
            self._place_first_sight(rows, groups)
        deviation = class_mean.index_select(0, labels)
        torch.sub(rows, deviation, out=deviation)  # in place: a copy of [B, d] costs more than the arithmetic
        sums = np.empty((3, self.num_classes))
        sums[0] = np.bincount(values, squared_norm(deviation, 2.0).numpy(), self.num_classes)
        sums[1] = np.bincount(values, square.numpy(), self.num_classes)
        sums[2] = sums[1] if self.norm_order == 2.0 else self._power_sums(rows, values)
        weight, share = _new_weight(scalars[0], count, self.ema_decay)
        # Squared deviations were taken from the old mean; around the new one they are smaller by ‖shift‖².
        sums[0] -= self._summed_deviation_sqnorm(deviation, sums[0], groups) * share
        sums *= share
        scalars[1:] *= 1.0 - count * share
        scalars[1:] += sums
        np.maximum(scalars[1], 0.0, out=scalars[1])
        scalars[0] = weight
        deviation *= torch.from_numpy(share.take(values).astype(scalars.dtype, copy=False)[:, None])
        class_mean.index_add_(0, labels, deviation)

    def _power_sums(self, rows: Tensor, labels: NDArray[Any]) -> NDArray[Any]:
        squares = squared_norm(rows, self.norm_order).numpy()
        sums: NDArray[Any] = np.bincount(labels, squares, self.num_classes)
        return sums

    def _place_first_sight(self, rows: Tensor, groups: CompactGroups) -> None:
        """Put the mean of a new class at one of its rows: a better place to measure deviations from than the origin."""
        first = groups.order[groups.starts]
        classes = groups.labels[first]
        new = self.class_scalars.numpy()[0, classes] == 0
        place = torch.from_numpy(classes[new])
        self.class_mean.index_copy_(0, place, rows.index_select(0, torch.from_numpy(first[new])))

    def _summed_deviation_sqnorm(
        self, deviation: Tensor, spread: NDArray[Any], groups: CompactGroups
    ) -> NDArray[Any]:
        """Return ``‖Σ_i δ_i‖²`` of each class ``[K]``."""
        if not groups.num_pairs:
            return spread
        total = torch.zeros_like(self.class_mean).index_add_(0, torch.from_numpy(groups.labels), deviation)
        return squared_norm(total, 2.0).numpy()

    def _place_unseen(
        self, rows: Tensor, sums: Callable[[], tuple[Tensor, Tensor]], synchronize: bool
    ) -> None:
        """Put the mean of a class at first sight at its batch mean, so that deviations from it are small.

        Args:
            rows: Features of the batch ``[B, d]``.
            sums: Makes rows and summed features of each class, ``[K]`` and ``[K, d]``; called if a class is unseen.
            synchronize: As in :meth:`update`.
        """
        unseen = self.class_scalars[0] == 0
        if not uses_dense_layout(rows) and not bool(unseen.any()):
            return
        count, total = sums()
        if synchronize:
            count, total = _reduce_together(count, total)
        place = (unseen & (count > 0)).unsqueeze(1)
        self.class_mean.copy_(torch.where(place, total / count.clamp_min(1.0).unsqueeze(1), self.class_mean))

    def _update_dense(self, rows: Tensor, square: Tensor, groups: DenseGroups, synchronize: bool) -> None:
        counts = groups.counts.to(rows.dtype)
        self._place_unseen(rows, lambda: (counts, class_sums(rows, groups)), synchronize)
        deviation = rows - self.class_mean.index_select(0, groups.labels)
        if groups.row_weight is not None:
            deviation = deviation * groups.row_weight.unsqueeze(1)
        power = square if self.norm_order == 2.0 else squared_norm(rows, self.norm_order)
        values = torch.stack((squared_norm(deviation, 2.0), square, power), 1)
        self._merge(counts, class_sums(deviation, groups), class_sums(values, groups).T, synchronize)

    def _update_soft(
        self,
        rows: Tensor,
        square: Tensor,
        probabilities: Tensor,
        row_weight: Tensor | None,
        synchronize: bool,
    ) -> None:
        if self.estimator == "batch":
            raise ValueError("labels given as probabilities need estimator='moments', got estimator='batch'")
        target = probabilities.detach().to(rows.dtype)
        if row_weight is not None:
            target = target * row_weight.unsqueeze(1)
        count = target.sum(0)
        self._place_unseen(rows, lambda: (count, target.T @ rows), synchronize)
        power = square if self.norm_order == 2.0 else squared_norm(rows, self.norm_order)
        square_sum, power_sum = target.T @ square, target.T @ power
        # Σ t‖φ - μ‖² = Σ t‖φ‖² - 2 μ·Σ tφ + ‖μ‖² Σ t for every origin; near the samples little of it cancels.
        origin = rows.sum(0) / max(rows.shape[0], 1)
        near, mean = rows - origin, self.class_mean - origin
        total = target.T @ near
        size = target.T @ squared_norm(near, 2.0) + count * squared_norm(mean, 2.0)
        deviation = size - 2.0 * (mean * total).sum(1)
        # What rounding leaves of a class with a single certain sample is no spread.
        deviation = torch.where(deviation > 8.0 * torch.finfo(size.dtype).eps * size, deviation, 0.0)
        shift = total - count.unsqueeze(1) * mean
        self._merge(count, shift, torch.stack((deviation, square_sum, power_sum)), synchronize)

    def _merge(self, count: Tensor, shift: Tensor, sums: Tensor, synchronize: bool) -> None:
        """Mix the sums of all classes in; absent classes (count 0) keep what they have."""
        if synchronize:
            count, shift, sums = _reduce_together(count, shift, sums)
        present = count > 0
        weight, new, share = merge_scalars(
            self.class_scalars, torch.where(present, count, 1.0), sums, self.ema_decay
        )
        shift = shift * share.unsqueeze(1)
        spread = (new[0] - squared_norm(shift, 2.0)).clamp_min(0.0)
        merged = torch.cat((weight.unsqueeze(0), spread.unsqueeze(0), new[1:]))
        self.class_mean += torch.where(present.unsqueeze(1), shift, 0.0)
        self.class_scalars.copy_(torch.where(present, merged, self.class_scalars))

    def _update_batch(self, rows: Tensor, square: Tensor, groups: DenseGroups, synchronize: bool) -> None:
        released = self.sqnorm_form == "mean_plus_deviation"
        order = self.norm_order if released else 2.0
        count, feature_sum = groups.counts.to(rows.dtype), class_sums(rows, groups)
        power_sum = class_sums(squared_norm(rows, self.norm_order), groups)
        if synchronize:
            count, feature_sum, power_sum = _reduce_together(count, feature_sum, power_sum)
        safe = count.clamp_min(1.0)
        mean = feature_sum / safe.unsqueeze(1)
        deviation = rows - mean.index_select(0, groups.labels)
        if groups.row_weight is not None:
            deviation = deviation * groups.row_weight.unsqueeze(1)
        deviation_sum = class_sums(squared_norm(deviation, order), groups)
        if synchronize:
            deviation_sum = all_reduce_sum(deviation_sum)
        spread = deviation_sum / safe
        sqnorm = squared_norm(mean, order) + spread
        values = torch.stack((spread, sqnorm, sqnorm if released else power_sum / safe))
        old = self.class_scalars
        fresh = torch.ones_like(old[0]).masked_fill_(old[0] > 0, 1.0 - self.ema_decay)
        weight = self.ema_decay * old[0] + (1.0 - self.ema_decay) * count
        new = torch.cat((weight.unsqueeze(0), torch.lerp(old[1:], values, fresh)))
        old.copy_(torch.where(count > 0, new, old))

    def _update_overall(self, rows: Tensor, row_weight: Tensor | None, synchronize: bool) -> None:
        """Move mean and variance over all samples; deviations are taken from means, so nothing cancels.

        They only set scales, which move slowly: the first batches count, then every ``OVERALL_EVERY``-th.
        """
        if row_weight is None and not synchronize and not uses_dense_layout(rows):
            self._update_overall_on_host(rows)
            return
        self.overall_moved = True  # or not; to read it would make a device wait
        weight = torch.ones_like(rows[:, 0]) if row_weight is None else row_weight.to(rows.dtype)
        count, total = weight.sum(), (rows * weight.unsqueeze(1)).sum(0)
        if synchronize:
            count, total = _reduce_together(count, total)
        mean = total / count.clamp_min(1.0)
        deviation = (squared_norm(rows - mean, 2.0) * weight).sum()
        variance = (all_reduce_sum(deviation) if synchronize else deviation) / count.clamp_min(1.0)
        early = self.updates < OVERALL_EVERY
        due = (early | (self.updates % OVERALL_EVERY == 0)) & (count > 0)
        # Written without torch.where of two Python numbers, which would pass through float32.
        skipped = (self.ema_decay - self.ema_decay**OVERALL_EVERY) * (~early).to(rows.dtype)
        self._mix_overall(mean, variance, (1.0 - self.ema_decay + skipped) * due)
        if self.track_separation:
            separation = class_separation(self.class_mean, self.seen)
            renew = due & (early | (self.updates % self.separation_every == 0))
            self.class_separation.copy_(torch.where(renew, separation, self.class_separation))
        self.updates.add_(count > 0)

    def _update_overall_on_host(self, rows: Tensor) -> None:
        updates, empty = self._buffer("updates").numpy(), not rows.shape[0]  # a view; NumPy's calls cost less
        step = int(updates)
        if not empty:
            updates += 1
        moved = not empty and (step < OVERALL_EVERY or step % OVERALL_EVERY == 0)
        self.__dict__["overall_moved"] = moved  # setting an attribute of a module costs a dozen look-ups
        if moved:
            mean = rows.mean(0)
            decay = self.ema_decay if step < OVERALL_EVERY else self.ema_decay**OVERALL_EVERY
            self._mix_overall(mean, squared_norm(rows - mean, 2.0).mean(), 1.0 - decay)
            if step < OVERALL_EVERY or step % self.separation_every == 0:
                self.renew_separation()

    def renew_separation(self) -> None:
        """Measure the distances between the class means as they are now, where they are tracked."""
        if self.track_separation:
            self.class_separation.copy_(class_separation(self.class_mean, self.seen))

    def _mix_overall(self, mean: Tensor, variance: Tensor, newest: Tensor | float) -> None:
        """Mix in one batch with weight ``newest`` (0 leaves everything as it is); bias-corrected."""
        self.feature_weight.add_((1.0 - self.feature_weight) * newest)
        fresh = newest / self.feature_weight.clamp_min(torch.finfo(mean.dtype).tiny)
        gap = mean - self.feature_mean
        between = fresh * (1.0 - fresh) * (gap * gap).sum()
        self.feature_variance.lerp_(variance, fresh).add_(between)
        self.feature_mean.add_(gap * fresh)

    def take_shape(self, feature_dim: int) -> None:
        """Give the buffers their size, once.

        Raises:
            ValueError: They have another size already.
        """
        if self.feature_mean.shape[0] == feature_dim:
            return
        if self.feature_dim is not None and self.feature_mean.shape[0]:
            raise ValueError(
                f"features must have {self.feature_dim} columns (feature_dim), got {feature_dim}"
            )
        self.feature_dim = feature_dim
        self.feature_mean = new_buffer(self.feature_mean, feature_dim)
        if self.estimator == "moments":
            self.class_mean = new_buffer(self.class_mean, self.num_classes, feature_dim)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved = state_dict.get(f"{prefix}feature_mean")
        if isinstance(saved, Tensor) and saved.dim() == 1 and saved.shape[0]:
            if self.feature_dim is None:
                self.take_shape(saved.shape[0])
            if saved.dtype == torch.float64:
                self.double()
        elif isinstance(saved, Tensor) and self.feature_mean.shape[0]:
            # Saved before the first batch: as if nothing had been seen, at the size that is known by now.
            for name in ("feature_mean", "class_mean"):
                if f"{prefix}{name}" in state_dict:
                    state_dict[f"{prefix}{name}"] = torch.zeros_like(self._buffer(name))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _new_weight(old: NDArray[Any], count: NDArray[Any], decay: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weight of each class after a batch, and the weight of one new sample in it ``[K]``.

    Absent classes keep their weight. The same as :func:`merge_scalars` for all classes at once.
    """
    weight = np.where(count > 0, old * decay + count * (1.0 - decay), old)
    return weight, (1.0 - decay) / np.where(weight > 0.0, weight, 1.0)


def _reduce_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Sum several tensors over all processes with one message."""
    flat = all_reduce_sum(torch.cat([tensor.reshape(-1) for tensor in tensors]))
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return tuple(part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True))
