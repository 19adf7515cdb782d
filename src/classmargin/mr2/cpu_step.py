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

from classmargin.mr2.class_groups import CompactGroups, Integers, same_class_pairs
from classmargin.mr2.logit_margin import per_sample_losses
from classmargin.mr2.representation_margin import listed_pair_losses


class StepConstants(NamedTuple):
    """What autograd takes as given in one step.

    Attributes:
        labels: Classes ``[B]``.
        groups: The same, grouped.
        inverse_margins: ``1 / γ_y`` of each row ``[B]``.
        log_prior: Offset ``[K]`` or None.
        mean_spread: ``s̄``.
        temperature: ``τ``.
        representation_weight: ``λ`` with its ramp.
    """

    labels: Tensor
    groups: CompactGroups
    inverse_margins: NDArray[Any]
    log_prior: Tensor | None
    mean_spread: float
    temperature: float
    representation_weight: float


def step_terms(logits: Tensor, features: Tensor, constants: StepConstants) -> tuple[Tensor, Tensor, Tensor]:
    """Return total, logit margin and representation margin, each a scalar with its own gradient."""
    terms: tuple[Tensor, Tensor, Tensor] = _CpuStep.apply(logits, features, constants)  # type: ignore[no-untyped-call]
    return terms


class _CpuStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, features: Tensor, constants: StepConstants) -> tuple[Tensor, Tensor, Tensor]:
        logit, ctx.logit_gradient = _logit_margin(logits, constants)
        pair, ctx.feature_gradient = _representation_margin(features, constants, ctx.needs_input_grad[1])
        ctx.save_for_backward(logits, features)
        ctx.constants = constants
        total = logit + constants.representation_weight * pair
        return logits.new_tensor(total), logits.new_tensor(logit), features.new_tensor(pair)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the general form instead
            return (*_differentiable_gradients(ctx, gradients), None)
        total, logit, pair = (float(gradient) for gradient in gradients)
        for_logits = ctx.logit_gradient * (total + logit)
        scale = total * ctx.constants.representation_weight + pair
        gradient = ctx.feature_gradient
        for_features = gradient if gradient is None else gradient * scale
        if gradient is None and ctx.needs_input_grad[1]:
            for_features = torch.zeros_like(ctx.saved_tensors[1])
        return for_logits, for_features, None


def _logit_margin(logits: Tensor, constants: StepConstants) -> tuple[float, Tensor]:
    """Return the mean of Eq. 1 and its gradient ``(softmax - onehot) / (γ B)``, made in place."""
    rows = logits.shape[0]
    inverse = torch.from_numpy(constants.inverse_margins).unsqueeze(1)
    scaled = logits * inverse
    if constants.log_prior is not None:
        scaled += constants.log_prior.to(scaled.dtype)
    label = constants.labels.unsqueeze(1)
    true = scaled.gather(1, label)
    largest = scaled.amax(1, keepdim=True)
    gradient = scaled.sub_(largest).exp_()
    total = gradient.sum(1, keepdim=True)
    loss = float(total.log().add_(largest).sub_(true).mean())
    inverse = inverse / rows
    gradient.mul_(inverse / total)
    gradient.scatter_add_(1, label, inverse.neg())
    return loss, gradient


def _representation_margin(
    features: Tensor, constants: StepConstants, wants_gradient: bool
) -> tuple[float, Tensor | None]:
    """Return the mean of Eq. 2 and its gradient (None where no row has a classmate)."""
    if constants.groups.longest < 2:
        return 0.0, None
    rows = features.shape[0]
    pairs = same_class_pairs(constants.groups)
    left, right = torch.from_numpy(pairs[0]), torch.from_numpy(pairs[1])
    difference = features.index_select(0, left).sub_(features.index_select(0, right))
    distance = torch.linalg.vector_norm(difference, dim=1).square_().numpy()
    losses, share = pair_softmax(distance, pairs, rows, constants.mean_spread, constants.temperature)
    if not wants_gradient:
        return float(losses.sum()) / rows, None
    pull = (share[: len(left)] + share[len(left) :]) * (2.0 / (constants.temperature * rows))
    difference.mul_(torch.from_numpy(pull.astype(distance.dtype)).unsqueeze(1))
    gradient = torch.zeros_like(features).index_add_(0, left, difference).index_add_(0, right, difference, alpha=-1)
    return float(losses.sum()) / rows, gradient


def pair_softmax(
    distance: NDArray[Any], pairs: tuple[Integers, Integers], rows: int, mean_spread: float, temperature: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ``ln(1 + Σ_j exp e_ij)`` of each row and the weight ``exp(e_ij) / (1 + Σ exp)`` of each pair at either end.

    Args:
        distance: Squared distances ``[P]``.
        pairs: The rows at both ends, ``[P]`` each.
        rows: ``B``.
        mean_spread: ``s̄``.
        temperature: ``τ``.

    Returns:
        Losses ``[B]``, and weights ``[2 P]``: seen from the first end, then from the second.
    """
    exponent = (distance.astype(np.float64) - 2.0 * mean_spread) / temperature
    both, twice = np.concatenate(pairs), np.concatenate((exponent, exponent))
    # Around the largest exponent of the row (at least 0, the exponent of the 1), so that nothing overflows.
    top = np.zeros(rows)
    if exponent.max() > SAFE_EXPONENT:
        np.maximum.at(top, both, twice)
        scaled = np.exp(twice - top[both])
    else:
        scaled = np.exp(twice)
    total = np.exp(-top) + np.bincount(both, scaled, rows)
    return top + np.log(total), scaled / total[both]


SAFE_EXPONENT = 500.0  # float64 overflows at 709


def _differentiable_gradients(ctx: Any, upstream: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    logits, features = ctx.saved_tensors
    constants: StepConstants = ctx.constants
    margins = torch.from_numpy(1.0 / constants.inverse_margins)
    losses = per_sample_losses(logits, constants.labels, margins, constants.log_prior, None, 0.0, -100)
    logit = losses.mean() * (upstream[0] + upstream[1])
    for_logits = torch.autograd.grad(logit, logits, create_graph=True)[0]
    if not ctx.needs_input_grad[1]:
        return for_logits, None
    pair = listed_pair_losses(features, constants.groups, constants.mean_spread, constants.temperature).mean()
    pair = pair * (upstream[0] * constants.representation_weight + upstream[2])
    return for_logits, torch.autograd.grad(pair, features, create_graph=True)[0]
