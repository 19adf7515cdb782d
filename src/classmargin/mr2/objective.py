"""The whole objective as one module: class margins on the logits plus the representation margin (Eq. 4).

Data flow of one call::

    features, labels ──> ClassStatistics (training only) ──> γ [K], s̄, τ       constants for autograd
    logits, labels, γ ──────────────────────────────────────> ℓ_γ               (Eq. 1)
    features, labels, s̄, τ ─────────────────────────────────> ℓ_s̄               (Eq. 2)
                                                              total = ℓ_γ + λ·ramp·ℓ_s̄

Statistics move before they are used, as in the authors' release. They move only when the module trains and gradients
are on, so a validation loop never touches them; ``update_statistics=False`` serves the second pass of SAM and the like.
Under ``torch.distributed`` the same condition decides whether processes talk to one another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classmargin._checks import check_choice, check_int, check_number
from classmargin._distributed import gather_rows, is_distributed
from classmargin._types import LossTerms
from classmargin.mr2 import logit_margin
from classmargin.mr2.batch_table import batch_table
from classmargin.mr2.class_groups import CompactGroups, Groups, uses_dense_layout
from classmargin.mr2.class_margins import (
    PAPER_POWER,
    check_limits,
    relative_margins,
    relative_margins_on_host,
)
from classmargin.mr2.class_moments import squared_norm
from classmargin.mr2.class_separation import relative_spread
from classmargin.mr2.class_statistics import ClassStatistics, Estimator, SqnormForm
from classmargin.mr2.class_table import NUMPY_TYPES
from classmargin.mr2.collapse import collapse_ratio
from classmargin.mr2.cpu_step import RowMoments, StepConstants, step_terms
from classmargin.mr2.feature_scale import FeatureScale
from classmargin.mr2.full_precision import FullPrecisionModule
from classmargin.mr2.inputs import check_batch, group_batch
from classmargin.mr2.logit_margin import at_least_float32, check_class_vector
from classmargin.mr2.positives import FeatureMemory, classmate_losses, moment_losses
from classmargin.mr2.presets import PRESETS
from classmargin.mr2.reductions import mean_over_classes, mean_over_rows
from classmargin.mr2.representation_margin import MOST_LISTED_PAIRS
from classmargin.mr2.settings import check_estimator

Positives = Literal["batch", "memory", "moments"]
MarginSource = Literal["sqnorm", "spread", "relative-spread", "uniform"]
MARGIN_SOURCES = get_args(MarginSource)
_LARGEST = {dtype: torch.finfo(dtype).max for dtype in NUMPY_TYPES}
TemperatureRule = Literal["total-variance", "dimension"]


class MR2Loss(FullPrecisionModule):
    """Margin regularisation for class-wise disparity: ``ℓ_γ + λ ℓ_s̄`` (Eq. 4), a drop-in for ``nn.CrossEntropyLoss``.

    The constructor's defaults are the printed formulas from the first step on; what we recommend for training is
    ``MR2Loss.preset("recommended", num_classes)``.

    Args:
        num_classes: ``K``.
        feature_dim: ``d``; None takes it from the first batch or from a loaded state.
        mean_margin: ``c̄ > 0``, mean of the class margins. 1 keeps the logit scale of cross-entropy.
        representation_weight: ``λ >= 0`` of the representation margin; 0 switches it off (linear probing).
        norm_order: ``p >= 1`` of ``r²_{k,p}`` (Eq. 17); 3 for cosine classifiers, where p = 2 gives uniform margins.
        ema_decay: Weight of the past in the class statistics, in ``[0, 1)``.
        estimator: ``"moments"`` (unbiased spread) or ``"batch"`` (the paper to the letter).
        positives: Where classmates come from: ``"batch"``, ``"memory"`` or ``"moments"``
            (see :mod:`classmargin.mr2.positives` for cost and bias of each).
        temperature: ``τ`` dividing the exponent of Eq. 2: a number (1 in the paper), or a rule times
            ``temperature_factor``: ``"total-variance"`` (the largest running ``mean ‖φ - mean φ‖²`` so far; a
            stop-gradient scale that makes the term scale-free. The largest, not the current one: a temperature that
            shrank with the features would pull the harder the smaller they are, and speed collapse up) or
            ``"dimension"`` (``d``).
        margin_source: Statistic behind the margins: ``"sqnorm"`` (``r²``, the paper), ``"spread"`` (``‖ŝ‖²``),
            ``"relative-spread"`` (spread over the squared distance to the nearest other class mean: how wide a class
            is for the room it has; needs ``estimator="moments"``) or ``"uniform"`` (``γ_k = c̄``, the control).
        margin_power: Exponent of that statistic; 1/3 in Corollary 1.
        weigh_by_margin: Multiply ℓ_γ of a sample by ``γ_y / c̄``. The division by γ_y also divides the gradient: a class
            with a larger margin learns more slowly while its samples are still wrong. The factor undoes that.
        weigh_by_confidence: Multiply ℓ_s̄ of a sample by the probability that ℓ_γ sees for its class (a constant for
            autograd). A sample that is not fitted yet is not pulled to its classmates: no pull on a fresh network, little
            on classes that are still wrong.
        warmup_steps: For so many updates γ stays at ``c̄`` and ``λ`` ramps up linearly from 0.
        log_prior: ``[K]`` offset added to the logits after the division by γ (``ln π``: LA + MR²).
        weight: Class weights ``[K]`` of the logit term, as in cross-entropy.
        label_smoothing: As in cross-entropy.
        ignore_index: Label of rows that do not count, in either term or in the statistics.
        temperature_factor: Factor on a temperature rule; must be 1 with a number.
        margin_limits: Smallest and largest ``γ_k / c̄``, whatever the statistics do.
        spread_slack: Factor on ``s̄`` in the exponent; 0 is the ``s̄ = 0`` ablation of the paper.
        sqnorm_form, unseen, representation_reduction, dimension_scale: What the authors' release does differently,
            see :mod:`classmargin.mr2.presets`: form of ``r²``; ``"zero"`` keeps unseen classes in the averages as 0;
            ``"classes"`` averages ℓ_s̄ inside each class with a pair, sums them and divides by K; a factor
            ``dimension_scale · d`` on ℓ_s̄.
        memory_size: Features kept per class for ``positives="memory"``.
        checks: Raise on NaN or inf in ``features`` (CPU). Statistics stay clean with or without.
        collapse_check_interval: Updates between two looks for feature collapse (CPU; 0 = never). Elsewhere
            poll :attr:`collapse_ratio`.

    Attributes:
        statistics: The :class:`ClassStatistics`.
        scale: The :class:`~classmargin.mr2.feature_scale.FeatureScale`: peak variance and temperature.
        class_margins: Current ``γ`` ``[K]``.
        mean_spread: Current ``s̄``.
        spread_ratio: Spread within over distance between classes.
        collapse_ratio: Total feature variance over its peak; near 0 means collapse.

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

    def __init__(
        self,
        num_classes: int,
        *,
        feature_dim: int | None = None,
        mean_margin: float = 1.0,
        representation_weight: float = 0.1,
        norm_order: float = 2.0,
        ema_decay: float = 0.9,
        estimator: Estimator = "moments",
        positives: Positives = "batch",
        temperature: float | TemperatureRule = "total-variance",
        margin_source: MarginSource = "sqnorm",
        margin_power: float = PAPER_POWER,
        weigh_by_margin: bool = False,
        weigh_by_confidence: bool = False,
        warmup_steps: int = 0,
        log_prior: Tensor | None = None,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        temperature_factor: float = 1.0,
        margin_limits: tuple[float, float] = (0.1, 10.0),
        spread_slack: float = 1.0,
        sqnorm_form: SqnormForm = "norm",
        unseen: Literal["exclude", "zero"] = "exclude",
        representation_reduction: Literal["samples", "classes"] = "samples",
        dimension_scale: float | None = None,
        memory_size: int = 4,
        checks: bool = True,
        collapse_check_interval: int = 100,
    ) -> None:
        super().__init__()
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.mean_margin = check_number("mean_margin", mean_margin, above=0.0)
        self.representation_weight = check_number("representation_weight", representation_weight, minimum=0.0)
        self.positives = check_choice("positives", positives, ("batch", "memory", "moments"))
        self.scale = FeatureScale(temperature, temperature_factor, collapse_check_interval)
        self.margin_source = check_choice("margin_source", margin_source, MARGIN_SOURCES)
        self.margin_power = check_number("margin_power", margin_power)
        self.weigh_by_margin, self.weigh_by_confidence = bool(weigh_by_margin), bool(weigh_by_confidence)
        self.warmup_steps = check_int("warmup_steps", warmup_steps, minimum=0)
        self.label_smoothing = check_number("label_smoothing", label_smoothing, minimum=0.0, maximum=1.0)
        self.ignore_index = check_int("ignore_index", ignore_index, minimum=-(2**62))
        check_limits(margin_limits)
        self.margin_limits = margin_limits
        self.spread_slack = check_number("spread_slack", spread_slack, minimum=0.0)
        self.unseen = check_choice("unseen", unseen, ("exclude", "zero"))
        self.representation_reduction = check_choice(
            "representation_reduction", representation_reduction, ("samples", "classes")
        )
        self.dimension_scale = (
            None if dimension_scale is None else check_number("dimension_scale", dimension_scale, above=0.0)
        )
        self.checks = bool(checks)
        for name, vector in (("log_prior", log_prior), ("weight", weight)):
            check_class_vector(name, vector, num_classes)
            self.register_buffer(name, None if vector is None else vector.detach().clone())
        check_estimator(estimator, margin_source, positives)
        self.statistics = ClassStatistics(
            num_classes,
            feature_dim=feature_dim,
            norm_order=norm_order,
            ema_decay=ema_decay,
            estimator=estimator,
            sqnorm_form=sqnorm_form,
            track_separation=self.margin_source == "relative-spread",
        )
        if self.positives != "batch" and self.representation_reduction == "classes":
            raise ValueError(
                f"representation_reduction='classes' needs positives='batch', got positives={positives!r}"
            )
        memory_size = check_int("memory_size", memory_size, minimum=1)
        self.memory = FeatureMemory(num_classes, memory_size) if self.positives == "memory" else None

    @classmethod
    def preset(cls, name: str, num_classes: int, feature_dim: int | None = None, **overrides: Any) -> MR2Loss:
        """Build the loss with a named set of hyper-parameters (:mod:`classmargin.mr2.presets`).

        Args:
            name: ``"recommended"``, ``"plain"`` (the defaults of this constructor), ``"paper"`` or ``"release"``.
            num_classes: ``K``.
            feature_dim: ``d`` or None.
            **overrides: Constructor arguments that win over the preset.

        Example:
            >>> MR2Loss.preset("paper", 10).mean_margin
            2.0
        """
        check_choice("preset", name, PRESETS)
        return cls(num_classes, feature_dim=feature_dim, **{**PRESETS[name], **overrides})

    def fit_statistics(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Take the statistics of a whole set of frozen features; train with ``update_statistics=False`` from then on.

        Args:
            batches: Features ``[b, d]`` with classes ``[b]``, each sample once.
        """
        self.statistics.fit(batches)
        self.scale.start_from(self.statistics)

    def extra_repr(self) -> str:
        """Show the arguments that matter in ``print(module)``."""
        return (
            f"num_classes={self.num_classes}, mean_margin={self.mean_margin:g}, "
            f"representation_weight={self.representation_weight:g}, positives={self.positives!r}, "
            f"temperature={self.scale.temperature!r}, margin_source={self.margin_source!r}, warmup_steps={self.warmup_steps}"
        )

    @property
    def class_margins(self) -> Tensor:
        """Current margins ``γ`` ``[K]`` (``c̄`` for classes not seen and during warm-up)."""
        return self.mean_margin * self._relative_margins()

    @property
    def mean_spread(self) -> Tensor:
        """Current ``s̄`` (over all classes if ``unseen="zero"``), scalar."""
        return self.statistics.class_spread.mean() if self.unseen == "zero" else self.statistics.mean_spread

    @property
    def spread_ratio(self) -> Tensor:
        """Spread within classes over distance between classes, scalar."""
        return self.statistics.spread_ratio

    @property
    def collapse_ratio(self) -> Tensor:
        """Total variance of the features over its peak so far, scalar in ``[0, 1]``; near 0 means collapse."""
        return collapse_ratio(self.statistics, self.scale.peak_variance)

    def forward(
        self, logits: Tensor, labels: Tensor, features: Tensor, *, update_statistics: bool | None = None
    ) -> Tensor:
        """Return the total loss; see :meth:`terms`."""
        return self._checked_terms(logits, labels, features, update_statistics, parts=False).total

    def terms(
        self, logits: Tensor, labels: Tensor, features: Tensor, *, update_statistics: bool | None = None
    ) -> LossTerms:
        """Return the total and its two parts, unweighted.

        Args:
            logits: Scores ``[B, K]``.
            labels: Classes ``[B]`` (int64), or class probabilities ``[B, K]``: then the margin of a row is the
                mix of class margins, its pairs count with the probability of a common class, and it enters the
                statistics of each class with its probability.
            features: Input of the classification head ``[B, d]``.
            update_statistics: None = only if the module trains and gradients are on; True or False = as said.

        Returns:
            ``LossTerms(total, logit_margin, representation_margin)``, scalars. In one process the mean over rows;
            under ``torch.distributed`` (training) the mean over the rows of all processes, with gradients that
            are right after DDP's averaging. With λ = 0 the representation margin is not computed and reported as 0.
        """
        return self._checked_terms(logits, labels, features, update_statistics, parts=True)

    def _checked_terms(
        self, logits: Tensor, labels: Tensor, features: Tensor, update_statistics: bool | None, parts: bool
    ) -> LossTerms:
        check_batch(logits, labels, features, self.num_classes, self.statistics.feature_dim)
        if not labels.is_floating_point():
            labels = labels.long()
        device = "cpu" if logits.is_cpu else logits.device.type  # the type is a string made anew each time
        # Devices without autocast (meta) do not even answer the question.
        if (device == "cpu" or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._terms(logits, labels, features, update_statistics, parts)
        return self._terms(logits, labels, features, update_statistics, parts)

    def _terms(
        self, logits: Tensor, labels: Tensor, features: Tensor, update_statistics: bool | None, parts: bool
    ) -> LossTerms:
        training = self.training and torch.is_grad_enabled()
        update = training if update_statistics is None else update_statistics
        synchronize = training and is_distributed()
        scores, rows = at_least_float32(logits), at_least_float32(features)
        if self.positives == "moments":  # means are read even where evaluation comes before the first step
            self.statistics.take_shape(rows.shape[1])
        hard = not labels.is_floating_point()
        if not update and self._needs_no_features(labels, rows):
            logit = self._logit_term(scores, labels, self._sample_margins(scores, labels), None, synchronize)
            return LossTerms(logit, logit, rows[:, :0].sum())
        groups, row_weight = None, None
        if hard:
            batch = group_batch(scores, labels, rows, self.num_classes, self.ignore_index)
            scores, labels, rows, groups, row_weight = batch
            if isinstance(groups, CompactGroups) and self._is_common_step(scores, groups, synchronize):
                terms = self._common_step(scores, labels, rows, groups, update, parts)
                if terms is not None:
                    return terms
        detached = rows.detach()
        square = squared_norm(detached, 2.0)
        finite = self._all_finite(rows, square)
        if update:
            if finite:
                self.statistics.apply_update(detached, labels, groups, row_weight, synchronize, square)
            else:  # rows that cannot be squared are left out
                self.statistics.update(detached, labels, row_weight=row_weight, synchronize=synchronize)
            self._follow_variance(on_host=not uses_dense_layout(rows))
        margins = self._sample_margins(scores, labels)
        logit = self._logit_term(scores, labels, margins, row_weight, synchronize)
        confidence = None
        if self.weigh_by_confidence and self.representation_weight > 0.0:
            confidence = logit_margin.confidences(scores.detach(), labels, margins, self.log_prior)
        representation = self._representation_term(rows, labels, groups, row_weight, confidence, synchronize)
        if update and self.memory is not None and hard:
            self._remember(
                detached, labels, None if finite else torch.isfinite(square), row_weight, synchronize
            )
        total = logit if self.representation_weight == 0.0 else logit + self._ramped_weight() * representation
        return LossTerms(total, logit, representation)

    def _needs_no_features(self, labels: Tensor, rows: Tensor) -> bool:
        """Return whether the class margins alone are wanted: a linear probe, at every step (CPU, hard labels).

        One look at the features stays, so that NaN is named here as everywhere else.
        """
        if self.representation_weight > 0.0 or labels.is_floating_point() or uses_dense_layout(rows):
            return False
        array = labels.numpy()
        valid = array.size > 0 and array.min() >= 0 and array.max() < self.num_classes
        ignores = 0 <= self.ignore_index < self.num_classes
        return bool(valid and not ignores and math.isfinite(float(rows.detach().sum())))

    def _is_common_step(self, logits: Tensor, groups: CompactGroups, synchronize: bool) -> bool:
        """Return whether :mod:`classmargin.mr2.cpu_step` covers this call."""
        return (
            logits.requires_grad
            and torch.is_grad_enabled()
            and not synchronize
            and len(groups.order) > 0
            and (self.positives == "moments" or (self.positives == "batch" and not self.weigh_by_confidence))
            and self._buffers["weight"] is None
            and self.label_smoothing == 0.0
            and self.representation_reduction == "samples"
            and self.dimension_scale is None
            and groups.num_pairs <= MOST_LISTED_PAIRS * len(groups.order)
        )

    def _common_step(
        self,
        logits: Tensor,
        labels: Tensor,
        features: Tensor,
        groups: CompactGroups,
        update: bool,
        parts: bool,
    ) -> LossTerms | None:
        """Do what :meth:`_terms` does, for the step that nearly every step is, in as few calls as possible.

        Returns None, with nothing changed, where features are not finite or too large to be squared without care.
        """
        rows, statistics = features.detach(), self.statistics
        table = batch_table(rows, groups)
        if not table.finite:
            return None
        if update:
            statistics.apply_table(rows, labels, table)
            self._follow_variance(on_host=True)
        scalars = statistics._buffer("class_scalars").numpy()
        margins = self._margins_on_host(scalars).take(groups.labels)
        moments, pulls = None, self.representation_weight > 0.0
        if pulls and self.positives == "moments":
            if not update and not scalars[0].take(groups.labels).all():
                return None  # the general way knows what to do with classes that have no moments
            mean = statistics._buffer("class_mean").index_select(0, labels).to(rows.dtype)
            moments = RowMoments(mean, scalars[1].take(groups.labels))
        constants = StepConstants(
            labels,
            groups,
            pulls and (moments is not None or groups.num_pairs > 0),
            np.divide(1.0 / self.mean_margin, margins, dtype=NUMPY_TYPES[logits.dtype])[:, None],
            margins.astype(NUMPY_TYPES[logits.dtype]) if self.weigh_by_margin else None,
            moments,
            self.weigh_by_confidence,
            self._buffers["log_prior"],
            self.spread_slack * self._mean_spread_on_host(scalars),
            float(self.scale.temperature_of(features.shape[1], on_host=True)),
            float(self._ramped_weight()),
            parts,
        )
        return step_terms(logits, features, constants, table)

    def _margins_on_host(self, scalars: NDArray[Any]) -> NDArray[Any]:
        """Return ``γ / c̄`` ``[K]`` from the class scalars, by the short way where it applies."""
        warm = not self.warmup_steps or self.statistics._buffer("updates").item() > self.warmup_steps
        if self.margin_source != "uniform" and warm:
            statistic = scalars[3 if self.margin_source == "sqnorm" else 1]
            if self.margin_source == "relative-spread":
                statistic = relative_spread(statistic, self.statistics._buffer("class_separation").numpy())
            margins = relative_margins_on_host(statistic, self.margin_power, self.margin_limits)
            if margins is not None:
                return margins
        general: NDArray[Any] = self._relative_margins().numpy()
        return general

    def _mean_spread_on_host(self, scalars: NDArray[Any]) -> float:
        weight, spread = scalars[0], scalars[1]
        seen = len(weight) if self.unseen == "zero" or weight.all() else max(int(np.count_nonzero(weight)), 1)
        return float(np.add.reduce(spread)) / seen

    # --- input -------------------------------------------------------------------------------------------------

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if f"{prefix}peak_variance" in state_dict:  # where it was before 0.4.0
            state_dict[f"{prefix}scale.peak_variance"] = state_dict.pop(f"{prefix}peak_variance")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _all_finite(self, rows: Tensor, square: Tensor) -> bool:
        """Return whether no squared norm is NaN or inf, as far as can be told without making a device wait.

        Raises:
            ValueError: ``checks`` are on and a feature itself is NaN or inf.
        """
        if uses_dense_layout(rows):
            return False
        # Squares whose sum is beyond the type would spoil the statistics as much as one that is no number.
        if float(square.numpy().sum(dtype="float64")) <= _LARGEST[square.dtype]:
            return True
        bad = int((~torch.isfinite(rows)).any(1).sum())
        if self.checks and bad:
            raise ValueError(f"features must be finite, got NaN or inf in {bad} of {rows.shape[0]} rows")
        return False

    # --- state -------------------------------------------------------------------------------------------------

    def _follow_variance(self, on_host: bool) -> None:
        """Keep the largest total variance so far, and look for collapse (on the CPU)."""
        if self.statistics.overall_moved:
            self.scale.follow(self.statistics)
        if on_host:
            self.scale.look_for_collapse(self.statistics, self.representation_weight)

    @torch.no_grad()
    def _remember(
        self,
        rows: Tensor,
        labels: Tensor,
        finite: Tensor | None,
        row_weight: Tensor | None,
        synchronize: bool,
    ) -> None:
        assert self.memory is not None
        if finite is not None:
            row_weight = finite.to(rows.dtype) if row_weight is None else finite * row_weight
        if synchronize:  # every rank takes part in every gather, whatever its own rows are like
            row_weight = torch.ones_like(rows[:, 0]) if row_weight is None else row_weight
            rows, labels, row_weight = (gather_rows(part)[0] for part in (rows, labels, row_weight))
        self.memory.store(rows, labels, row_weight)

    # --- constants of one step ---------------------------------------------------------------------------------

    def _relative_margins(self) -> Tensor:
        statistics = self.statistics
        if self.margin_source == "uniform" or self.margin_power == 0.0:
            return torch.ones_like(statistics.class_spread)
        seen = None if self.unseen == "zero" else statistics.seen
        if self.margin_source == "relative-spread":
            source = statistics.class_relative_spread
            seen = source > 0  # one sample, or one class, has no relative spread yet
        else:
            source = statistics.class_sqnorm if self.margin_source == "sqnorm" else statistics.class_spread
        relative = relative_margins(source, self.margin_power, seen, self.margin_limits)
        if self.warmup_steps:
            relative = torch.where(
                statistics.updates > self.warmup_steps, relative, torch.ones_like(relative)
            )
        return relative

    def _ramped_weight(self) -> Tensor | float:
        if not self.warmup_steps:
            return self.representation_weight
        return self.representation_weight * (self.statistics.updates / self.warmup_steps).clamp_max(1.0)

    # --- the two terms -----------------------------------------------------------------------------------------

    def _sample_margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        if uses_dense_layout(logits):
            class_margins = self.class_margins
        else:
            scalars = self.statistics.class_scalars.numpy()
            class_margins = self.mean_margin * torch.from_numpy(self._margins_on_host(scalars))
        return logit_margin.sample_margins(class_margins.to(logits.dtype), labels)

    def _logit_term(
        self, logits: Tensor, labels: Tensor, margins: Tensor, row_weight: Tensor | None, synchronize: bool
    ) -> Tensor:
        hard = not labels.is_floating_point()
        losses = logit_margin.per_sample_losses(
            logits, labels, margins, self.log_prior, self.weight, self.label_smoothing, ignore_index=-100
        )
        if self.weigh_by_margin:
            losses = losses * (margins / self.mean_margin)
        weights = row_weight
        if hard and self.weight is not None:
            weights = self.weight.to(losses.dtype).index_select(0, labels)
            if row_weight is not None:
                losses, weights = losses * row_weight, weights * row_weight
            return mean_over_rows(losses, None, synchronize, denominators=weights)
        return mean_over_rows(losses, weights, synchronize)

    def _representation_term(
        self,
        rows: Tensor,
        labels: Tensor,
        groups: Groups | None,
        row_weight: Tensor | None,
        confidence: Tensor | None,
        synchronize: bool,
    ) -> Tensor:
        if self.representation_weight == 0.0:
            return rows[:, :0].sum()  # a zero that keeps the graph
        with torch.no_grad():
            mean_spread = self.mean_spread.to(rows.dtype)
            if self.spread_slack != 1.0:
                mean_spread = mean_spread * self.spread_slack
            temperature = self.scale.temperature_of(rows.shape[1], on_host=not uses_dense_layout(rows))
            if isinstance(temperature, Tensor):
                temperature = temperature.to(rows.dtype)
        if self.positives == "moments":
            losses = moment_losses(rows, labels, self.statistics, mean_spread, temperature)
        else:
            losses = classmate_losses(
                rows, labels, mean_spread, temperature, groups, row_weight, self.memory, synchronize
            )
        if confidence is not None:
            losses = losses * confidence
        if self.representation_reduction == "classes":
            mean = mean_over_classes(losses, labels, self.num_classes, row_weight, synchronize)
        else:
            mean = mean_over_rows(losses, row_weight, synchronize)
        return mean if self.dimension_scale is None else mean * (self.dimension_scale * rows.shape[1])
