"""From rows of a split to the numbers a network sees: augmented bytes, then normalised and brought to size on the device.

Everything random is drawn for the whole global batch and cut to this process's rows afterwards, so that several processes
together make exactly the batch that one process would make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from classmargin.data.bundle import DataBundle, Split
from classmargin.data.images import (
    SMALL_SIDE,
    ImageFormat,
    corrupt_among,
    decode_image,
    pillow,
    resampling,
    scaled_image,
)
from classmargin.data.policies import DrawnPolicy, apply_policy, draw_autoaugment, draw_randaugment
from classmargin.data.raw import CorruptImageError, IntArray
from classmargin.data.sampling import Purpose

Pixels = npt.NDArray[Any]
Random = np.random.Generator
Range = tuple[float, float]
Box = tuple[int, int, int, int]  # left, top, right, bottom
# The streams of one view of one batch, by purpose (and position in the global batch).
RandomStreams = Callable[..., Random]
AUGMENTATIONS = ("none", "standard", "randaugment", "autoaugment")
_CROP_RATIO = (3 / 4, 4 / 3)
_CROP_TRIES = 10


@dataclass(frozen=True, eq=False)
class Augmenter:
    """Makes augmented pixels (or plain features) of one split; classes ``spared`` do without the last step of augmentation."""

    bundle: DataBundle
    split: Split
    augmentation: str
    spared: tuple[int, ...] = ()

    def make(self, batch: IntArray, mine: slice, random: RandomStreams) -> Pixels:
        """Return inputs ``[b, ...]`` of this process's share of a global batch, which is a list of rows of the split."""
        if self.split.inputs is None:
            images = self._decode(batch[mine], mine.start, random)
        else:
            images = self.split.inputs.index_select(0, torch.from_numpy(batch[mine])).numpy()
        if self.augmentation == "none":
            return images
        count, size, spared = len(batch), images.shape[2:], self._is_spared(batch[mine])
        drawn: Any
        if not self._cropped_while_decoding:
            drawn = draw_crop_and_flip(random(Purpose.CROP), count, size, flip=self.bundle.flip)
            cut = crop_and_flip(images, *(part[mine] for part in drawn))
            if self.augmentation == "standard":
                cut[spared] = images[spared]
            images = cut
        if self.augmentation == "standard":
            return images
        if self.augmentation == "randaugment":
            drawn = draw_randaugment(random(Purpose.POLICY), count)
        else:
            drawn = draw_autoaugment(random(Purpose.POLICY), count, small_images=max(size) <= SMALL_SIDE)
        changed = apply_policy(images, DrawnPolicy(*(part[mine] for part in drawn)))
        changed[spared] = images[spared]
        return changed

    def _is_spared(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        return np.isin(self.split.labels.numpy()[rows], self.spared)

    @property
    def _cropped_while_decoding(self) -> bool:
        return self.split.inputs is None and max(self.bundle.input_shape[1:]) > SMALL_SIDE

    def _decode(self, rows: IntArray, start: int, random: RandomStreams) -> Pixels:
        assert self.split.images is not None
        images, interpolation = self.split.images.take(rows), self.bundle.framing.interpolation
        channels, height, width = self.bundle.input_shape
        image_format = ImageFormat(channels, (height, width), self.bundle.resize)
        pixels = np.empty((len(rows), channels, height, width), dtype=np.uint8)
        whole = self._is_spared(rows) & (self.augmentation == "standard")

        def cut(image: Any, numbers: Random) -> Any:
            box = draw_crop_box(numbers, image.width, image.height, scale=self.bundle.framing.crop_scale)
            image = image.resize((width, height), resampling(interpolation), box=box)
            mirror = self.bundle.flip and numbers.random() < 0.5
            return image.transpose(pillow().Transpose.FLIP_LEFT_RIGHT) if mirror else image

        def look(place: int) -> None:
            how: Any = partial(scaled_image, image_format=image_format, interpolation=interpolation)
            if self.augmentation != "none" and self._cropped_while_decoding and not whole[place]:
                how = partial(cut, numbers=random(Purpose.DECODE, position=start + place))
            pixels[place] = decode_image(images, place, channels, how)

        corrupt = corrupt_among(range(len(rows)), look)
        if corrupt:
            raise CorruptImageError("; ".join(corrupt.values()))
        return pixels


def draw_crop_box(random: Random, width: int, height: int, *, scale: Range = (0.08, 1.0)) -> Box:
    """Draw a random resized crop: a share ``scale`` of the area, sides 3:4 to 4:3; if ten do not fit, a centre cut."""
    for _ in range(_CROP_TRIES):
        area = width * height * random.uniform(*scale)
        ratio = float(np.exp(random.uniform(*np.log(_CROP_RATIO))))
        wide, tall = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < wide <= width and 0 < tall <= height:
            left = int(random.integers(0, width - wide + 1))
            top = int(random.integers(0, height - tall + 1))
            return left, top, left + wide, top + tall
    ratio = min(max(width / height, _CROP_RATIO[0]), _CROP_RATIO[1])
    wide, tall = min(width, round(height * ratio)), min(height, round(width / ratio))
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def crop_padding(side: int) -> int:
    """Return the padding of the random crop: 4 pixels as for CIFAR, an eighth of the side for larger images."""
    return 4 if side <= 40 else side // 8


def draw_crop_and_flip(
    random: Random, count: int, size: tuple[int, int], *, flip: bool
) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """Draw, for ``count`` images of ``size = (H, W)``, the top and left of the crop and whether to mirror."""
    tops = random.integers(0, 2 * crop_padding(size[0]) + 1, count)
    lefts = random.integers(0, 2 * crop_padding(size[1]) + 1, count)
    mirrored = random.random(count) < 0.5
    return tops, lefts, mirrored if flip else np.zeros(count, dtype=np.bool_)


def crop_and_flip(images: Pixels, tops: IntArray, lefts: IntArray, mirrored: npt.NDArray[np.bool_]) -> Pixels:
    """Pad images ``[B, C, H, W]`` with black, cut a window of the old size out of each, mirror some."""
    count, channels, height, width = images.shape
    down, right = crop_padding(height), crop_padding(width)
    padded = np.zeros((count, channels, height + 2 * down, width + 2 * right), dtype=images.dtype)
    padded[:, :, down : down + height, right : right + width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    cut: Pixels = windows[np.arange(count), :, tops, lefts]
    cut[mirrored] = cut[mirrored][..., ::-1]
    return cut


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Statistics = tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]


def channel_statistics(
    inputs: Tensor | None, channels: int, known: tuple[tuple[float, ...], tuple[float, ...]] | None = None
) -> Statistics:
    """Return mean, std and notes of training images, or of streamed ones (``None``); ``known`` ones win where they fit."""
    if channels == 0:
        return (0.0,), (1.0,), ()
    if known is not None and len(known[0]) == channels and pixels_in_units(inputs):
        return *known, ()
    if inputs is None:
        note = "streamed images are normalised with the channel statistics of ImageNet, unless the network has its own"
        if channels == 1:
            return (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,), (note,)
        return IMAGENET_MEAN, IMAGENET_STD, (note,)
    means, deviations = [], []
    for channel in range(channels):
        values = inputs[:, channel].numpy()
        if values.dtype == np.uint8:
            # A histogram of bytes gives exact sums without a float copy of the whole set.
            counts, levels = np.bincount(values.ravel(), minlength=256), np.arange(256) / 255.0
            mean = float(counts @ levels / counts.sum())
            variance = float(counts @ (levels - mean) ** 2 / counts.sum())
        else:
            mean, variance = float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64))
        means.append(mean)
        # A constant channel has nothing to scale; rounding of its mean may leave a variance of 1e-34.
        deviations.append(variance**0.5 if values.min() < values.max() else 1.0)
    return tuple(means), tuple(deviations), ()


