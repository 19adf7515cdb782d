"""Classification heads: features ``[B, d]`` to logits ``[B, K]``.

A head has a ``weight`` (or ``means``) ``[K, d]``, on which classifier angles are measured. It may name parameters that
weight decay must never touch in ``no_weight_decay()``, and ones that learn faster than the network in ``lr_scales()``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_choice, check_int, check_number, did_you_mean
from classmargin._precision import at_least_float32

# Below this length a feature is treated as zero. The usual 1e-12 would turn the gradient of an all-zero
# feature (every ReLU inactive) into 1e12 and destroy the weights in one step.
_SMALLEST_NORM = 1e-4
_DEFAULT_SCALE = 16.0


class LinearHead(nn.Linear):
    """Logits ``W φ + b``.

    Args:
        in_features: Feature size d.
        num_classes: Number of classes K.
        bias: Whether classes have an offset.

    Example:
        >>> LinearHead(4, 3)(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, in_features: int, num_classes: int, *, bias: bool = True) -> None:
        super().__init__(in_features, num_classes, bias=bias)


class CosineHead(nn.Module):
    """Logits ``scale · cos(w_k, φ)``: weight rows and features have length 1, there is no bias.

    The scale is kept as its logarithm, so that it stays positive while it learns. Computed in float32 even
    under autocast: with a scale of 100 the three digits of bfloat16 would move logits by 0.4.

    Args:
        in_features: Feature size d.
        num_classes: Number of classes K.
        scale: Factor of the cosines (1 leaves bare cosines to a loss with a scale of its own). Left out: 16
            at the start, then learned.
        learnable_scale: Whether the scale is trained; left out: only where no ``scale`` is given.

    Example:
        >>> head = CosineHead(2, 2, scale=10.0)
        >>> _ = head.weight.data.copy_(torch.eye(2))
        >>> head(torch.tensor([[3.0, 4.0]])).round(decimals=3).tolist()
        [[6.0, 8.0]]
    """

    log_scale: Tensor

    def __init__(
        self, in_features: int, num_classes: int, *, scale: float | None = None, learnable_scale: bool | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.normal_(self.weight, std=in_features**-0.5)
        start = _DEFAULT_SCALE if scale is None else check_number("scale", scale, above=0.0)
        log_scale = torch.tensor(math.log(start))
        learned = scale is None if learnable_scale is None else learnable_scale
        if learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    @property
    def scale(self) -> Tensor:
        """Factor of the cosines, a positive scalar."""
        return self.log_scale.exp()

    def no_weight_decay(self) -> frozenset[str]:
        """Return the scale: decaying its logarithm would pull it to 1."""
        return frozenset({"log_scale"})

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``[B, K]`` in at least float32."""
        with torch.autocast(features.device.type, enabled=False):
            directions = F.normalize(at_least_float32(features), dim=-1, eps=_SMALLEST_NORM)
            weight = F.normalize(at_least_float32(self.weight), dim=-1, eps=_SMALLEST_NORM)
            return F.linear(directions, weight.to(directions.dtype)) * self.scale.to(directions.dtype)


class GaussianHead(nn.Module):
    """Logits ``−½‖φ − μ_k‖²``: each class is a Gaussian with a learned mean and unit covariance.

    Head of the large-margin Gaussian mixture loss; with equal class priors the softmax of these logits is the
    posterior. Computed in float32 even under autocast.

    Args:
        in_features: Feature size d.
        num_classes: Number of classes K.

    Example:
        >>> head = GaussianHead(2, 2)
        >>> _ = head.means.data.copy_(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
        >>> (head(torch.zeros(1, 2)) + 0.0).round(decimals=3).tolist()
        [[0.0, -12.5]]
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.kaiming_normal_(self.means)

    def lr_scales(self) -> dict[str, float]:
        """Return that the means learn twice as fast as the network, as Wan et al. (2018) publish it."""
        return {"means": 2.0}

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``[B, K]``, at most 0, in at least float32."""
        with torch.autocast(features.device.type, enabled=False):
            points = at_least_float32(features)
            means = at_least_float32(self.means).to(points.dtype)
            # Shifted by the average mean: distances do not notice, and rounding errors stay small far from 0.
            origin = means.mean(dim=0).detach()
            points, means = points - origin, means - origin
            half_norms = 0.5 * (points.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1))
            return (points @ means.T - half_norms).clamp(max=0.0)


Head = LinearHead | CosineHead | GaussianHead

HEAD_KINDS: dict[str, type[Head]] = {"linear": LinearHead, "cosine": CosineHead, "gaussian": GaussianHead}


def create_head(kind: str, in_features: int, num_classes: int, **options: Any) -> Head:
    """Return a head by its name.

    Args:
        kind: ``"linear"``, ``"cosine"`` or ``"gaussian"``.
        in_features: Feature size d.
        num_classes: Number of classes K.
        **options: Options of that head, e.g. ``scale`` of the cosine head.

    Example:
        >>> create_head("cosine", 64, 10, scale=30.0).weight.shape
        torch.Size([10, 64])
    """
    head_class = HEAD_KINDS[check_choice("head", kind, HEAD_KINDS)]
    known = option_names(head_class.__init__, skip=["in_features", "num_classes"])
    check_options(f"the {kind} head", options, known)
    check_int("in_features", in_features, minimum=1)
    check_int("num_classes", num_classes, minimum=1)
    return head_class(in_features, num_classes, **options)


def option_names(function: Callable[..., Any], *, skip: Iterable[str] = ()) -> list[str]:
    """Return the keyword names ``function`` accepts, without those in ``skip``."""
    left_out = {"self", *skip}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        p.name for p in inspect.signature(function).parameters.values() if p.kind in named and p.name not in left_out
    ]


def check_options(owner: str, options: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Raise ``ValueError`` naming the first option that ``owner`` does not know."""
    names = list(allowed)
    for option in options:
        if option not in names:
            known = f"its options are {', '.join(names)}" if names else "it has no options"
            raise ValueError(f"{owner} has no option {option!r}{did_you_mean(option, names)}; {known}")
