"""How far a class is from its nearest neighbour, and how wide it is against that distance.

``r²`` (Eq. 1) is a bound on the norm of the features and says little about which class fails: classes with long
features are often the easy ones. What makes a class hard is that it is wide *for the room it has*::

    class means μ̂ [K, d] ──> separation_k = min_{j ≠ k} ‖μ̂_k - μ̂_j‖² ──> relative spread_k = ‖ŝ_k‖² / separation_k

Both are squared lengths, so the ratio changes neither with the unit of the features nor with where their origin is.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from numpy.typing import NDArray
from torch import Tensor

from classmargin.mr2.representation_margin import squared_distances

# Room of a class that lies on top of another, as a share of the largest spread: keeps the ratio finite.
SMALLEST_ROOM = 1e-6
TINY = 1e-30
Array = TypeVar("Array", Tensor, NDArray[Any])


def class_separation(class_mean: Tensor, seen: Tensor) -> Tensor:
    """Return the squared distance of each class mean to the nearest mean of another class.

    Args:
        class_mean: ``μ̂``, shape ``[K, d]``.
        seen: Which classes have a mean, bool ``[K]``.

    Returns:
        Shape ``[K]``; infinite for a class that has not been seen or is alone.

    Example:
        >>> import torch
        >>> class_separation(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([True, True, True]))
        tensor([1., 1., 4.])
    """
    shown = seen.unsqueeze(1)
    # Centred on the means seen: distances stay exact far from the origin.
    centre = (class_mean * shown).sum(0) / shown.sum().clamp_min(1)
    distances = squared_distances(class_mean - centre)
    distances.fill_diagonal_(math.inf)
    return distances.masked_fill(~(seen & shown), math.inf).amin(1)


def relative_spread(class_spread: Array, separation: Array) -> Array:
    """Return ``‖ŝ_k‖² / separation_k``; the same code for tensors and NumPy arrays ``[K]``.

    Example:
        >>> import torch
        >>> relative_spread(torch.tensor([2.0, 2.0]), torch.tensor([1.0, 4.0]))
        tensor([2.0000, 0.5000])
    """
    room = separation.clip(min=SMALLEST_ROOM * class_spread.max() + TINY)
    ratio: Array = class_spread / room
    return ratio
