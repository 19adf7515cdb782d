"""The common training step on the CPU as one autograd function.

Same values as the general path (tested against it), for the case that nearly every step is: hard labels, no class
weights, no smoothing, positives from the batch, few enough pairs to list them, one process. Because the outputs are
scalars their gradients are known in the forward pass; writing them there

* needs one pass of ``exp`` over ``[B, K]`` and one temporary of that size for forward and backward together,
* touches features only in pairs that exist,
* leaves autograd a single node (at B = 128 the cost of a step is the number of calls, not the arithmetic).

Arrays the size of the batch or of the pair list are NumPy's (cheaper calls), those with ``K`` or ``d`` columns torch's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2.class_groups import SMALL, CompactGroups, PairList, list_pairs
from classmargin.mr2.logit_margin import per_sample_losses
from classmargin.mr2.representation_margin import listed_pair_losses

SAFE_EXPONENT = 500.0  # float64 overflows at 709
SAFE_PROBABILITY = 1e-30  # float32 underflows at 1e-38


class StepConstants(NamedTuple):
    """What autograd takes as given in one step.

    Attributes:
        labels: Classes ``[B]``.
        groups: The same, grouped.
        pairs: Same-class pairs of the features; None where there is none.
        inverse_margins: ``1 / γ_y`` of each row ``[B]``.
        log_prior: Offset ``[K]`` or None.
        mean_spread: ``s̄``.
        temperature: ``τ``.
        representation_weight: ``λ`` with its ramp.
        spent: Memory like the features that may be written on, or None.
    """

    labels: Tensor
    groups: CompactGroups
    pairs: PairList | None
    inverse_margins: NDArray[Any]
    log_prior: Tensor | None
    mean_spread: float
    temperature: float
    representation_weight: float
    spent: Tensor | None = None


def step_terms(logits: Tensor, features: Tensor, constants: StepConstants) -> tuple[Tensor, Tensor, Tensor]:
    """Return total, logit margin and representation margin, each a scalar with its own gradient."""
    total, logit, pair = _CpuStep.apply(logits, features, constants, True)  # type: ignore[no-untyped-call]
    return total, logit, pair


def step_total(logits: Tensor, features: Tensor, constants: StepConstants) -> Tensor:
    """Return the total alone: each output more costs a tenth of the step at B = 128."""
    total: Tensor = _CpuStep.apply(logits, features, constants, False)  # type: ignore[no-untyped-call]
    return total


class _CpuStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, features: Tensor, constants: StepConstants, parts: bool) -> Any:
        logit, ctx.logit_gradient = _logit_margin(logits, constants)
        pair, ctx.feature_gradient = _representation_margin(features, constants, ctx.needs_input_grad[1])
        ctx.save_for_backward(logits, features)
        ctx.has_pairs = constants.pairs is not None
        ctx.constants = constants._replace(pairs=None, spent=None)  # both are used up
        ctx.set_materialize_grads(False)
        total = logit + constants.representation_weight * pair
        if not parts:
            return torch.full((), total, dtype=logits.dtype)
        return tuple(torch.full((), value, dtype=logits.dtype) for value in (total, logit, pair))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the general form instead
            return (*_differentiable_gradients(ctx, gradients), None, None)
        total, logit, pair = (0.0 if each is None else float(each) for each in _three(gradients))
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
            pairs = list_pairs(features, constants.groups) if ctx.has_pairs else None
            again = constants._replace(pairs=pairs, representation_weight=weight)
            for_features = _representation_margin(features, again, True)[1]
        factor = total * (constants.representation_weight / (weight or 1.0)) + pair / (weight or 1.0)
        return for_logits, for_features if factor == 1.0 else for_features * factor, None, None


def _three(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return gradients if len(gradients) == 3 else (*gradients, None, None)


def _logit_margin(logits: Tensor, constants: StepConstants) -> tuple[float, Tensor]:
    """Return the mean of Eq. 1 and its gradient ``(softmax - onehot) / (γ B)``, all in one piece of memory."""
    inverse = constants.inverse_margins
    gradient = _scaled(logits, constants).contiguous()
    torch.softmax(gradient, 1, out=gradient)
    array = gradient.numpy()
    rows, classes = array.shape
    flat, place = array.reshape(-1), np.arange(0, rows * classes, classes) + constants.groups.labels
    true = flat.take(place)
    if true.min() > SAFE_PROBABILITY:
        loss = -float(np.log(true).sum(dtype=np.float64)) / rows
    else:  # the probability underflows long before its logarithm does
        loss = float(F.cross_entropy(_scaled(logits, constants), constants.labels))
    flat[place] = true - 1.0
    array *= (inverse / inverse.dtype.type(rows))[:, None]
    return loss, gradient


def _scaled(logits: Tensor, constants: StepConstants) -> Tensor:
    scaled = torch.mul(logits, torch.from_numpy(constants.inverse_margins[:, None]))
    if constants.log_prior is not None:
        scaled += constants.log_prior.to(scaled.dtype)
    return scaled


def _representation_margin(
    features: Tensor, constants: StepConstants, wants_gradient: bool
) -> tuple[float, Tensor | None]:
    """Return the mean of Eq. 2, and the gradient of λ times it where wanted. Uses the pairs up."""
    pairs, rows, gradient = constants.pairs, features.shape[0], None
    if wants_gradient:
        spent = constants.spent
        usable = spent is not None and spent.dtype == features.dtype
        gradient = spent.zero_() if spent is not None and usable else torch.zeros_like(features)
    if pairs is None:  # nobody has a classmate
        return 0.0, gradient
    losses, pull = pair_softmax(pairs, rows, constants.mean_spread, constants.temperature)
    mean = float(losses.sum()) / rows
    if gradient is None:
        return mean, None
    pull *= 2.0 * constants.representation_weight / (constants.temperature * rows)
    force, array = pairs.difference, pairs.difference.numpy()
    array *= pull.astype(array.dtype)[:, None]
    if array.size <= SMALL:  # two calls in one
        both = np.concatenate((pairs.left, pairs.right))
        force = torch.from_numpy(np.concatenate((array, -array)))
        return mean, gradient.index_add_(0, torch.from_numpy(both), force)
    gradient.index_add_(0, torch.from_numpy(pairs.left), force)
    return mean, gradient.index_add_(0, torch.from_numpy(pairs.right), force, alpha=-1)


def pair_softmax(
    pairs: PairList, rows: int, mean_spread: float, temperature: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``ln(1 + Σ_j exp e_ij)`` of each row and what the two ends of each pair weigh together.

    Args:
        pairs: The pairs and their squared distances.
        rows: ``B``.
        mean_spread: ``s̄``.
        temperature: ``τ``.

    Returns:
        Losses ``[B]``, and ``exp(e_ij) / (1 + Σ_j' exp e_ij') + exp(e_ij) / (1 + Σ_i' exp e_i'j)`` ``[P]``.
    """
    left, right = pairs.left, pairs.right
    exponent = pairs.distance.astype(np.float64)
    exponent -= 2.0 * mean_spread
    exponent /= temperature
    if exponent.max() <= SAFE_EXPONENT:
        scaled = np.exp(exponent, out=exponent)
        total: NDArray[Any] = np.bincount(left, scaled, rows)
        total += np.bincount(right, scaled, rows)
        total += 1.0
        inverse = 1.0 / total
        return np.log(total), scaled * (inverse.take(left) + inverse.take(right))
    # Around the largest exponent of the row (at least 0, the exponent of the 1), so that nothing overflows.
    top = np.zeros(rows)
    np.maximum.at(top, left, exponent)
    np.maximum.at(top, right, exponent)
    from_left, from_right = np.exp(exponent - top[left]), np.exp(exponent - top[right])
    total = np.bincount(left, from_left, rows) + np.bincount(right, from_right, rows) + np.exp(-top)
    return top + np.log(total), from_left / total[left] + from_right / total[right]


def _differentiable_gradients(ctx: Any, upstream: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    logits, features = ctx.saved_tensors
    constants: StepConstants = ctx.constants
    total, logit_only, pair_only = (
        logits.new_zeros(()) if gradient is None else gradient for gradient in _three(upstream)
    )
    margins = torch.from_numpy(1.0 / constants.inverse_margins)
    losses = per_sample_losses(logits, constants.labels, margins, constants.log_prior, None, 0.0, -100)
    logit = losses.mean() * (total + logit_only)
    for_logits = torch.autograd.grad(logit, logits, create_graph=True)[0]
    if not ctx.needs_input_grad[1]:
        return for_logits, None
    if not ctx.has_pairs:
        return for_logits, torch.zeros_like(features)
    pair = listed_pair_losses(features, constants.groups, constants.mean_spread, constants.temperature).mean()
    pair = pair * (total * constants.representation_weight + pair_only)
    return for_logits, torch.autograd.grad(pair, features, create_graph=True)[0]
