"""From rows of a split to augmented bytes: the part of the pipeline that may run in worker processes.

Everything is drawn for the whole global batch and cut to this process's rows afterwards, so that several
processes together make exactly the batch that one process would make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classmargin._checks import require_extra
from classmargin.data.bundle import Framing, Split
from classmargin.data.errors import CorruptImageError
from classmargin.data.images import SMALL_SIDE, decode_image, resampling, scaled_image, to_array
from classmargin.data.policies import DrawnPolicy, apply_policy, draw_autoaugment, draw_randaugment
from classmargin.data.randomness import Purpose, stream
from classmargin.data.raw import IntArray

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
        split: Where the samples come from.
        augmentation: One of ``AUGMENTATIONS``.
        size: Target ``(H, W)`` of streamed images.
        channels: Of streamed images.
        resize: Shorter side before the centre cut of streamed images.
        flip: Whether images may be mirrored.
        framing: Crops and interpolation of streamed images.
    """

    split: Split
    augmentation: str
    size: tuple[int, int]
    channels: int
    resize: int | None
    flip: bool
    framing: Framing

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
                address.random(Purpose.CROP, view=view), address.batch, images.shape[2:], flip=self.flip
            )
            tops, lefts, mirrored = drawn
            mine = address.rows
            images = crop_and_flip(images, tops[mine], lefts[mine], mirrored[mine])
        return self._apply_policy(images, address, view)

    @property
    def _cropped_while_decoding(self) -> bool:
        return self.split.inputs is None and max(self.size) > SMALL_SIDE

    def _apply_policy(self, images: Pixels, address: Address, view: int) -> Pixels:
        if self.augmentation == "standard":
            return images
        random = address.random(Purpose.POLICY, view=view)
        drawn: DrawnPolicy
        if self.augmentation == "randaugment":
            drawn = draw_randaugment(random, address.batch)
        else:
            drawn = draw_autoaugment(random, address.batch, small_images=max(images.shape[2:]) <= SMALL_SIDE)
        return apply_policy(images, drawn.rows(address.rows))

    def _decode(self, chosen: IntArray, address: Address, view: int) -> Pixels:
        assert self.split.images is not None
        pixels = np.empty((len(chosen), self.channels, *self.size), dtype=np.uint8)
        corrupt = []
        for place, row in enumerate(chosen.tolist()):
            try:
                image = decode_image(self.split.images, row, channels=self.channels)
                cut = self._cut(image, address, view, address.rows.start + place, row)
            except CorruptImageError as error:
                corrupt.append(str(error))
                continue
            pixels[place] = to_array(cut)
        if corrupt:
            raise CorruptImageError("; ".join(corrupt))
        return pixels

    def _cut(self, image: Any, address: Address, view: int, position: int, row: int) -> Any:
        if self.augmentation == "none" or not self._cropped_while_decoding:
            assert self.split.images is not None
            name = self.split.images.name(row)
            return scaled_image(name, image, self.size, self.resize, self.framing.interpolation)
        random = address.random(Purpose.DECODE, view=view, position=position)
        pillow = require_extra("PIL.Image", "train", "reading image files")
        box = draw_crop_box(random, image.width, image.height, scale=self.framing.crop_scale)
        cut = image.resize((self.size[1], self.size[0]), resampling(self.framing.interpolation), box=box)
        mirror = self.flip and random.random() < 0.5
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
