"""Turn what users hold into checked float64 tensors on the CPU, through which gradients still flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classmargin._checks import check_choice, check_floating, check_hard_labels

FloatArray: TypeAlias = "Tensor | npt.NDArray[np.floating] | Sequence[float]"
LabelArray: TypeAlias = "Tensor | npt.NDArray[np.integer] | Sequence[int]"
Constants: TypeAlias = Literal["correct", "paper"]


def as_float64(name: str, values: FloatArray | float, *, dim: int) -> Tensor:
    """Return ``values`` as a finite float64 tensor on the CPU with ``dim`` dimensions."""
    given = values if isinstance(values, (np.ndarray, Tensor)) else torch.as_tensor(values, dtype=torch.float64)
    tensor = check_floating(name, torch.as_tensor(_for_torch(given)), dim=dim).to("cpu", torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return tensor


def _for_torch(values: Any) -> Any:
    """Copy an array, which torch might refuse or warn about: read-only, reversed, in foreign byte order."""
    return np.array(values, dtype=values.dtype.newbyteorder("=")) if isinstance(values, np.ndarray) else values


def as_positive(name: str, values: FloatArray, *, dim: int) -> Tensor:
    """Return ``values`` as :func:`as_float64` does, and refuse entries that are not above zero."""
    tensor = as_float64(name, values, dim=dim)
    if not bool((tensor > 0).all()):
        raise ValueError(f"{name} must be > 0 everywhere, got a smallest value of {float(tensor.min()):g}")
    return tensor


def as_class_margins(values: FloatArray, *, num_classes: int | None = None) -> Tensor:
    """Return positive class margins γ of shape ``[K]`` with ``K >= 2`` (or exactly ``num_classes``)."""
    margins = as_positive("class_margins", values, dim=1)
    if num_classes is not None and margins.shape[0] != num_classes:
        raise ValueError(f"class_margins must have shape ({num_classes},), got {tuple(margins.shape)}")
    if margins.shape[0] < 2:
        raise ValueError(f"class_margins must name at least 2 classes, got {margins.shape[0]}")
    return margins


def as_class_counts(values: Tensor | npt.NDArray[np.generic] | Sequence[float], *, num_classes: int) -> Tensor:
    """Return class sizes N_k of shape ``[K]`` as float64; at least one must be above zero, none below."""
    counts = torch.as_tensor(_for_torch(values)).to("cpu", torch.float64)
    if counts.shape != (num_classes,):
        raise ValueError(f"class_counts must have shape ({num_classes},), got {tuple(counts.shape)}")
    if not bool(torch.isfinite(counts).all() and (counts >= 0).all() and (counts > 0).any()):
        raise ValueError(f"class_counts must be finite, >= 0 and not all zero, got {counts.tolist()}")
    return counts


def as_labels(labels: LabelArray, *, num_samples: int, num_classes: int) -> Tensor:
    """Return labels of shape ``[N]`` as int64 on the CPU with values in ``[0, K)``."""
    tensor = torch.as_tensor(_for_torch(labels)).cpu()
    check_hard_labels("labels", tensor, batch=num_samples, num_classes=num_classes)
    return tensor.long()


def as_samples(features: FloatArray, labels: LabelArray, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return features ``[N, d]`` (detached) and labels ``[N]`` with at least one sample and one dimension."""
    vectors = as_float64("features", features, dim=2).detach()
    if vectors.numel() == 0:
        raise ValueError(f"features must have at least one row and one column, got shape {tuple(vectors.shape)}")
    return vectors, as_labels(labels, num_samples=vectors.shape[0], num_classes=num_classes)


def as_printed(constants: str) -> bool:
    """Whether the printed constants are asked for, ``"paper"`` and not ``"correct"``."""
    return check_choice("constants", constants, ("correct", "paper")) == "paper"
