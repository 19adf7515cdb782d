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
from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2.class_groups import CompactGroups, PairList
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
    """

    labels: Tensor
    groups: CompactGroups
    pairs: PairList | None
    inverse_margins: NDArray[Any]
    log_prior: Tensor | None
    mean_spread: float
    temperature: float
    representation_weight: float


def step_terms(logits: Tensor, features: Tensor, constants: StepConstants) -> tuple[Tensor, Tensor, Tensor]:
    """Return total, logit margin and representation margin, each a scalar with its own gradient."""
    total, logit, pair = _CpuStep.apply(logits, features, constants)  # type: ignore[no-untyped-call]
    return total, logit, pair


class _CpuStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, features: Tensor, constants: StepConstants) -> tuple[Tensor, ...]:
        logit, ctx.logit_gradient = _logit_margin(logits, constants)
        pair, ctx.feature_gradient = _representation_margin(features, constants, ctx.needs_input_grad[1])
        ctx.save_for_backward(logits, features)
        ctx.constants = constants
        ctx.set_materialize_grads(False)
        total = logit + constants.representation_weight * pair
        return tuple(torch.full((), value, dtype=logits.dtype) for value in (total, logit, pair))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the general form instead
            return (*_differentiable_gradients(ctx, gradients), None)
        total, logit, pair = (0.0 if gradient is None else float(gradient) for gradient in gradients)
        logits, features = ctx.saved_tensors
        constants: StepConstants = ctx.constants
        # The gradients are handed over, not copied; a second backward pass over the same graph makes them again.
        for_logits, ctx.logit_gradient = ctx.logit_gradient, None
        if for_logits is None:
            for_logits = _logit_margin(logits, constants)[1]
        if total + logit != 1.0:
            for_logits = for_logits * (total + logit)
        if not ctx.needs_input_grad[1]:
            return for_logits, None, None
        for_features, ctx.feature_gradient = ctx.feature_gradient, None
        if for_features is None:
            for_features = _representation_margin(features, constants, True)[1]
        weight = total + pair / constants.representation_weight
        return for_logits, for_features if weight == 1.0 else for_features * weight, None


def _logit_margin(logits: Tensor, constants: StepConstants) -> tuple[float, Tensor]:
    """Return the mean of Eq. 1 and its gradient ``(softmax - onehot) / (γ B)``, made in place."""
    inverse = constants.inverse_margins[:, None]
    scaled = logits * torch.from_numpy(inverse)
    if constants.log_prior is not None:
        scaled += constants.log_prior.to(scaled.dtype)
    label = constants.labels.unsqueeze(1)
    gradient = torch.softmax(scaled, 1)
    true = gradient.gather(1, label).numpy()
    if true.min() > SAFE_PROBABILITY:
        loss = -float(np.log(true).sum(dtype=np.float64)) / len(true)
    else:  # the probability underflows long before its logarithm does
        loss = float((torch.logsumexp(scaled, 1, keepdim=True) - scaled.gather(1, label)).mean())
    share = inverse / inverse.dtype.type(len(inverse))
    gradient.mul_(torch.from_numpy(share)).scatter_add_(1, label, torch.from_numpy(-share))
    return loss, gradient


def _representation_margin(
    features: Tensor, constants: StepConstants, wants_gradient: bool
) -> tuple[float, Tensor | None]:
    """Return the mean of Eq. 2, and the gradient of λ times it where wanted."""
    pairs, rows = constants.pairs, features.shape[0]
    if pairs is None:  # nobody has a classmate
        return 0.0, torch.zeros_like(features) if wants_gradient else None
    losses, share = pair_softmax(pairs, rows, constants.mean_spread, constants.temperature)
    mean = float(losses.sum()) / rows
    if not wants_gradient:
        return mean, None
    count = len(pairs.left)
    pull = (share[:count] + share[count:]) * (
        2.0 * constants.representation_weight / (constants.temperature * rows)
    )
    force = pairs.difference * torch.from_numpy(pull.astype(pairs.distance.dtype)).unsqueeze(1)
    gradient = torch.zeros_like(features).index_add_(0, torch.from_numpy(pairs.left), force)
    return mean, gradient.index_add_(0, torch.from_numpy(pairs.right), force, alpha=-1)


def pair_softmax(
    pairs: PairList, rows: int, mean_spread: float, temperature: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``ln(1 + Σ_j exp e_ij)`` of each row and the weight ``exp(e_ij) / (1 + Σ exp)`` of each pair at either end.

    Args:
        pairs: The pairs and their squared distances.
        rows: ``B``.
        mean_spread: ``s̄``.
        temperature: ``τ``.

    Returns:
        Losses ``[B]``, and weights ``[2 P]``: seen from the first end, then from the second.
    """
    exponent = (pairs.distance.astype(np.float64) - 2.0 * mean_spread) / temperature
    both, twice = np.concatenate((pairs.left, pairs.right)), np.concatenate((exponent, exponent))
    if exponent.max() <= SAFE_EXPONENT:
        scaled = np.exp(twice)
        total: NDArray[Any] = np.bincount(both, scaled, rows) + 1.0
        return np.log(total), scaled / total[both]
    # Around the largest exponent of the row (at least 0, the exponent of the 1), so that nothing overflows.
    top = np.zeros(rows)
    np.maximum.at(top, both, twice)
    scaled = np.exp(twice - top[both])
    total = np.bincount(both, scaled, rows) + np.exp(-top)
    return top + np.log(total), scaled / total[both]


def _differentiable_gradients(ctx: Any, upstream: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor | None]:
    logits, features = ctx.saved_tensors
    constants: StepConstants = ctx.constants
    total, logit_only, pair_only = (
        logits.new_zeros(()) if gradient is None else gradient for gradient in upstream
    )
    margins = torch.from_numpy(1.0 / constants.inverse_margins)
    losses = per_sample_losses(logits, constants.labels, margins, constants.log_prior, None, 0.0, -100)
    logit = losses.mean() * (total + logit_only)
    for_logits = torch.autograd.grad(logit, logits, create_graph=True)[0]
    if not ctx.needs_input_grad[1]:
        return for_logits, None
    pair = listed_pair_losses(features, constants.groups, constants.mean_spread, constants.temperature).mean()
    pair = pair * (total * constants.representation_weight + pair_only)
    return for_logits, torch.autograd.grad(pair, features, create_graph=True)[0]
