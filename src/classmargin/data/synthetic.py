"""Classes with chosen spread and distance: made in milliseconds, and the truth about them is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classmargin._checks import check_int, check_number
from classmargin.data.bundle import DataBundle, Kind, Split
from classmargin.data.pixels import channel_statistics
from classmargin.data.sampling import Purpose, stream

_PARTS = ("train", "validation", "test")
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

    Returns:
        The data set with its truth.

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

    def draw(labels: Labels) -> Tensor:
        noise = (
            random.standard_normal((len(labels), dimensions)) * np.sqrt(spread[labels] / dimensions)[:, None]
        )
        return torch.from_numpy((means[labels] + noise).astype(np.float32))

    splits = [_draw_split(draw, num_classes, samples_per_class) for _ in _PARTS]
    bundle = _bundle("synthetic-features", "features", splits, num_classes)
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

    Returns:
        The data set with its truth; ``class_spread`` is ``noise^2 * C * side^2``.

    Example:
        >>> synthetic_images(num_classes=3, side=6).bundle.input_shape
        (1, 6, 6)
    """
    check_int("side", side, minimum=1)
    check_int("channels", channels, minimum=1)
    deviation = np.sqrt(
        _spread(None if noise is None else [value**2 for value in noise], num_classes, default=0.01)
    )
    random = stream(Purpose.SYNTHETIC, seed=seed, step=1)
    patterns = random.uniform(0.3, 0.7, (num_classes, channels, side, side))

    def draw(labels: Labels) -> Tensor:
        grain = (
            random.standard_normal((len(labels), channels, side, side))
            * deviation[labels][:, None, None, None]
        )
        pixels = np.clip(np.round(255.0 * (patterns[labels] + grain)), 0.0, 255.0)
        return torch.from_numpy(pixels.astype(np.uint8))

    splits = [_draw_split(draw, num_classes, samples_per_class) for _ in _PARTS]
    bundle = _bundle("synthetic-images", "images", splits, num_classes)
    spread = deviation**2 * channels * side**2
    return Synthetic(bundle, torch.from_numpy(patterns.reshape(num_classes, -1)), torch.from_numpy(spread))


def _spread(given: Sequence[float] | None, num_classes: int, default: float = 1.0) -> npt.NDArray[np.float64]:
    check_int("num_classes", num_classes, minimum=2)
    values = [default] * num_classes if given is None else [float(value) for value in given]
    if len(values) != num_classes or min(values) < 0.0:
        raise ValueError(f"the spread must be {num_classes} non-negative numbers, one per class, got {given}")
    return np.array(values)


def _draw_split(draw: Callable[[Labels], Tensor], num_classes: int, samples_per_class: int) -> Split:
    check_int("samples_per_class", samples_per_class, minimum=1)
    labels = np.repeat(np.arange(num_classes, dtype=np.int64), samples_per_class)
    return Split(
        labels=torch.from_numpy(labels),
        index=torch.arange(len(labels)),
        full_size=len(labels),
        num_classes=num_classes,
        inputs=draw(labels),
    )


def _bundle(name: str, kind: Kind, splits: list[Split], num_classes: int) -> DataBundle:
    train = splits[0].inputs
    assert train is not None
    mean, std, notes = channel_statistics(train, train.shape[1] if kind == "images" else 0)
    return DataBundle(
        name=name,
        kind=kind,
        class_names=tuple(f"class {number}" for number in range(num_classes)),
        num_classes=num_classes,
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        mean=mean,
        std=std,
        input_shape=tuple(train.shape[1:]),
        notes=notes,
        # A mirrored random pattern belongs to no class.
        flip=False,
    )
