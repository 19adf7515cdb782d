"""Input checks whose messages name the argument, what was expected and what came."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# torch is imported inside the checks of tensors: an audit needs none of it, and it takes seconds to load.
# Side of a training image in pixels; larger ones are a slip of the keyboard, found out when memory ends.
LARGEST_SIDE = 4096
# Resampled copies behind an interval; more move no digit that is printed.
MOST_RESAMPLES = 1_000_000
HALF_TOLERANCE = 2e-2  # of the sum of probabilities given in half precision


def check_int(name: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` if it is an integer (of Python or NumPy) of at least ``minimum`` and at most ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} ({value!r})")
    number = int(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {number}")
    return number


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
    finite: bool = True,
) -> float:
    """Return ``value`` as float if it lies in the stated range (``above`` and ``below`` are exclusive)."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise TypeError(f"{name} must be a number, got {type(value).__name__} ({value!r})")
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond the range of floats
        number = math.inf if value > 0 else -math.inf
    if finite and not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value}")
    inside = number > above and minimum <= number <= maximum and (below == math.inf or number < below)
    if not inside:
        limits = ((">", above), (">=", minimum), ("<=", maximum), ("<", below))
        stated = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if not math.isinf(limit))
        raise ValueError(f"{name} must be {stated or 'a number'}, got {value}")
    return number


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; the error suggests the nearest one."""
    options = list(choices)
    if value not in options:
        hint = did_you_mean(str(value), options)
        raise ValueError(f"{name} must be one of {', '.join(options)}; got {value!r}{hint}")
    return str(value)


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for an option that begins so, or else the nearest one, or an empty string."""
    known = list(options)
    begun = sorted((option for option in known if len(word) > 1 and option.startswith(word)), key=len)
    near = begun or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_floating(name: str, tensor: Any, *, dim: int) -> Tensor:
    """Return ``tensor`` if it is a floating-point tensor with ``dim`` dimensions."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got dtype {tensor.dtype}")
    if tensor.dim() != dim:
        raise ValueError(f"{name} must have {dim} dimensions, got shape {tuple(tensor.shape)}")
    return tensor


def check_hard_labels(name: str, labels: Any, *, batch: int, num_classes: int, ignore_index: int | None = None) -> None:
    """Check integer class labels ``[B]`` in ``[0, K)`` (or ``ignore_index``); values on the CPU only: an accelerator would wait."""
    import torch

    if not isinstance(labels, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name} must hold integer classes, got dtype {labels.dtype}")
    if labels.dim() != 1 or labels.shape[0] != batch:
        raise ValueError(f"{name} must have shape ({batch},), got {tuple(labels.shape)}")
    if torch.compiler.is_compiling() or labels.device.type != "cpu" or batch == 0:
        return
    low, high = torch.aminmax(labels)
    if int(low) >= 0 and int(high) < num_classes:
        return
    valid = labels if ignore_index is None else labels[labels != ignore_index]
    if valid.numel() and (int(valid.min()) < 0 or int(valid.max()) >= num_classes):
        raise ValueError(
            f"{name} must lie in [0, {num_classes})"
            + (f" or equal ignore_index={ignore_index}" if ignore_index is not None else "")
            + f", got values from {int(valid.min())} to {int(valid.max())}"
        )


def check_class_vector(name: str, vector: Tensor | None, num_classes: int) -> None:
    """Check an optional ``[K]`` vector."""
    if vector is not None and tuple(check_floating(name, vector, dim=1).shape) != (num_classes,):
        raise ValueError(f"{name} must have shape ({num_classes},), got {tuple(vector.shape)}")


def check_targets(labels: Any, *, batch: int, num_classes: int, ignore_index: int | None) -> None:
    """Check classes ``[B]`` or class probabilities ``[B, K]``; values on the CPU only, as in :func:`check_hard_labels`."""
    import torch

    if not (isinstance(labels, torch.Tensor) and labels.is_floating_point()):
        check_hard_labels("labels", labels, batch=batch, num_classes=num_classes, ignore_index=ignore_index)
        return
    if tuple(labels.shape) != (batch, num_classes):
        raise ValueError(
            f"labels given as probabilities must have shape ({batch}, {num_classes}), got {tuple(labels.shape)}"
        )
    if labels.device.type != "cpu" or torch.compiler.is_compiling() or not batch:
        return
    if not bool(are_probabilities(labels)):
        smallest, sums = float(labels.min()), labels.double().sum(1)
        raise ValueError(
            "labels given as probabilities must be rows >= 0 that sum to 1, got a smallest entry of "
            f"{smallest:g} and sums from {float(sums.min()):g} to {float(sums.max()):g}; "
            "several independent labels per sample are not supported"
        )


def are_probabilities(labels: Tensor, tolerance: float | None = None) -> Tensor:
    """Return whether every row is >= 0 and sums to 1 within ``tolerance`` (None: the rounding of its type), bool scalar."""
    import torch

    if tolerance is None:
        tolerance = 1e-3 if labels.dtype in (torch.float32, torch.float64) else HALF_TOLERANCE
    return (labels >= 0).all() & ((labels.sum(1) - 1.0).abs() <= tolerance).all()


def require_extra(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say which extra brings it."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs the package {package.split('.')[0]!r}, which is not usable here ({error}). "
            f"Install it with: pip install 'classmargin[{extra}]' (in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
        ) from error
