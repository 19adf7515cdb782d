"""From rows of a split to the numbers a network sees: augmented bytes, then normalised and brought to size.

Augmentation may run in worker processes; normalisation happens on the device. Everything random is drawn for the whole
global batch and cut to this process's rows afterwards, so that several processes together make exactly the batch that
one process would make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from classmargin._checks import require_extra
from classmargin.data.bundle import DataBundle, Split
from classmargin.data.images import SMALL_SIDE, decode_image, resampling, scaled_image, to_array
from classmargin.data.policies import DrawnPolicy, apply_policy, draw_autoaugment, draw_randaugment
from classmargin.data.raw import CorruptImageError, IntArray
from classmargin.data.sampling import Purpose, stream

Pixels = npt.NDArray[Any]
AUGMENTATIONS = ("none", "standard", "randaugment", "autoaugment")
_CROP_RATIO = (3 / 4, 4 / 3)
_CROP_TRIES = 10


@dataclass(frozen=True)
class Address:
    """Where in the run a batch is, and which rows of the global batch this process holds."""

    seed: int
    epoch: int
    step: int
    rows: slice
    batch: int

    def random(self, purpose: Purpose, *, view: int, position: int = 0) -> np.random.Generator:
        """Return the random stream of this batch (and view, and position in the global batch)."""
        return stream(purpose, seed=self.seed, epoch=self.epoch, step=self.step, view=view, position=position)


@dataclass(frozen=True, eq=False)
class Augmenter:
    """Makes augmented pixels (or plain features) of the samples of one split.

    Attributes:
        bundle: How images are framed, and whether they may be mirrored.
        split: Where the samples come from.
        augmentation: One of ``AUGMENTATIONS``.
        spared: Classes that do without the last step of it: the policy, or crop and mirroring where there is none.
    """

    bundle: DataBundle
    split: Split
    augmentation: str
    spared: tuple[int, ...] = ()

    def make(self, chosen: IntArray, address: Address, view: int) -> Pixels:
        """Return inputs ``[b, ...]`` of the rows ``chosen`` of the split: this process's share of a batch."""
        if self.split.inputs is None:
            images = self._decode(chosen, address, view)
        else:
            images = self.split.inputs.index_select(0, torch.from_numpy(chosen)).numpy()
        if self.augmentation == "none":
            return images
        if not self._cropped_while_decoding:
            drawn = draw_crop_and_flip(
                address.random(Purpose.CROP, view=view),
                address.batch,
                images.shape[2:],
                flip=self.bundle.flip,
            )
            tops, lefts, mirrored = drawn
            mine = address.rows
            cut = crop_and_flip(images, tops[mine], lefts[mine], mirrored[mine])
            if self.augmentation == "standard":
                spared = self._is_spared(chosen)
                cut[spared] = images[spared]
            images = cut
        return self._apply_policy(images, address, view, self._is_spared(chosen))

    def _is_spared(self, chosen: IntArray) -> npt.NDArray[np.bool_]:
        return np.isin(self.split.labels.numpy()[chosen], self.spared)

    @property
    def _cropped_while_decoding(self) -> bool:
        return self.split.inputs is None and max(self.bundle.input_shape[1:]) > SMALL_SIDE

    def _apply_policy(
        self, images: Pixels, address: Address, view: int, spared: npt.NDArray[np.bool_]
    ) -> Pixels:
        if self.augmentation == "standard":
            return images
        random = address.random(Purpose.POLICY, view=view)
        drawn: DrawnPolicy
        if self.augmentation == "randaugment":
            drawn = draw_randaugment(random, address.batch)
        else:
            drawn = draw_autoaugment(random, address.batch, small_images=max(images.shape[2:]) <= SMALL_SIDE)
        changed = apply_policy(images, drawn.rows(address.rows))
        changed[spared] = images[spared]
        return changed

    def _decode(self, chosen: IntArray, address: Address, view: int) -> Pixels:
        assert self.split.images is not None
        channels = self.bundle.input_shape[0]
        pixels = np.empty((len(chosen), *self.bundle.input_shape), dtype=np.uint8)
        corrupt = []
        for place, row in enumerate(chosen.tolist()):
            try:
                image = decode_image(self.split.images, row, channels=channels)
                cut = self._cut(image, address, view, address.rows.start + place, row)
            except CorruptImageError as error:
                corrupt.append(str(error))
                continue
            pixels[place] = to_array(cut)
        if corrupt:
            raise CorruptImageError("; ".join(corrupt))
        return pixels

    def _cut(self, image: Any, address: Address, view: int, position: int, row: int) -> Any:
        framing, (_, height, width) = self.bundle.framing, self.bundle.input_shape
        whole = self.augmentation == "standard" and self._is_spared(np.array([row]))[0]
        if self.augmentation == "none" or whole or not self._cropped_while_decoding:
            assert self.split.images is not None
            name = self.split.images.name(row)
            return scaled_image(name, image, (height, width), self.bundle.resize, framing.interpolation)
        random = address.random(Purpose.DECODE, view=view, position=position)
        pillow = require_extra("PIL.Image", "train", "reading image files")
        box = draw_crop_box(random, image.width, image.height, scale=framing.crop_scale)
        cut = image.resize((width, height), resampling(framing.interpolation), box=box)
        mirror = self.bundle.flip and random.random() < 0.5
        return cut.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if mirror else cut


