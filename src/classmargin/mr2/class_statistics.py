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

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from classmargin._checks import check_choice, check_floating, check_int, check_number
from classmargin._distributed import all_reduce_sum, is_distributed
from classmargin.mr2.class_groups import ClassGroups, group_by_class, group_dense, segment_sum
from classmargin.mr2.logit_margin import at_least_float32, check_targets

Estimator = Literal["moments", "batch"]
SqnormForm = Literal["norm", "mean_plus_deviation"]


class ClassMoments(NamedTuple):
    """Sums over the rows of each class; sums of two batches add up to the sums of both.

    Attributes:
        count: Rows of each class ``[K]``.
        feature_sum: Sum of features ``[K, d]``.
        sqnorm_sum: Sum of squared L2 norms ``[K]``.
        lp_sqnorm_sum: Sum of squared Lp norms ``[K]``.
    """

    count: Tensor
    feature_sum: Tensor
    sqnorm_sum: Tensor
    lp_sqnorm_sum: Tensor

    @property
    def mean(self) -> Tensor:
        """Class means ``μ̂``, ``[K, d]`` (0 for absent classes)."""
        return self.feature_sum / self.count.clamp_min(1.0).unsqueeze(1)

    @property
    def class_mean_sqnorm(self) -> Tensor:
        """``‖μ̂_k‖²``, ``[K]``."""
        return self.mean.square().sum(1)

    @property
    def class_sqnorm(self) -> Tensor:
        """``r²_{k,p}``, ``[K]``."""
        return self.lp_sqnorm_sum / self.count.clamp_min(1.0)

    @property
    def class_spread(self) -> Tensor:
        """``‖ŝ_k‖²``, ``[K]``."""
        return (self.sqnorm_sum / self.count.clamp_min(1.0) - self.class_mean_sqnorm).clamp_min(0.0)


def class_moments(features: Tensor, labels: Tensor, num_classes: int, norm_order: float = 2.0) -> ClassMoments:
    """Return the sums from which all class statistics of a batch follow.

    Args:
        features: ``φ``, shape ``[B, d]``.
        labels: Classes ``[B]``, or class probabilities ``[B, K]`` (then rows count with their probability).
        num_classes: ``K``.
        norm_order: ``p >= 1`` (``math.inf`` allowed) of the squared norms in ``lp_sqnorm_sum``.

    Example:
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> class_moments(phi, torch.tensor([0, 1, 2, 0]), 3).class_sqnorm
        tensor([ 3.,  4., 10.])
    """
    check_floating("features", features, dim=2)
    check_number("norm_order", norm_order, minimum=1.0, finite=False)
    check_targets(labels, batch=features.shape[0], num_classes=num_classes, ignore_index=None)
    rows = at_least_float32(features)
    square = rows.square().sum(1)
    power = squared_norm(rows, norm_order)
    if labels.is_floating_point():
        target = labels.to(rows.dtype).T
        return ClassMoments(target.sum(1), target @ rows, target @ square, target @ power)
    groups = group_dense(labels, num_classes, torch.ones_like(square))
    sums = (segment_sum(rows, groups), segment_sum(square, groups), segment_sum(power, groups))
    return ClassMoments(groups.counts, *sums)


def squared_norm(rows: Tensor, norm_order: float) -> Tensor:
    """Return ``‖x‖_p²`` of each row; scaled by the largest entry, so no power overflows: ``[B, d] -> [B]``."""
    if norm_order == 2.0:
        return rows.square().sum(1)
    if norm_order == 1.0:
        return rows.abs().sum(1).square()
    magnitude = rows.abs()
    largest = magnitude.amax(1) if rows.shape[1] else magnitude.sum(1)
    if norm_order == float("inf"):
        return largest.square()
    share = magnitude / largest.clamp_min(torch.finfo(rows.dtype).tiny).unsqueeze(1)
    return largest.square() * share.pow(norm_order).sum(1).pow(2.0 / norm_order)


