"""Channel means and deviations, and the last step to the network: normalise and bring to size.

Named sets have the statistics of the literature, all others measured ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Statistics = tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]


def channel_statistics(
    inputs: Tensor | None,
    channels: int,
    known: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Statistics:
    """Return mean, std and notes.

    Args:
        inputs: Training images in memory, ``[N, C, H, W]``, or ``None`` for streamed images.
        channels: ``C``; 0 for features, which are handed out unchanged.
        known: Mean and deviation of the catalogue, which win when they fit.
    """
    if channels == 0:
        return (0.0,), (1.0,), ()
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


def normalise(
    images: Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Return ``(images - mean) / std`` per channel as float32; bytes count as numbers in [0, 1].

    Args:
        images: ``[B, C, H, W]``, uint8 or float.
        mean: ``C`` means.
        std: ``C`` standard deviations.
        memory_format: Of the result; bytes are rearranged while they become numbers.

    Example:
        >>> normalise(torch.tensor([[[[255]]]], dtype=torch.uint8), (0.5,), (0.25,)).item()
        2.0
    """
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    shape = (1, -1, 1, 1)
    centre = torch.tensor(mean, dtype=torch.float64).mul(scale).to(torch.float32).view(shape)
    # Two separately rounded operations: a fused one would round differently at the end of a vector, and a
    # batch split over two processes would then differ in its last bit.
    factor = torch.tensor(std, dtype=torch.float64).mul(scale).reciprocal().to(torch.float32).view(shape)
    numbers = images.to(torch.float32, copy=True, memory_format=memory_format)
    return numbers.sub_(centre.to(images.device)).mul_(factor.to(images.device))


def bring_to_size(images: Tensor, size: tuple[int, int], interpolation: str = "bilinear") -> Tensor:
    """Scale the shorter side to the target and cut out the centre; images that fit pass unchanged.

    Args:
        images: Float images ``[B, C, H, W]``.
        size: Target ``(H, W)``.
        interpolation: ``"bilinear"`` or ``"bicubic"``.
    """
    height, width = int(images.shape[2]), int(images.shape[3])
    if (height, width) == size or images.shape[0] == 0:
        return images if (height, width) == size else images.new_zeros((0, images.shape[1], *size))
    factor = max(size[0] / height, size[1] / width)
    target = (max(round(height * factor), size[0]), max(round(width * factor), size[1]))
    scaled = functional.interpolate(
        images, target, mode=interpolation, align_corners=False, antialias=factor < 1
    )
    top, left = (target[0] - size[0]) // 2, (target[1] - size[1]) // 2
    return scaled[:, :, top : top + size[0], left : left + size[1]].contiguous()
