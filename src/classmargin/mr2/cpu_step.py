"""The common training step on the CPU as one autograd function.

Same values as the general path (tested against it), for the case that nearly every step is: hard labels, no class
weights, no smoothing, positives from the batch or from the moments of the classes, few enough pairs to list them, one
process. Because the outputs are scalars their gradients are known in the forward pass; writing them there

* needs one pass of ``exp`` over ``[B, K]`` and one temporary of that size for forward and backward together,
* touches features only in pairs that exist (:mod:`classmargin.mr2.batch_table`), or once against the mean of their class,
* leaves autograd a single node (at B = 128 the cost of a step is the number of calls, not the arithmetic).

Arrays the size of the batch or of the pair list are NumPy's (cheaper calls), those with ``K`` or ``d`` columns torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from classmargin._types import LossTerms
from classmargin.mr2.batch_table import BatchTable, batch_table
from classmargin.mr2.class_groups import CompactGroups
from classmargin.mr2.logit_margin import per_sample_losses
from classmargin.mr2.positives import soft_excess
from classmargin.mr2.representation_margin import listed_pair_losses

SAFE_PROBABILITY = 1e-30  # float32 underflows at 1e-38


class RowMoments(NamedTuple):
    """Mean and spread of the class of each row: copies, for the statistics move on before a second backward pass.

    Attributes:
        mean: ``μ̂_y`` ``[B, d]``.
        spread: ``‖ŝ_y‖²`` ``[B]``.
    """

    mean: Tensor
    spread: NDArray[Any]


class StepConstants(NamedTuple):
    """What autograd takes as given in one step.

    Attributes:
        labels: Classes ``[B]``.
        groups: The same, grouped.
        has_pull: Whether there is anything to pull a row to, and λ is not 0.
        inverse_margins: ``1 / γ_y`` of each row ``[B, 1]``.
        row_weights: Factor on ℓ_γ of each row ``[B]`` (``weigh_by_margin``), or None.
        moments: What ``positives="moments"`` pulls to; None pulls the pairs of the batch.
        by_confidence: Whether the pull of a row counts with the probability of its class (moments only).
        log_prior: Offset ``[K]`` or None.
        mean_spread: ``s̄``.
        temperature: ``τ``.
        representation_weight: ``λ`` with its ramp.
        parts: Whether the parts of the total are wanted too.
    """

    labels: Tensor
    groups: CompactGroups
    has_pull: bool
    inverse_margins: NDArray[Any]
    row_weights: NDArray[Any] | None
    moments: RowMoments | None
    by_confidence: bool
    log_prior: Tensor | None
    mean_spread: float
    temperature: float
    representation_weight: float
    parts: bool


def step_terms(logits: Tensor, features: Tensor, constants: StepConstants, table: BatchTable) -> LossTerms:
    """Return total, logit margin and representation margin, each a scalar with its own gradient.

    Without ``constants.parts`` all three are the total: each output more costs a tenth of the step at B = 128.
    """
    terms = _CpuStep.apply(logits, features, constants, table)  # type: ignore[no-untyped-call]
    return LossTerms(*terms) if constants.parts else LossTerms(terms, terms, terms)


class _CpuStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, features: Tensor, constants: StepConstants, table: BatchTable
    ) -> Any:
        logit, ctx.logit_gradient, confidence = _logit_margin(logits, constants)
        ctx.confidence = confidence if constants.by_confidence else None
        pair, ctx.feature_gradient = _representation_margin(
            features, constants, table, ctx.confidence, ctx.needs_input_grad[1]
        )
        ctx.save_for_backward(logits, features)
        ctx.constants = constants
        total = logit + constants.representation_weight * pair
        if not constants.parts:
            return _scalar(total, constants)
        ctx.set_materialize_grads(False)
        return _scalar(total, constants), _scalar(logit, constants), _scalar(pair, constants)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the general form instead
            return (*_differentiable_gradients(ctx, gradients), None, None)
        total, logit, pair = _three([0.0 if each is None else each.item() for each in gradients], 0.0)
        logits, features = ctx.saved_tensors
        constants: StepConstants = ctx.constants
        # The gradients are handed over, not copied; a second backward pass over the same graph makes them again.
        for_logits, ctx.logit_gradient = ctx.logit_gradient, None
        if for_logits is None:
            for_logits = _logit_margin(logits, constants)[1]
        if total + logit != 1.0:
            for_logits = for_logits * (total + logit)
        if not ctx.needs_input_grad[1]:
            return for_logits, None, None, None
        for_features, ctx.feature_gradient = ctx.feature_gradient, None
        weight = constants.representation_weight
        if for_features is None or (
            weight == 0.0 and pair
        ):  # λ = 0: the gradient at hand is 0 times what is wanted
            weight = weight or 1.0
            again = constants._replace(representation_weight=weight)
            for_features = _representation_margin(features, again, None, ctx.confidence, True)[1]
        factor = total * (constants.representation_weight / (weight or 1.0)) + pair / (weight or 1.0)
        return for_logits, for_features if factor == 1.0 else for_features * factor, None, None


def _scalar(value: float, constants: StepConstants) -> Tensor:
    return torch.from_numpy(np.array(value, constants.inverse_margins.dtype))  # a third of torch.full


def _three(values: Sequence[Any], default: Any) -> tuple[Any, Any, Any]:
    """Return what belongs to total, logit margin and representation margin, where only the first may be there."""
    return (values[0], default, default) if len(values) == 1 else (values[0], values[1], values[2])


def _logit_margin(logits: Tensor, constants: StepConstants) -> tuple[float, Tensor, NDArray[Any]]:
    """Return the mean of Eq. 1, its gradient ``(softmax - onehot) / (γ B)`` and the probabilities of the own classes.

    Logits, probabilities and gradient share one piece of memory.
    """
    factors, weights = constants.inverse_margins, constants.row_weights
    gradient = _scaled(logits, constants).contiguous()
    torch.softmax(gradient, 1, out=gradient)
    rows, classes = gradient.shape
    flat = gradient.numpy().reshape(-1)
    place = _row_starts(rows, classes) + constants.groups.labels
    true = flat.take(place)
    if np.minimum.reduce(true) > SAFE_PROBABILITY:
        losses = np.log(true)
    else:  # the probability underflows long before its logarithm does
        losses = -F.cross_entropy(_scaled(logits, constants), constants.labels, reduction="none").numpy()
    if weights is not None:
        losses, factors = losses * weights, factors * weights[:, None]
    flat[place] = true - 1.0
    gradient.mul_(torch.from_numpy(factors * (1.0 / rows)))
    return -float(np.add.reduce(losses)) / rows, gradient, true


@lru_cache(maxsize=8)
def _row_starts(rows: int, classes: int) -> NDArray[np.int64]:
    return np.arange(0, rows * classes, classes)


def _scaled(logits: Tensor, constants: StepConstants) -> Tensor:
    scaled = torch.mul(logits, torch.from_numpy(constants.inverse_margins))
    if constants.log_prior is not None:
        scaled += constants.log_prior.to(scaled.dtype)
    return scaled


def _representation_margin(
    features: Tensor,
    constants: StepConstants,
    table: BatchTable | None,
    confidence: NDArray[Any] | None,
    wants_gradient: bool,
) -> tuple[float, Tensor | None]:
    """Return the mean of Eq. 2, and the gradient of λ times it where wanted; without a table one is made."""
    if not constants.has_pull:
        return 0.0, torch.zeros_like(features) if wants_gradient else None
    if constants.moments is not None:
        return _moment_pull(features.detach(), constants, constants.moments, confidence, wants_gradient)
    table = batch_table(features.detach(), constants.groups) if table is None else table
    return table.pull(
        2.0 * constants.mean_spread, constants.temperature, constants.representation_weight, wants_gradient
    )


def _moment_pull(
    features: Tensor,
    constants: StepConstants,
    moments: RowMoments,
    confidence: NDArray[Any] | None,
    wants_gradient: bool,
) -> tuple[float, Tensor | None]:
    """Return the mean of ``ln(1 + exp e)`` with ``e = (‖φ - μ̂_y‖² + ‖ŝ_y‖² - 2 s̄) / τ``, and the gradient of λ times it."""
    difference = features - moments.mean
    distance = torch.linalg.vecdot(difference, difference).numpy() + moments.spread
    exponent = (distance - 2.0 * constants.mean_spread) / constants.temperature
    losses = np.logaddexp(exponent, 0.0)
    share = 1.0 / len(losses) if confidence is None else confidence / len(losses)
    total = float(np.add.reduce(losses * share))
    if not wants_gradient:
        return total, None
    slope = (
        np.exp(exponent - losses) * share * (2.0 * constants.representation_weight / constants.temperature)
    )
    return total, difference.mul_(torch.from_numpy(slope.astype(distance.dtype)[:, None]))


def _differentiable_gradients(ctx: Any, upstream: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    logits, features = ctx.saved_tensors
    constants: StepConstants = ctx.constants
    total, logit_only, pair_only = (
        logits.new_zeros(()) if gradient is None else gradient for gradient in _three(upstream, None)
    )
    margins = torch.from_numpy(1.0 / constants.inverse_margins[:, 0])
    losses = per_sample_losses(logits, constants.labels, margins, constants.log_prior, None, 0.0, -100)
    if constants.row_weights is not None:
        losses = losses * torch.from_numpy(constants.row_weights)
    logit = losses.mean() * (total + logit_only)
    for_logits = torch.autograd.grad(logit, logits, create_graph=True)[0]
    if not ctx.needs_input_grad[1]:
        return for_logits, None
    if not constants.has_pull:
        return for_logits, torch.zeros_like(features)
    if constants.moments is None:
        pairs = listed_pair_losses(features, constants.groups, constants.mean_spread, constants.temperature)
    else:
        mean, spread = constants.moments
        distance = (features - mean).square().sum(1) + torch.from_numpy(spread)
        pairs = soft_excess(distance, constants.mean_spread, constants.temperature)
    if ctx.confidence is not None:
        pairs = pairs * torch.from_numpy(ctx.confidence)
    pair = pairs.mean() * (total * constants.representation_weight + pair_only)
    return for_logits, torch.autograd.grad(pair, features, create_graph=True)[0]