class ClassStatistics(nn.Module):
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

    Attributes:
        class_sqnorm: ``r²_{k,p}`` ``[K]``.
        class_mean_sqnorm: ``‖μ̂_k‖²`` ``[K]``.
        class_spread: ``‖ŝ_k‖²`` ``[K]``.
        class_mean: ``μ̂_k`` ``[K, d]`` (``[K, 0]`` for ``"batch"``).
        class_weight: Effective number of samples behind each class ``[K]``, 0 = never seen.
        feature_mean, feature_sqnorm: Moving averages over all samples, ``[d]`` and scalar.

    Example:
        >>> statistics = ClassStatistics(3)
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> statistics.update(phi, torch.tensor([0, 1, 2, 0]))
        >>> statistics.class_spread, statistics.mean_spread
        (tensor([1., 0., 0.]), tensor(0.3333))
    """

    class_sqnorm: Tensor
    class_mean_sqnorm: Tensor
    class_spread: Tensor
    class_mean: Tensor
    class_weight: Tensor
    feature_mean: Tensor
    feature_sqnorm: Tensor
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
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.feature_dim = None if feature_dim is None else check_int("feature_dim", feature_dim, minimum=1)
        self.norm_order = check_number("norm_order", norm_order, minimum=1.0, finite=False)
        self.ema_decay = check_number("ema_decay", ema_decay, minimum=0.0, below=1.0)
        self.estimator = check_choice("estimator", estimator, ("moments", "batch"))
        self.sqnorm_form = check_choice("sqnorm_form", sqnorm_form, ("norm", "mean_plus_deviation"))
        if self.sqnorm_form == "mean_plus_deviation" and self.estimator != "batch":
            raise ValueError("sqnorm_form='mean_plus_deviation' needs estimator='batch', got estimator='moments'")
        for name in ("class_sqnorm", "class_mean_sqnorm", "class_spread", "class_weight"):
            self.register_buffer(name, torch.zeros(num_classes))
        self.register_buffer("class_mean", torch.zeros(num_classes, 0))
        self.register_buffer("feature_mean", torch.zeros(0))
        self.register_buffer("feature_sqnorm", torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        if feature_dim is not None:
            self._take_shape(feature_dim)

    def extra_repr(self) -> str:
        """Show the arguments in ``print(module)``."""
        return (
            f"num_classes={self.num_classes}, feature_dim={self.feature_dim}, norm_order={self.norm_order:g}, "
            f"ema_decay={self.ema_decay:g}, estimator={self.estimator!r}"
        )

    @property
    def seen(self) -> Tensor:
        """Which classes have been seen, bool ``[K]``."""
        return self.class_weight > 0

    @property
    def mean_spread(self) -> Tensor:
        """``s̄``: mean of the spread over the classes seen (0 before the first batch), scalar."""
        seen = self.seen
        return (self.class_spread * seen).sum() / seen.sum().clamp_min(1)

    @property
    def total_variance(self) -> Tensor:
        """``mean ‖φ - mean φ‖²`` over all samples: within plus between classes, scalar."""
        return (self.feature_sqnorm - self.feature_mean.square().sum()).clamp_min(0.0)

    @property
    def spread_ratio(self) -> Tensor:
        """Spread within classes over distance between classes, ``s̄ / (total variance - s̄)``, scalar.

        Near 0: classes are compact against their distance. Large or growing: classes do not separate.
        """
        between = (self.total_variance - self.mean_spread).clamp_min(torch.finfo(self.class_spread.dtype).tiny)
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
        rows = at_least_float32(features.detach())
        weight = self._finite_rows(rows, row_weight)
        if weight is not None:
            rows = torch.where(weight.unsqueeze(1) > 0, rows, torch.zeros_like(rows))
        self.apply_update(rows, labels, None, weight, synchronize)

    @staticmethod
    def _finite_rows(rows: Tensor, row_weight: Tensor | None) -> Tensor | None:
        square = rows.square().sum(1)
        if row_weight is None and square.device.type == "cpu" and not torch.compiler.is_compiling():
            if bool(torch.isfinite(square).all()):
                return None
        finite = torch.isfinite(square).to(rows.dtype)
        return finite if row_weight is None else finite * row_weight.to(rows.dtype)

    def apply_update(
        self,
        rows: Tensor,
        labels: Tensor,
        groups: ClassGroups | None,
        row_weight: Tensor | None,
        synchronize: bool,
    ) -> None:
        """Move the averages, without checks; ``rows`` are finite and zero where ``row_weight`` is 0."""
        self._take_shape(rows.shape[1])
        if rows.dtype == torch.float64 and self.class_spread.dtype != torch.float64:
            self.double()  # exact, and keeps float64 experiments in float64
        rows = rows.to(self.class_spread.dtype)
        synchronize = synchronize and is_distributed()
        if groups is None and not labels.is_floating_point():
            groups = group_by_class(labels, self.num_classes, row_weight)
        if synchronize and groups is not None and groups.classes is not None:
            groups = group_dense(labels, self.num_classes, None)  # ranks must agree on the segments
        if self.estimator == "moments":
            self._update_moments(rows, labels, groups, row_weight, synchronize)
        else:
            self._update_batch(rows, labels, groups, row_weight, synchronize)
        self._update_overall(rows, row_weight, synchronize)
        self.updates += 1

    def _update_moments(
        self, rows: Tensor, labels: Tensor, groups: ClassGroups | None, row_weight: Tensor | None, synchronize: bool
    ) -> None:
        if groups is None:
            classes, count, sums = None, *self._soft_sums(rows, labels, row_weight)
        else:
            classes = groups.classes
            count, sums = groups.counts.to(rows.dtype), self._deviation_sums(rows, labels, groups, row_weight)
        if synchronize:
            count, sums = _reduce_together(count, sums)
        shift_sum, deviation_sum, square_sum, power_sum = sums

        old_weight = _rows_of(self.class_weight, classes)
        old_spread = _rows_of(self.class_spread, classes)
        old_square = _rows_of(self.class_mean_sqnorm, classes) + old_spread
        old_power = _rows_of(self.class_sqnorm, classes)
        past = self.ema_decay * old_weight
        if classes is None:  # an absent class keeps its weight
            past = torch.where(count > 0, past, old_weight)
        new_weight = past + (1.0 - self.ema_decay) * count
        share = (1.0 - self.ema_decay) / new_weight.clamp_min(torch.finfo(rows.dtype).tiny)
        fresh = share * count  # weight of this batch in the new average: 1 at first sight, 0 if absent
        shift = shift_sum * share.unsqueeze(1)
        spread = ((1.0 - fresh) * old_spread + share * deviation_sum - shift.square().sum(1)).clamp_min_(0.0)
        square = (1.0 - fresh) * old_square + share * square_sum
        power = square if power_sum is None else (1.0 - fresh) * old_power + share * power_sum
        _add_rows(self.class_mean, classes, shift)
        _set_rows(self.class_spread, classes, spread)
        _set_rows(self.class_mean_sqnorm, classes, (square - spread).clamp_min_(0.0))
        _set_rows(self.class_sqnorm, classes, power)
        _set_rows(self.class_weight, classes, new_weight)

    def _deviation_sums(
        self, rows: Tensor, labels: Tensor, groups: ClassGroups, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        deviation = rows - self.class_mean.index_select(0, labels)
        if row_weight is not None:
            deviation = deviation * row_weight.unsqueeze(1)
        scalars = [deviation.square().sum(1), rows.square().sum(1)]
        if self.norm_order != 2.0:
            scalars.append(squared_norm(rows, self.norm_order))
        totals = segment_sum(torch.stack(scalars, 1), groups).unbind(1)
        return segment_sum(deviation, groups), totals[0], totals[1], totals[2] if len(totals) > 2 else None

    def _soft_sums(
        self, rows: Tensor, probabilities: Tensor, row_weight: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor | None]]:
        target = probabilities.to(rows.dtype)
        if row_weight is not None:
            target = target * row_weight.unsqueeze(1)
        count, square = target.sum(0), rows.square().sum(1)
        total, square_sum = target.T @ rows, target.T @ square
        shift = total - count.unsqueeze(1) * self.class_mean
        # Σ t‖φ - μ‖² = Σ t‖φ‖² - 2 μ·Σ tφ + ‖μ‖² Σ t
        deviation = square_sum - 2.0 * (self.class_mean * total).sum(1) + count * self.class_mean.square().sum(1)
        power = None if self.norm_order == 2.0 else target.T @ squared_norm(rows, self.norm_order)
        return count, (shift, deviation.clamp_min(0.0), square_sum, power)

    def _update_batch(
        self, rows: Tensor, labels: Tensor, groups: ClassGroups | None, row_weight: Tensor | None, synchronize: bool
    ) -> None:
        if groups is None:
            raise ValueError("labels given as probabilities need estimator='moments', got estimator='batch'")
        count = groups.counts.to(rows.dtype)
        feature_sum, power_sum = segment_sum(rows, groups), segment_sum(squared_norm(rows, self.norm_order), groups)
        if synchronize:
            count, (feature_sum, power_sum) = _reduce_together(count, (feature_sum, power_sum))
        safe = count.clamp_min(1.0)
        mean = feature_sum / safe.unsqueeze(1)
        deviation = rows - mean.index_select(0, groups.segment)
        if row_weight is not None:
            deviation = deviation * row_weight.unsqueeze(1)
        released = self.sqnorm_form == "mean_plus_deviation"
        order = self.norm_order if released else 2.0
        deviation_sum = segment_sum(squared_norm(deviation, order), groups)
        if synchronize:
            deviation_sum = all_reduce_sum(deviation_sum)
        spread, mean_sqnorm = deviation_sum / safe, squared_norm(mean, order)
        power = mean_sqnorm + spread if released else power_sum / safe
        self._average_scalars(groups.classes, count, spread, mean_sqnorm, power)

    def _average_scalars(
        self, classes: Tensor | None, count: Tensor, spread: Tensor, mean_sqnorm: Tensor, power: Tensor
    ) -> None:
        old_weight = _rows_of(self.class_weight, classes)
        fresh = torch.where(old_weight > 0, 1.0 - self.ema_decay, 1.0).to(count.dtype)
        fresh = torch.where(count > 0, fresh, torch.zeros_like(fresh))
        pairs = ((self.class_spread, spread), (self.class_mean_sqnorm, mean_sqnorm), (self.class_sqnorm, power))
        for buffer, value in pairs:
            _set_rows(buffer, classes, torch.lerp(_rows_of(buffer, classes), value, fresh))
        past = torch.where(count > 0, self.ema_decay * old_weight, old_weight)
        _set_rows(self.class_weight, classes, past + (1.0 - self.ema_decay) * count)

    def _update_overall(self, rows: Tensor, row_weight: Tensor | None, synchronize: bool) -> None:
        weight = rows.new_tensor(float(rows.shape[0])) if row_weight is None else row_weight.to(rows.dtype).sum()
        total, square = rows.sum(0), rows.square().sum()
        if synchronize:
            weight, (total, square) = _reduce_together(weight, (total, square))
        safe = weight.clamp_min(1.0)
        # Bias-corrected: the weight of the newest batch is 1, 1/(1+decay), 1/(1+decay+decay²), ...
        decay = self.ema_decay
        if decay == 0.0:
            fresh = torch.ones_like(self.feature_sqnorm)
        else:
            fresh = (1.0 - decay) / (1.0 - decay ** (self.updates + 1).to(rows.dtype))
        fresh = torch.where(weight > 0, fresh, torch.zeros_like(fresh))
        self.feature_mean.lerp_(total / safe, fresh)
        self.feature_sqnorm.lerp_(square / safe, fresh)

    def _take_shape(self, feature_dim: int) -> None:
        if self.feature_mean.shape[0] == feature_dim:
            return
        if self.feature_dim is not None and self.feature_mean.shape[0]:
            raise ValueError(f"features must have {self.feature_dim} columns (feature_dim), got {feature_dim}")
        self.feature_dim = feature_dim
        self.feature_mean = self.feature_mean.new_zeros(feature_dim)
        if self.estimator == "moments":
            self.class_mean = self.class_mean.new_zeros(self.num_classes, feature_dim)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}feature_mean")
        if isinstance(saved, Tensor) and saved.dim() == 1 and saved.shape[0]:
            if self.feature_dim is None:
                self._take_shape(saved.shape[0])
            if saved.dtype == torch.float64:
                self.double()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _rows_of(buffer: Tensor, classes: Tensor | None) -> Tensor:
    return buffer if classes is None else buffer.index_select(0, classes)


def _set_rows(buffer: Tensor, classes: Tensor | None, values: Tensor) -> None:
    if classes is None:
        buffer.copy_(values)
    else:
        buffer.index_copy_(0, classes, values)


def _add_rows(buffer: Tensor, classes: Tensor | None, values: Tensor) -> None:
    if classes is None:
        buffer.add_(values)
    else:
        buffer.index_add_(0, classes, values)


def _reduce_together(count: Tensor, sums: tuple[Tensor | None, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """Sum several tensors over all processes with one message."""
    present = [count, *(tensor for tensor in sums if tensor is not None)]
    flat = all_reduce_sum(torch.cat([tensor.reshape(-1) for tensor in present]))
    parts = iter(flat.split([tensor.numel() for tensor in present]))
    total = next(parts).view_as(count)
    return total, tuple(None if tensor is None else next(parts).view_as(tensor) for tensor in sums)
