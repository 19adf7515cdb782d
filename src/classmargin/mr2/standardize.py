"""Standardised features ``φ̃ = (φ - mean) / sqrt(total variance)`` of a batch, over all processes together.

Scaling or shifting all features changes nothing, so shrinking them earns nothing: a pull whose scale is a constant for autograd
can be made small by mapping every sample to one point. This one cannot, because mean and variance are differentiated too.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from classmargin._distributed import all_reduce_sum, gather_blocks
from classmargin.mr2.equations import denominator, squared_norm

SMALLEST_VARIANCE = 1e-24  # the cube of its inverse root, in the gradient, is still a float32
ROUNDING = 4.0  # units in which the mean of equal rows may differ from them


class Centred(NamedTuple):
    """The features of a batch around their mean; all of it constant for autograd."""

    rows: Tensor  # φ - mean [B, d]
    mean: Tensor  # [d]
    variance: Tensor  # mean of ‖φ - mean‖², scalar: the total variance
    shares: Tensor  # weight of each sample over each of the sums [n, B]; mean and variance take the first


@torch.no_grad()
def centre(features: Tensor, weights: Tensor, synchronize: bool = False) -> Centred:
    """Return the features around their mean, and their total variance.

    Args:
        features: ``φ`` ``[B, d]``, float32 or float64.
        weights: Weights of the samples, then what else is to be summed as the denominator of a mean ``[n, B]``.
        synchronize: Over the samples of all processes, in one message.

    Example:
        >>> batch = centre(torch.tensor([[1.0], [3.0]]), torch.ones(1, 2))
        >>> batch.mean, batch.variance
        (tensor([2.]), tensor(1.))
    """
    totals = denominator(weights.sum(1))
    shares = weights[0] / totals.unsqueeze(1)
    mean = torch.mv(features.T, shares[0])
    rows = features - mean
    variance = torch.dot(shares[0], squared_norm(rows, 2.0))
    if synchronize:  # counts, means and variances of the ranks merge exactly, wherever the origin is
        blocks = gather_blocks(torch.cat((totals, variance.unsqueeze(0), mean)).unsqueeze(0))
        sums, variances, means = blocks.tensor_split([len(totals), len(totals) + 1], 1)
        totals = sums.sum(0)
        of_rank = sums[:, 0] / totals[0]
        mean = torch.mv(means.T, of_rank)
        variance = torch.dot(of_rank, variances.squeeze(1) + (means - mean).square().sum(1))
        rows, shares = features - mean, weights[0] / totals.unsqueeze(1)
    return Centred(rows, mean, variance, shares)


def standardize(features: Tensor, batch: Centred, synchronize: bool = False) -> Tensor:
    """Return ``φ̃`` ``[B, d]``; 0 where all features are equal.

    Args:
        features: ``φ`` ``[B, d]``, which the gradient is for.
        batch: The same features, centred.
        synchronize: Whether mean and variance are those of all processes.

    Example:
        >>> phi = torch.tensor([[1.0], [3.0]])
        >>> standardize(phi, centre(phi, torch.ones(1, 2)))
        tensor([[-1.],
                [ 1.]])
    """
    variance = divisor(batch.variance, batch.mean)
    points: Tensor = _Standardize.apply(features, batch.rows, variance, batch.shares[0], synchronize)[0]  # type: ignore[no-untyped-call]
    return points


def divisor(variance: Tensor, mean: Tensor) -> Tensor:
    """Return the total variance to divide by; inf where it is no more than the rounding of the mean (one row, equal rows).

    Divided by inf such features and their gradients are 0; divided by itself they would be noise, inf or NaN.
    """
    units = (ROUNDING * torch.finfo(mean.dtype).eps) ** -2
    excess = torch.sub(torch.dot(mean, mean), variance, alpha=units)
    return variance.masked_fill(excess >= -units * SMALLEST_VARIANCE, math.inf)


class _Standardize(torch.autograd.Function):
    """``φ̃`` and ``1/σ``, differentiated with respect to ``φ`` through the mean *and* the variance of the batch.

    With ``h = ∂L/∂φ̃`` and shares ``w``, ``∂L/∂φ_i = [h_i - w_i (Σ_j h_j + φ̃_i Σ_j h_j·φ̃_j)] / σ``: no shift and no common
    factor of the features has a gradient. By hand, because autograd takes twice the operators and memory; ``1/σ`` is an
    output so that the gradient can be differentiated again.
    """

    @staticmethod
    def forward(
        features: Tensor, rows: Tensor, variance: Tensor, share: Tensor, synchronize: bool
    ) -> tuple[Tensor, Tensor]:
        inverse = variance.rsqrt()
        return rows * inverse, inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *_, share, ctx.synchronize = inputs
        ctx.save_for_backward(*output, share)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_inverse: Tensor | None) -> tuple[Tensor | None, ...]:
        points, inverse, share = ctx.saved_tensors
        pull = torch.zeros_like(points) if gradient is None else gradient
        shift, scale = pull.sum(0), torch.dot(pull.reshape(-1), points.reshape(-1))
        if of_inverse is not None:
            scale = scale + of_inverse * inverse
        if ctx.synchronize:
            shift, scale = all_reduce_sum(torch.cat((shift, scale.unsqueeze(0)))).tensor_split([-1])
        pull = torch.addr(pull, share, shift, alpha=-1.0)
        pull = pull.addcmul_(points, (share * scale).unsqueeze(1), value=-1.0).mul_(inverse)
        return pull, None, None, None, None


# Kept, because ``Function.apply`` asks for it at every call: an eighth of a small step.
_Standardize.forward.__signature__ = inspect.signature(_Standardize.forward)  # type: ignore[attr-defined]
