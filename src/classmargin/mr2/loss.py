"""The whole objective as one module: class margins on the logits plus the representation margin (Eq. 4).

Data flow of one training call; statistics move before they are used, as in the authors' release::

    features ──> points: standardised, or as they are
    points, labels ────────> ClassStatistics ──> γ [K], μ̃ [K, d], s̃ [K], s̄̃      constants for autograd
    logits, labels, γ ─────> ℓ_γ, probability of the class                       (Eq. 1)
    points, labels, μ̃, s̃, s̄̃ ─────────────────> ℓ_s̄                              (Eq. 2)
                                                total = ℓ_γ + λ ℓ_s̄              (Eq. 4)

Two forms of Eq. 2 (argument ``representation``):

* ``"moments"``, ours: against the mean and spread of the class, in standardised features, with the gradient through the
  standardisation. No pairs, every sample has a classmate, and shrinking features earns nothing. The pull of a sample counts with the
  probability of its class, a constant for autograd: what is not fitted yet is not pulled.
* ``"pairs"``, the paper's: against every classmate in the batch, in raw features, with the scalars of each batch averaged.

The same code runs on every device, for hard and soft labels, for one process or many. Nothing is read from the device, no
shape depends on values, and no Python state changes, so a step can be compiled or captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin._checks import (
    HALF_TOLERANCE,
    are_probabilities,
    check_choice,
    check_class_vector,
    check_floating,
    check_int,
    check_number,
    check_targets,
)
from classmargin._distributed import gather_rows, is_distributed, world_size
from classmargin._precision import FullPrecisionModule, at_least_float32
from classmargin._types import LossTerms
from classmargin.mr2.equations import (
    PAPER_POWER,
    SMALLEST_MARGIN,
    class_weights_of,
    margin_losses,
    moment_losses,
    of_class,
    pair_losses,
    relative_margins,
)
from classmargin.mr2.health import Health
from classmargin.mr2.settings import MARGIN_SOURCES, PRESETS, REPRESENTATIONS, MarginSource, Representation
from classmargin.mr2.standardize import centre, distances, standardize
from classmargin.mr2.statistics import ClassStatistics, Current


class Rows(NamedTuple):
    """A batch in full precision."""

    logits: Tensor  # [B, K]
    labels: Tensor  # classes [B], valid everywhere, or class probabilities [B, K]
    features: Tensor  # [B, d]
    weight: Tensor  # of each row [B]; 0 = ignored


class MR2Loss(FullPrecisionModule):
    """Margin regularisation for class-wise disparity: ``ℓ_γ + λ ℓ_s̄`` (Eq. 4), a drop-in for ``nn.CrossEntropyLoss``.

    ``MR2Loss(num_classes)`` is the recommended objective; ``MR2Loss.preset("paper", num_classes)`` the printed one. In
    training mode with gradients on, a call moves the class statistics and returns the MR² loss. In evaluation mode or
    without gradients it returns the plain cross-entropy of the logits, so that early stopping and the choice of a checkpoint work
    as with cross-entropy; :meth:`terms` gives the MR² parts at any time.

    Args:
        num_classes: ``K``.
        feature_dim: ``d``; None takes it from the first batch or from a loaded state.
        mean_margin: ``c̄ > 0``, mean of the class margins. 1 keeps the logit scale of cross-entropy.
        representation_weight: ``λ >= 0`` of the representation margin; 0 switches it off (linear probing).
        representation: Form of Eq. 2: ``"moments"`` (standardised, closed form) or ``"pairs"`` (as printed).
        spread_slack: Factor on ``s̄`` in the exponent; 0 is the ``s̄ = 0`` ablation of the paper.
        margin_source: Statistic behind the margins: ``"sqnorm"`` (``r²``, the paper), ``"spread"`` (``‖ŝ‖²``) or
            ``"uniform"`` (``γ_k = c̄``, the default: on validation samples other sources neither gained nor lost).
        margin_power: Exponent >= 0 of that statistic; 1/3 in Corollary 1.
        norm_order: ``p >= 1`` of ``r²_{k,p}`` (Eq. 17); 3 for cosine classifiers, where p = 2 gives uniform margins.
        ema_decay: Weight of the past in the class statistics, in ``[0, 1)``.
        label_smoothing: As in cross-entropy; 0.1 is part of the recommended objective, so compare with smoothing alone.
        weight: Class weights ``[K]`` of the logit term, as in cross-entropy.
        log_prior: ``[K]`` offset added to the logits after the division by γ (``ln π``: LA + MR²).
        ignore_index: Label of rows that do not count, in either term or in the statistics.
        accumulate: Micro-batches per optimiser step; the statistics move with the first of them only, so that all see the
            same margins.

    Attributes:
        statistics: The :class:`ClassStatistics`; of standardised features; for ``representation="pairs"`` of features as they are.
        health: The :class:`~classmargin.mr2.health.Health`: signs of collapse and NaN.

    Example:
        >>> loss = MR2Loss(num_classes=3)
        >>> logits = torch.zeros(4, 3, requires_grad=True)
        >>> features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]], requires_grad=True)
        >>> loss(logits, torch.tensor([0, 1, 2, 0]), features).backward()
        >>> loss.class_margins.mean()
        tensor(1.)
    """

    log_prior: Tensor | None
    weight: Tensor | None
    calls: Tensor
    statistics_type = ClassStatistics
    smallest_margin = SMALLEST_MARGIN  # of the mean margin

    def __init__(
        self,
        num_classes: int,
        *,
        feature_dim: int | None = None,
        mean_margin: float = 1.0,
        representation_weight: float = 1.0,
        representation: Representation = "moments",
        spread_slack: float = 1.0,
        margin_source: MarginSource = "uniform",
        margin_power: float = PAPER_POWER,
        norm_order: float = 2.0,
        ema_decay: float = 0.9,
        label_smoothing: float = 0.1,
        weight: Tensor | None = None,
        log_prior: Tensor | None = None,
        ignore_index: int = -100,
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.mean_margin = check_number("mean_margin", mean_margin, above=0.0)
        self.representation_weight = check_number("representation_weight", representation_weight, minimum=0.0)
        self.representation = check_choice("representation", representation, REPRESENTATIONS)
        self.spread_slack = check_number("spread_slack", spread_slack, minimum=0.0)
        self.margin_source = check_choice("margin_source", margin_source, MARGIN_SOURCES)
        self.margin_power = check_number("margin_power", margin_power, minimum=0.0)
        self.label_smoothing = check_number("label_smoothing", label_smoothing, minimum=0.0, maximum=1.0)
        self.ignore_index = check_int("ignore_index", ignore_index, minimum=-(2**62))
        self.accumulate = check_int("accumulate", accumulate, minimum=1)
        for name, vector in (("weight", weight), ("log_prior", log_prior)):
            check_class_vector(name, vector, num_classes)
            self.register_buffer(name, None if vector is None else vector.detach().clone())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.statistics = self.statistics_type(
            num_classes,
            feature_dim=feature_dim,
            norm_order=norm_order,
            ema_decay=ema_decay,
            estimator="batch" if representation == "pairs" else "moments",
        )
        self.health = Health()

    @classmethod
    def preset(cls, name: str, num_classes: int, feature_dim: int | None = None, **overrides: Any) -> MR2Loss:
        """Build the loss with named settings (:mod:`classmargin.mr2.settings`).

        Args:
            name: ``"recommended"``, ``"paper"`` or ``"release"``.
            num_classes: ``K``.
            feature_dim: ``d`` or None.
            **overrides: Constructor arguments that win over the preset.

        Example:
            >>> MR2Loss.preset("paper", 10).mean_margin
            2.0
        """
        check_choice("preset", name, PRESETS)
        return cls.build(num_classes, feature_dim=feature_dim, **{**PRESETS[name], **overrides})

    @classmethod
    def build(cls, num_classes: int, **options: Any) -> MR2Loss:
        """Return the loss with these constructor arguments; ``representation="released"`` gives the authors' variant."""
        if options.get("representation") != "released":
            return MR2Loss(num_classes, **options)
        from classmargin.mr2.release import ReleasedMR2Loss

        return ReleasedMR2Loss(num_classes, **{**options, "representation": "pairs"})

    # --- what users look at ------------------------------------------------------------------------------------------

    @property
    def class_margins(self) -> Tensor:
        """Current margins ``γ`` ``[K]`` (``c̄`` for classes not seen)."""
        return self._margins(self.statistics.current()).masked_fill(~self.statistics.seen, self.mean_margin)

    @property
    def mean_spread(self) -> Tensor:
        """Current ``s̄``, scalar."""
        return self.statistics.mean_spread

    @property
    def collapse_ratio(self) -> Tensor:
        """Total variance of the features over its peak so far, scalar in ``[0, 1]``; near 0 means collapse."""
        return self.health.collapse_ratio

    def extra_repr(self) -> str:
        """Show the arguments that matter in ``print(module)``."""
        names = ("num_classes", "mean_margin", "representation_weight", "representation", "margin_source")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in (*names, "margin_power", "label_smoothing"))

    def fit_statistics(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take the statistics of a whole set of frozen features, see :meth:`ClassStatistics.fit`.

        Train with ``update_statistics=False`` from then on.
        """
        self.statistics.fit(batches, standardized=self.representation != "pairs")

    # --- the loss ----------------------------------------------------------------------------------------------------

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        features: Tensor | None = None,
        *,
        update_statistics: bool | None = None,
    ) -> Tensor:
        """Return the MR² loss in training, the plain cross-entropy in evaluation mode or without gradients; a scalar.

        Arguments as for :meth:`terms`; the plain cross-entropy needs no features.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self.cross_entropy(logits, labels)
        if features is None:
            raise ValueError(
                "features must be given in training, got None: the input of the classification head [B, d]"
            )
        return self.terms(logits, labels, features, update_statistics=update_statistics).total

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the plain cross-entropy of the logits, with weight, smoothing and ignore_index as set; a scalar."""
        self._check(logits, labels)
        scores = at_least_float32(logits)
        return F.cross_entropy(
            scores,
            labels.to(scores.dtype) if labels.is_floating_point() else labels.long(),
            None if self.weight is None else self.weight.to(scores.dtype),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def terms(
        self,
        logits: Tensor,
        labels: Tensor,
        features: Tensor,
        *,
        update_statistics: bool | None = None,
        sample_weight: Tensor | None = None,
    ) -> LossTerms:
        """Return the total and its two parts, unweighted.

        Args:
            logits: Scores ``[B, K]``.
            labels: Classes ``[B]`` (int64), or class probabilities ``[B, K]``: rows >= 0 that sum to 1. Then the margin of a
                row is the mix of class margins, and it enters the statistics of each class with its probability.
            features: Input of the classification head ``[B, d]``.
            update_statistics: None = only if the module trains and gradients are on; True or False = always or never.
            sample_weight: Weight of each row in both terms and in the statistics ``[B]``; None = all 1.

        Returns:
            ``LossTerms(total, logit_margin, representation_margin)``, scalars: means over rows. Under ``torch.distributed``
            (training) their mean over ranks is the mean over the rows of all processes, and so are the gradients
            after DDP's averaging, even when ranks hold different numbers of rows. With λ = 0 the
            representation margin is not computed and reported as 0.
        """
        self._check(logits, labels, features)
        device = logits.device.type
        autocast = torch.amp.is_autocast_available(device)
        with torch.autocast(device, enabled=False) if autocast else contextlib.nullcontext():
            return self._terms(self._rows(logits, labels, features, sample_weight), update_statistics)

    def _terms(self, rows: Rows, update_statistics: bool | None) -> LossTerms:
        training, pairs = self.training and torch.is_grad_enabled(), self.representation != "moments"
        synchronize = training and is_distributed()
        batch, own = self._everyone(rows) if pairs and synchronize else (rows, None)
        synchronize = synchronize and not pairs  # pairs have everyone's rows already

        centred = centre(batch.features, self._row_weights(batch), synchronize)
        if pairs:
            points = batch.features
        else:
            points, inverse = standardize(centred)
        if training if update_statistics is None else update_statistics:
            moves = self._moves(batch, centred.variance, counts=update_statistics is None)
            self.statistics.mix(points.detach(), batch.labels, batch.weight, moves, synchronize)
            self.health.tick(self.representation_weight)

        now = self.statistics.current()
        margins = None  # all 1
        if self.margin_source != "uniform" or self.mean_margin != 1.0:
            margins = of_class(self._margins(now).to(rows.logits.dtype), rows.labels)
        losses, probability = margin_losses(
            rows.logits, rows.labels, margins, self.log_prior, self.weight, self.label_smoothing
        )
        if self.representation_weight == 0.0:
            pulls = batch.features[:, :0].sum(1)  # a zero that keeps the graph
        elif pairs:
            pulls = self._pair_losses(batch, points, self.spread_slack * now.mean_spread.to(points.dtype))
        else:
            target = of_class(self.statistics.class_mean.to(points.dtype), rows.labels)
            distance = distances(rows.features, points, inverse, centred.shares[0], target, synchronize)
            pulls = self._moment_losses(rows.labels, distance, now) * probability

        shares = centred.shares  # of the rows in means over all processes
        if own is not None:
            shares, pulls = shares[:, own], pulls[own]
        if training and is_distributed():
            shares = world_size() * shares  # DDP averages gradients over processes
        logit, representation = torch.dot(losses, shares[-1]), torch.dot(pulls, shares[0])
        total = torch.add(logit, representation, alpha=self.representation_weight)
        return LossTerms(total, logit, representation)

    def _margins(self, now: Current) -> Tensor:
        """Return ``γ`` ``[K]``."""
        if self.margin_source == "uniform" or self.margin_power == 0.0:
            return torch.full_like(now.sqnorm, self.mean_margin)
        source = now.sqnorm if self.margin_source == "sqnorm" else now.spread
        return self.mean_margin * relative_margins(source, self.margin_power, now.num_seen, self.smallest_margin)

    def _moment_losses(self, labels: Tensor, distance: Tensor, now: Current) -> Tensor:
        """Eq. 2 in closed form, per row ``[B]``; 0 for classes without statistics."""
        spread, seen = (of_class(statistic.to(distance.dtype), labels) for statistic in (now.spread, now.seen))
        return moment_losses(distance, spread, now.mean_spread.to(distance.dtype), self.spread_slack) * seen

    def _pair_losses(self, batch: Rows, points: Tensor, slack: Tensor) -> Tensor:
        """Eq. 2 over the pairs of the batch (of all processes), per row."""
        return pair_losses(points, batch.labels, slack, batch.weight)

    @torch.no_grad()
    def _moves(self, batch: Rows, variance: Tensor, counts: bool) -> Tensor:
        """Follow the signs of trouble; return whether the statistics may move, bool scalar."""
        if batch.labels.is_floating_point():  # they may have come in half precision
            self.health.bad_targets.copy_(~are_probabilities(batch.labels, HALF_TOLERANCE))
        moves = self.health.follow(variance)
        if counts and self.accumulate > 1:  # only the first micro-batch of a step
            moves = moves & (self.calls % self.accumulate == 0)
            self.calls.add_(1)
        return moves

    # --- input -------------------------------------------------------------------------------------------------------

    def _check(self, logits: Tensor, labels: Tensor, features: Tensor | None = None) -> None:
        check_floating("logits", logits, dim=2)
        batch, classes = logits.shape
        if classes != self.num_classes:
            raise ValueError(
                f"logits must have {self.num_classes} columns (num_classes), got shape {tuple(logits.shape)}"
            )
        if features is not None and check_floating("features", features, dim=2).shape[0] != batch:
            raise ValueError(f"features must have {batch} rows like logits, got shape {tuple(features.shape)}")
        check_targets(labels, batch=batch, num_classes=classes, ignore_index=self.ignore_index)

    def _rows(self, logits: Tensor, labels: Tensor, features: Tensor, sample_weight: Tensor | None) -> Rows:
        scores, rows = at_least_float32(logits), at_least_float32(features)
        if scores.dtype != rows.dtype:
            scores, rows = scores.double(), rows.double()
        self.statistics.fit_shape(rows.detach())
        if labels.is_floating_point():
            labels, weight = labels.detach().to(rows.dtype), rows.new_ones(rows.shape[0])
        else:
            counts = labels != self.ignore_index
            labels, weight = labels.long() * counts, counts.to(rows.dtype)
        if sample_weight is not None:
            weight = weight * sample_weight.to(rows.dtype)
        return Rows(scores, labels, rows, weight)

    def _row_weights(self, rows: Rows) -> Tensor:
        """Return what the rows add to the denominators of the representation term and, last, of the logit term ``[1 or 2, B]``."""
        if self.weight is None:
            return rows.weight.unsqueeze(0)
        counts = class_weights_of(rows.labels, self.weight, rows.weight)
        return torch.stack((rows.weight, rows.weight * counts))

    def _everyone(self, rows: Rows) -> tuple[Rows, slice]:
        """Return the rows of all processes, for pairs across them, and which of them are this rank's."""
        parts = [rows.features, rows.labels, rows.weight]
        columns = [(part if part.dim() == 2 else part.unsqueeze(1)).to(rows.features.dtype) for part in parts]
        gathered, start = gather_rows(torch.cat(columns, 1))
        features, labels, weight = torch.split(gathered, [part.shape[1] for part in columns], 1)
        if not rows.labels.is_floating_point():
            labels = labels.squeeze(1).long()
        everyone = Rows(rows.logits, labels.detach(), features, weight.squeeze(1).detach())
        return everyone, slice(start, start + rows.features.shape[0])
