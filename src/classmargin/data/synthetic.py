"""Classes with chosen spread and distance: made in milliseconds, and the truth about them is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classmargin._checks import check_int, check_number
from classmargin.data.bundle import SPLIT_NAMES, DataBundle
from classmargin.data.load import bundle_of
from classmargin.data.raw import RawData, RawPart
from classmargin.data.sampling import Purpose, stream

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Synthetic:
    """A made-up data set and the truth behind it.

    Attributes:
        bundle: The data set.
        class_means: True mean of each class, ``[K, d]`` (``d`` = pixels for images, in units of [0, 1]).
        class_spread: True mean squared deviation from the class mean, ``[K]``.
    """

    bundle: DataBundle
    class_means: Tensor
    class_spread: Tensor


def synthetic_features(
    *,
    num_classes: int = 4,
    dimensions: int = 16,
    samples_per_class: int = 100,
    mean_distance: float = 3.0,
    class_spread: Sequence[float] | None = None,
    seed: int = 0,
) -> Synthetic:
    """Draw Gaussian classes whose means all have the same distance from one another.

    Args:
        num_classes: ``K``, at most ``dimensions``.
        dimensions: ``d``.
        samples_per_class: Training samples of each class; validation and test have as many.
        mean_distance: Distance between any two class means.
        class_spread: Mean squared deviation ``E ||x - mean||^2`` of each class; 1 for all when left out.
        seed: Seed of everything.

    Example:
        >>> made = synthetic_features(num_classes=3, mean_distance=2.0, class_spread=[0.5, 1.0, 4.0])
        >>> round(float((made.class_means[0] - made.class_means[1]).norm()), 4)
        2.0
    """
    check_int("dimensions", dimensions, minimum=num_classes)
    check_number("mean_distance", mean_distance, minimum=0.0)
    spread = _spread(class_spread, num_classes)
    random = stream(Purpose.SYNTHETIC, seed=seed)
    # Columns of a random rotation are orthonormal, hence sqrt(2) apart.
    rotation, _ = np.linalg.qr(random.standard_normal((dimensions, dimensions)))
    means = rotation[:num_classes] * (mean_distance / np.sqrt(2.0))

    def draw(labels: Labels) -> Any:
        deviation = np.sqrt(spread[labels] / dimensions)[:, None]
        noise = random.standard_normal((len(labels), dimensions)) * deviation
        return (means[labels] + noise).astype(np.float32)

    bundle = _bundle("synthetic-features", draw, num_classes, samples_per_class)
    return Synthetic(bundle, torch.from_numpy(means), torch.from_numpy(spread))


def synthetic_images(
    *,
    num_classes: int = 4,
    side: int = 8,
    channels: int = 1,
    samples_per_class: int = 50,
    noise: Sequence[float] | None = None,
    seed: int = 0,
) -> Synthetic:
    """Draw tiny images: a random pattern for each class plus Gaussian noise, rounded to bytes.

    Args:
        num_classes: ``K``.
        side: Height and width.
        channels: ``C``.
        samples_per_class: Training images of each class; validation and test have as many.
        noise: Standard deviation of the noise of each class, pixels in [0, 1]; 0.1 for all when left out.
            Patterns lie in [0.3, 0.7], so noise up to 0.1 is hardly ever cut off at black or white.
        seed: Seed of everything.

    Example:
        >>> synthetic_images(num_classes=3, side=6).bundle.input_shape
        (1, 6, 6)
    """
    check_int("side", side, minimum=1)
    check_int("channels", channels, minimum=1)
    variance = None if noise is None else [value**2 for value in noise]
    deviation = np.sqrt(_spread(variance, num_classes, default=0.01))
    random = stream(Purpose.SYNTHETIC, seed=seed, step=1)
    patterns = random.uniform(0.3, 0.7, (num_classes, channels, side, side))

    def draw(labels: Labels) -> Any:
        grain = random.standard_normal((len(labels), channels, side, side))
        bright = patterns[labels] + grain * deviation[labels][:, None, None, None]
        return np.clip(np.round(255.0 * bright), 0.0, 255.0).astype(np.uint8)

    bundle = _bundle("synthetic-images", draw, num_classes, samples_per_class)
    spread = deviation**2 * channels * side**2
    return Synthetic(bundle, torch.from_numpy(patterns.reshape(num_classes, -1)), torch.from_numpy(spread))


def _spread(given: Sequence[float] | None, num_classes: int, default: float = 1.0) -> npt.NDArray[np.float64]:
    check_int("num_classes", num_classes, minimum=2)
    values = [default] * num_classes if given is None else [float(value) for value in given]
    if len(values) != num_classes or min(values) < 0.0:
        raise ValueError(f"the spread must be {num_classes} non-negative numbers, one per class, got {given}")
    return np.array(values)


def _bundle(name: str, draw: Callable[[Labels], Any], num_classes: int, samples_per_class: int) -> DataBundle:
    check_int("samples_per_class", samples_per_class, minimum=1)
    labels = np.repeat(np.arange(num_classes, dtype=np.int64), samples_per_class)
    train, validation, test = (RawPart(labels, draw(labels)) for _ in SPLIT_NAMES)
    names = tuple(f"class {number}" for number in range(num_classes))
    # A mirrored random pattern belongs to no class.
    return replace(bundle_of(name, RawData(train, validation, test, names)), flip=False)