def draw_crop_box(
    random: np.random.Generator, width: int, height: int, *, scale: tuple[float, float] = (0.08, 1.0)
) -> tuple[int, int, int, int]:
    """Draw the random resized crop of ImageNet training: a share ``scale`` of the area, sides 3:4 to 4:3.

    Returns:
        ``(left, top, right, bottom)``; the largest allowed centre cut when ten draws do not fit.
    """
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


_PADDING = 4
# Above this side four pixels of shift mean little, and an eighth of the side (4 of 32) is padded instead.
_LARGEST_SIDE_OF_PADDING = 40


def crop_padding(side: int) -> int:
    """Return the padding of the random crop: 4 pixels as for CIFAR, an eighth of the side for larger images.

    Example:
        >>> crop_padding(32), crop_padding(28), crop_padding(224)
        (4, 4, 28)
    """
    return _PADDING if side <= _LARGEST_SIDE_OF_PADDING else side // 8


def draw_crop_and_flip(
    random: np.random.Generator, count: int, size: tuple[int, int], *, flip: bool
) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """Draw, for ``count`` images of ``size = (H, W)``, the top and left of the crop and whether to mirror."""
    tops = random.integers(0, 2 * crop_padding(size[0]) + 1, count)
    lefts = random.integers(0, 2 * crop_padding(size[1]) + 1, count)
    mirrored = random.random(count) < 0.5
    return tops, lefts, mirrored if flip else np.zeros(count, dtype=np.bool_)


def crop_and_flip(images: Pixels, tops: IntArray, lefts: IntArray, mirrored: npt.NDArray[np.bool_]) -> Pixels:
    """Pad with black, cut a window of the old size out of each image, mirror some.

    Args:
        images: ``[B, C, H, W]``.
        tops: Top row of each window in the padded image, ``[B]``.
        lefts: Left column of each window, ``[B]``.
        mirrored: Which windows to mirror, ``[B]``.

    Returns:
        New images ``[B, C, H, W]`` of the same type.

    Example:
        >>> image = np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2)
        >>> crop_and_flip(image, np.array([4]), np.array([4]), np.array([True])).tolist()
        [[[[1, 0], [3, 2]]]]
    """
    count, channels, height, width = images.shape
    down, right = crop_padding(height), crop_padding(width)
    padded = np.zeros((count, channels, height + 2 * down, width + 2 * right), dtype=images.dtype)
    padded[:, :, down : down + height, right : right + width] = images
    of_image, of_channel, of_row, of_column = padded.strides
    windows = np.lib.stride_tricks.as_strided(
        padded,
        shape=(count, 2 * down + 1, 2 * right + 1, channels, height, width),
        strides=(of_image, of_row, of_column, of_channel, of_row, of_column),
        writeable=False,
    )
    cut: Pixels = windows[np.arange(count), tops, lefts]
    cut[mirrored] = cut[mirrored][..., ::-1]
    return cut


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
