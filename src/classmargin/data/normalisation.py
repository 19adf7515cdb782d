"""Channel means and deviations: those of the literature for named sets, measured ones for all others."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from classmargin.data.catalog import DataInfo

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Statistics = tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]


def channel_statistics(inputs: Tensor | None, channels: int, info: DataInfo | None) -> Statistics:
    """Return mean, std and notes.

    Args:
        inputs: Training images in memory, ``[N, C, H, W]``, or ``None`` for streamed images.
        channels: ``C``; 0 for features, which are handed out unchanged.
        info: Record of the catalogue, whose values win when they fit.
    """
    if channels == 0:
        return (0.0,), (1.0,), ()
    known = None if info is None or info.mean is None or info.std is None else (info.mean, info.std)
    if known is not None and len(known[0]) == channels and pixels_in_units(inputs):
        return *known, ()
    if inputs is None:
        note = "streamed images are normalised with the channel statistics of ImageNet, unless the network has its own"
        if channels == 1:
            return (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,), (note,)
        return IMAGENET_MEAN, IMAGENET_STD, (note,)
    measured = [_measure(inputs[:, channel].numpy()) for channel in range(channels)]
    return tuple(mean for mean, _ in measured), tuple(std for _, std in measured), ()


def pixels_in_units(inputs: Tensor | None) -> bool:
    """Return whether pixels count as numbers in [0, 1], as bytes do, and are not 0 to 255 or normalised already.

    Scaling may have put some a little outside.
    """
    if inputs is None or inputs.dtype == torch.uint8 or not len(inputs):
        return True
    return float(inputs.min()) >= -1e-3 and float(inputs.max()) <= 1.001


def _measure(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> tuple[float, float]:
    if values.dtype == np.uint8:
        # A histogram of bytes gives exact sums without a float copy of the whole set.
        counts = np.bincount(values.ravel(), minlength=256)
        levels = np.arange(256) / 255.0
        mean = float(counts @ levels / counts.sum())
        variance = float(counts @ (levels - mean) ** 2 / counts.sum())
    else:
        mean, variance = float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64))
    # A constant channel has nothing to scale; rounding of its mean may leave a variance of 1e-34.
    return mean, variance**0.5 if values.min() < values.max() else 1.0