def pixels_in_units(inputs: Tensor | None) -> bool:
    """Return whether pixels count as numbers in [0, 1], as bytes do; scaling may have put some a little outside."""
    if inputs is None or inputs.dtype == torch.uint8 or not len(inputs):
        return True
    return float(inputs.min()) >= -1e-3 and float(inputs.max()) <= 1.001


def normalise(
    images: Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Return ``(images - mean) / std`` per channel as float32 in ``memory_format``; bytes count as numbers in [0, 1]."""
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    shape = (1, -1, 1, 1)
    centre = torch.tensor(mean, dtype=torch.float64).mul(scale).to(torch.float32).view(shape)
    # Two separately rounded operations: a fused one would round differently at the end of a vector, and a
    # batch split over two processes would then differ in its last bit.
    factor = torch.tensor(std, dtype=torch.float64).mul(scale).reciprocal().to(torch.float32).view(shape)
    numbers = images.to(torch.float32, copy=True, memory_format=memory_format)
    return numbers.sub_(centre.to(images.device)).mul_(factor.to(images.device))


def bring_to_size(images: Tensor, size: tuple[int, int], interpolation: str = "bilinear") -> Tensor:
    """Scale the shorter side of ``[B, C, H, W]`` to the target and cut out the centre; images that fit pass unchanged."""
    height, width = images.shape[2:]
    if (height, width) == size:
        return images
    if images.shape[0] == 0:
        return images.new_zeros((0, images.shape[1], *size))
    factor = max(size[0] / height, size[1] / width)
    target = (max(round(height * factor), size[0]), max(round(width * factor), size[1]))
    scaled = functional.interpolate(images, target, mode=interpolation, align_corners=False, antialias=factor < 1)
    top, left = (target[0] - size[0]) // 2, (target[1] - size[1]) // 2
    return scaled[:, :, top : top + size[0], left : left + size[1]].contiguous()
