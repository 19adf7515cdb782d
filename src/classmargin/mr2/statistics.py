"""Statistics of the features of each class, and their moving average over batches.

Symbols (paper, section 3): class mean ``μ̂_k``, mean squared deviation ``‖ŝ_k‖²`` (*spread*, always L2), mean squared Lp
norm ``r²_{k,p} = mean ‖φ‖_p²`` (*sqnorm*), ``s̄ = mean_k ‖ŝ_k‖²`` over the classes seen. For p = 2, ``r² = ‖μ̂‖² + ‖ŝ‖²``.

Data flow of one update::

    features, labels ──> sums per class (all-reduced over processes) ──> moving averages per class ──> Current

Two estimators, which differ in what of a batch is averaged:

* ``"moments"``: feature *vectors* and squared norms, over samples (a past one counts ``ema_decay`` for each later batch that
  holds its class). The spread is right even with one sample of a class per batch.
* ``"batch"``: the paper to the letter, moving averages of the *scalars* of each batch. ``r²`` is unbiased, the spread
  is not (with n rows of a class it loses the factor ``(n-1)/n``: 0.29 of the truth at B = 128, K = 100).

A class moves only when it occurs; its first sight assigns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from classmargin._checks import check_choice, check_floating, check_int, check_number, check_targets
from classmargin._distributed import all_reduce_sum, is_distributed, world_size
from classmargin._precision import FullPrecisionModule, at_least_float32
from classmargin.mr2.equations import class_sums, denominator, squared_norm
from classmargin.mr2.standardize import divisor

Estimator = Literal["moments", "batch"]


class ClassMoments(NamedTuple):
    """Sums over the rows of each class; sums of two batches add up to the sums of both."""

    count: Tensor  # type: ignore[assignment]  # rows of each class [K]; hides tuple.count, which nobody needs here
    feature_sum: Tensor  # [K, d]
    sqnorm_sum: Tensor  # of squared L2 norms [K]
    lp_sqnorm_sum: Tensor  # of squared Lp norms [K]

    @property
    def mean(self) -> Tensor:
        """Class means ``μ̂``, ``[K, d]`` (0 for absent classes)."""
        return self.feature_sum / denominator(self.count).unsqueeze(1)

    @property
    def class_mean_sqnorm(self) -> Tensor:
        """``‖μ̂_k‖²``, ``[K]``."""
        return self.mean.square().sum(1)

    @property
    def class_sqnorm(self) -> Tensor:
        """``r²_{k,p}``, ``[K]``."""
        return self.lp_sqnorm_sum / denominator(self.count)

    @property
    def class_spread(self) -> Tensor:
        """``‖ŝ_k‖²``, ``[K]``."""
        return (self.sqnorm_sum / denominator(self.count) - self.class_mean_sqnorm).clamp_min(0.0)


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
    table = class_sums(summands(rows, squared_norm(rows, norm_order)), labels, num_classes)
    count = class_sums(torch.ones_like(rows[:, 0]), labels, num_classes)
    return ClassMoments(count, table[:, :-2], table[:, -2], table[:, -1])


def summands(rows: Tensor, lp_square: Tensor | None = None) -> Tensor:
    """Return what is averaged of each row ``[B, d + 2]``: itself, its squared L2 and its squared Lp norm."""
    square = squared_norm(rows, 2.0).unsqueeze(1)
    return torch.cat((rows, square, square if lp_square is None else lp_square.unsqueeze(1)), 1)


def scalars_of(table: Tensor) -> Tensor:
    """Return spread, sqnorm and 1 where the class occurs ``[K, 3]`` from sums per class ``[K, d + 3]``."""
    means = table[:, :-1] / denominator(table[:, -1:])
    spread = (means[:, -2] - squared_norm(means[:, :-2], 2.0)).clamp_min(0.0)
    return torch.stack((spread, means[:, -1], table[:, -1].sign()), 1)


class Current(NamedTuple):
    """The statistics of now; 0 for classes never seen."""

    spread: Tensor  # ‖ŝ_k‖² [K]
    sqnorm: Tensor  # r²_{k,p} [K]
    seen: Tensor  # 1 for classes seen [K]
    num_seen: Tensor  # their number, at least 1
    mean_spread: Tensor  # s̄


class ClassStatistics(FullPrecisionModule):
    """Moving averages of class statistics, as persistent buffers.

    Args:
        num_classes: ``K``.
        feature_dim: ``d``; None takes it from the first batch or from a loaded state.
        norm_order: ``p >= 1`` of ``class_sqnorm``; the spread is always L2.
        ema_decay: Weight of the past in ``[0, 1)``; 0.9 in the paper.
        estimator: ``"moments"`` or ``"batch"``, see the module text. With ``"moments"`` the spread is a difference of
            squares: features far from the origin want centring, or ``.double()``.

    Attributes:
        averages: For each class, the mean of features, of squared norms and of squared Lp norms ``[K, d + 2]``; only spread and
            sqnorm ``[K, 2]`` for ``"batch"``. 0 for classes never seen.
        class_weight: Effective number of samples behind each class ``[K]`` (1 for ``"batch"``); 0 = never seen.
        updates: Batches so far.

    Example:
        >>> statistics = ClassStatistics(3)
        >>> phi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]])
        >>> statistics.update(phi, torch.tensor([0, 1, 2, 0]))
        >>> statistics.class_spread.round(decimals=4), statistics.mean_spread
        (tensor([1., 0., 0.]), tensor(0.3333))
    """

    averages: Tensor
    class_weight: Tensor
    updates: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        feature_dim: int | None = None,
        norm_order: float = 2.0,
        ema_decay: float = 0.9,
        estimator: Estimator = "moments",
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.feature_dim = None if feature_dim is None else check_int("feature_dim", feature_dim, minimum=1)
        self.norm_order = check_number("norm_order", norm_order, minimum=1.0, finite=False)
        self.ema_decay = check_number("ema_decay", ema_decay, minimum=0.0, below=1.0)
        self.estimator = check_choice("estimator", estimator, ("moments", "batch"))
        self.register_buffer("averages", torch.zeros(num_classes, self._width))
        self.register_buffer("class_weight", torch.zeros(num_classes))
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @property
    def _width(self) -> int:
        return 2 + (self.feature_dim or 0) if self.estimator == "moments" else 2

    def extra_repr(self) -> str:
        """Show the arguments in ``print(module)``."""
        names = ("num_classes", "feature_dim", "norm_order", "ema_decay", "estimator")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    @property
    def seen(self) -> Tensor:
        """Which classes have been seen, bool ``[K]``."""
        return self.class_weight > 0

    @property
    def class_mean(self) -> Tensor:
        """``μ̂_k`` ``[K, d]``; ``[K, 0]`` for the estimator ``"batch"``."""
        return self.averages[:, :-2]

    @property
    def class_spread(self) -> Tensor:
        """``‖ŝ_k‖²`` ``[K]``."""
        return self.current().spread

    @property
    def class_sqnorm(self) -> Tensor:
        """``r²_{k,p}`` ``[K]``."""
        return self.averages[:, -1]

    @property
    def mean_spread(self) -> Tensor:
        """``s̄``: mean of the spread over the classes seen (0 before the first batch), scalar."""
        return self.current().mean_spread

    def current(self) -> Current:
        """Return the scalars of now."""
        spread, sqnorm = self.averages[:, -2:].unbind(1)
        if self.estimator == "moments":
            spread = (spread - squared_norm(self.class_mean, 2.0)).clamp_min(0.0)
        seen = self.class_weight.sign()
        num_seen = seen.sum().clamp_min(1.0)
        return Current(spread, sqnorm, seen, num_seen, spread.sum() / num_seen)

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Move the averages by one batch, in place, over all processes where ``torch.distributed`` runs. No gradient flows.

        Args:
            features: ``φ``, shape ``[B, d]``; a batch with NaN or inf is left out.
            labels: Classes ``[B]``, or class probabilities ``[B, K]``.
        """
        check_floating("features", features, dim=2)
        check_targets(labels, batch=features.shape[0], num_classes=self.num_classes, ignore_index=None)
        rows = self.fit_shape(at_least_float32(features.detach()))
        size = squared_norm(rows, self.norm_order).sum() + squared_norm(rows, 2.0).sum()
        broken = all_reduce_sum((~torch.isfinite(size)).to(rows.dtype))  # all processes move or none
        self.mix(rows, labels, torch.ones_like(rows[:, 0]), broken == 0, is_distributed())

    def fit_shape(self, rows: Tensor) -> Tensor:
        """Give the buffers the size (and for float64 the type) of ``rows``, once; return ``rows`` in their type.

        Raises:
            ValueError: They have another size already.
        """
        if self.feature_dim is not None and rows.shape[1] != self.feature_dim:
            raise ValueError(
                f"features must have {self.feature_dim} columns (feature_dim), got shape {tuple(rows.shape)}"
            )
        self.feature_dim = rows.shape[1]
        if self.averages.shape[1] != self._width:
            # Made outside of inference mode: a tensor made inside could never be changed by training.
            with torch.inference_mode(False):
                self.averages = self.averages.new_zeros(self.num_classes, self._width)
        if rows.dtype == torch.float64 and self.averages.dtype != torch.float64:
            self.double()  # exact, and keeps float64 experiments in float64
        return rows.to(self.averages.dtype)

    @torch.no_grad()
    def mix(self, rows: Tensor, labels: Tensor, row_weight: Tensor, moves: Tensor, synchronize: bool = False) -> None:
        """Mix a batch in, without checks; absent classes keep what they have.

        Args:
            rows: Features ``[B, d]``.
            labels: Classes ``[B]``, or class probabilities ``[B, K]``.
            row_weight: Weight of each row ``[B]``; 0 = it does not count.
            moves: Bool scalar: False leaves everything as it is (NaN or inf in the batch, gradient accumulation).
            synchronize: Sum over processes first.
        """
        rows = rows.to(self.averages.dtype)
        same = self.norm_order == 2.0 and self.estimator == "moments"
        lp_square = None if same else squared_norm(rows, self.norm_order)
        if self.estimator == "batch":  # far from the origin its spread, a difference of squares, loses digits
            centre = rows.sum(0) / max(rows.shape[0], 1)
            rows = rows - (all_reduce_sum(centre) / world_size() if synchronize else centre)
        self.updates.add_(moves)
        if not (synchronize or labels.is_floating_point() or self.estimator == "batch"):
            self._take_rows(rows, lp_square, labels.long(), row_weight * moves)
            return
        weight = row_weight.unsqueeze(1)
        values = torch.cat((summands(rows, lp_square) * weight, weight), 1).masked_fill(~moves, 0.0)
        table = class_sums(values, labels, self.num_classes)
        table = all_reduce_sum(table) if synchronize else table
        self.take(scalars_of(table) if self.estimator == "batch" else table)

    def _take_rows(self, rows: Tensor, lp_square: Tensor | None, labels: Tensor, row_weight: Tensor) -> None:
        """Do what :meth:`take` does in O(B d) instead of O(K d): only the classes of the batch are touched."""
        self._weigh(class_sums(row_weight, labels, self.num_classes))
        share = row_weight / denominator(self.class_weight).index_select(0, labels)
        ahead = self.averages.index_select(0, labels)  # of the rows: what the averages have to move back
        ahead[:, :-2].sub_(rows)
        square = squared_norm(rows, 2.0)
        ahead[:, -2:].sub_(square.unsqueeze(1) if lp_square is None else torch.stack((square, lp_square), 1))
        ahead = ahead.nan_to_num_(0.0, 0.0, 0.0).mul_(share.unsqueeze(1))
        self.averages.index_add_(0, labels, ahead, alpha=-1.0)

    def _weigh(self, count: Tensor) -> None:
        """Add the samples of a batch ``[K]`` to the weight behind each class; the past of those that occur decays."""
        kept = torch.rsub(count.sign(), 1.0, alpha=1.0 - self.ema_decay)
        torch.addcmul(count, self.class_weight, kept, out=self.class_weight)

    def take(self, table: Tensor) -> None:
        """Move each average by the deviations from it of what has come, over the weight behind it; the past decays.

        Args:
            table: Sums of what is averaged, and the number of samples, ``[K, d + 3]``; for ``"batch"`` the scalars of a batch and
                1 where the class occurs ``[K, 3]``.
        """
        if self.estimator == "batch":  # the first sight counts 1, a later one 1 - decay
            table = table * torch.rsub(self.class_weight, 1.0, alpha=self.ema_decay).unsqueeze(1)
        count = table[:, -1:]
        self._weigh(count.squeeze(1))
        deviations = table[:, :-1].addcmul_(count, self.averages, value=-1.0)
        self.averages.addcdiv_(deviations, denominator(self.class_weight).unsqueeze(1))

    @torch.no_grad()
    def fit(self, batches: Iterable[tuple[Tensor, Tensor]], *, standardized: bool = False) -> None:
        """Replace the averages by those of a whole data set, in float64: for frozen features.

        A moving average follows features that move. Frozen ones do not, so one pass gives better numbers than any number of
        steps would.

        Args:
            batches: Features ``[b, d]`` with classes ``[b]``, each sample once.
            standardized: Of features standardised over the whole set.

        Raises:
            ValueError: No sample came, or features are not finite.

        Example:
            >>> statistics = ClassStatistics(2)
            >>> statistics.fit([(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]))])
            >>> statistics.class_spread
            tensor([1., 0.])
        """
        parts = [(features.detach(), labels) for features, labels in batches if len(labels)]
        if not parts:
            raise ValueError("batches must hold at least one sample, got none")
        mean, inverse = torch.zeros(()).double(), torch.ones(()).double()
        if standardized:
            rows = sum(len(labels) for _, labels in parts)
            mean = torch.stack([features.double().sum(0) for features, _ in parts]).sum(0) / rows
            square = torch.stack([(features.double() - mean).square().sum() for features, _ in parts]).sum()
            inverse = divisor(square / rows, mean).rsqrt()
        table = torch.zeros(())
        for features, labels in parts:
            points = (features.double() - mean) * inverse
            count, feature_sum, *squares = class_moments(points, labels, self.num_classes, self.norm_order)
            table = table + torch.cat((feature_sum, torch.stack((*squares, count), 1)), 1)
        if not bool(torch.isfinite(table).all()):
            raise ValueError("features must be finite, got NaN or inf")
        self.fit_shape(parts[0][0][:0].float())
        self.averages.zero_()
        self.class_weight.zero_()
        self.take(scalars_of(table) if self.estimator == "batch" else table)
        self.updates.add_(1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}averages")
        if saved is None and f"{prefix}updates" in state_dict:
            raise RuntimeError(
                "these class statistics were saved by classmargin 0.4 or earlier, which kept them in other coordinates; "
                "start them anew: they settle within a few dozen steps"
            )
        if isinstance(saved, Tensor) and saved.dim() == 2 and self.estimator == "moments":
            if saved.shape[1] == 2:  # saved before the first batch
                state_dict[f"{prefix}averages"] = torch.zeros_like(self.averages)
            elif self.feature_dim is None:
                self.fit_shape(torch.zeros(0, saved.shape[1] - 2, device=self.averages.device))
        if isinstance(saved, Tensor) and saved.dtype == torch.float64:
            self.double()
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
