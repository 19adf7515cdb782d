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


def standardize(batch: Centred) -> tuple[Tensor, Tensor]:
    """Return ``φ̃`` ``[B, d]``, in place of ``batch.rows``, and ``1/σ``: constants for autograd, 0 where all features are equal.

    Example:
        >>> standardize(centre(torch.tensor([[1.0], [3.0]]), torch.ones(1, 2)))
        (tensor([[-1.],
                [ 1.]]), tensor(1.))
    """
    inverse = divisor(batch.variance, batch.mean).rsqrt()
    return batch.rows.mul_(inverse), inverse


def distances(
    features: Tensor, points: Tensor, inverse: Tensor, share: Tensor, targets: Tensor, synchronize: bool = False
) -> Tensor:
    """Return ``‖φ̃ - t‖²`` of each row ``[B]``, differentiated with respect to ``φ`` through the standardisation.

    Args:
        features: ``φ`` ``[B, d]``, which the gradient is for.
        points: ``φ̃``, from :func:`standardize`.
        inverse: ``1/σ``, from there.
        share: Share of each row in mean and variance ``[B]``.
        targets: ``t`` ``[B, d]``, constants; overwritten.
        synchronize: Whether mean and variance are those of all processes.

    Example:
        >>> phi = torch.tensor([[1.0], [3.0]])
        >>> batch = centre(phi, torch.ones(1, 2))
        >>> distances(phi, *standardize(batch), batch.shares[0], torch.zeros(2, 1))
        tensor([1., 1.])
    """
    away = targets.sub_(points)
    found: Tensor = _Distances.apply(features, away, points, inverse, share, synchronize)  # type: ignore[no-untyped-call]
    return found


def divisor(variance: Tensor, mean: Tensor) -> Tensor:
    """Return the total variance to divide by; inf where it is no more than the rounding of the mean (one row, equal rows).

    Divided by inf such features and their gradients are 0; divided by itself they would be noise, inf or NaN.
    """
    units = (ROUNDING * torch.finfo(mean.dtype).eps) ** -2
    excess = torch.sub(torch.dot(mean, mean), variance, alpha=units)
    return variance.masked_fill(excess >= -units * SMALLEST_VARIANCE, math.inf)


class _Distances(torch.autograd.Function):
    """``‖t - φ̃‖²`` per row, differentiated with respect to ``φ`` through the mean *and* the variance of the batch.

    With ``h = ∂L/∂φ̃`` and shares ``w``, ``∂L/∂φ_i = [h_i - w_i (Σ_j h_j + φ̃_i Σ_j h_j·φ̃_j)] / σ``: no shift and no common
    factor of the features has a gradient. By hand, because autograd takes more operators and memory.
    """

    @staticmethod
    def forward(
        features: Tensor, away: Tensor, points: Tensor, inverse: Tensor, share: Tensor, synchronize: bool
    ) -> Tensor:
        return squared_norm(away, 2.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.synchronize = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        features, away, points, inverse, share = ctx.saved_tensors
        again = torch.is_grad_enabled()  # it will be differentiated: points and 1/σ become functions of the features
        if again:
            if ctx.synchronize:
                raise NotImplementedError(
                    "second derivatives of the loss need a single process: gradients are summed over ranks"
                )
            # Sums of products, because autocast takes matrix products in half precision.
            centred = features - (share.unsqueeze(1) * features).sum(0)
            variance = (share * centred.square().sum(1)).sum().masked_fill(inverse == 0, math.inf)
            targets, inverse = away + points, variance.rsqrt()
            points = centred * inverse
            away = targets - points
        pull = away * (gradient * inverse).mul_(-2.0).unsqueeze(1)  # h / σ
        shift, scale = pull.sum(0), torch.dot(pull.reshape(-1), points.reshape(-1))
        if ctx.synchronize:
            shift, scale = all_reduce_sum(torch.cat((shift, scale.unsqueeze(0)))).tensor_split([-1])
        if again:
            return pull - share.unsqueeze(1) * (shift + scale * points), None, None, None, None, None
        pull = pull.addr_(share, shift, alpha=-1.0).addcmul_(points, (share * scale).unsqueeze(1), value=-1.0)
        return pull, None, None, None, None, None


# Kept, because ``Function.apply`` asks for it at every call: an eighth of a small step.
_Distances.forward.__signature__ = inspect.signature(_Distances.forward)  # type: ignore[attr-defined]
