"""From rows of a split to augmented bytes: the part of the pipeline that may run in worker processes.

Everything is drawn for the whole global batch and cut to this process's rows afterwards, so that several
processes together make exactly the batch that one process would make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from classmargin._checks import require_extra
from classmargin.data.bundle import Split
from classmargin.data.errors import CorruptImageError
from classmargin.data.images import decode_image, scaled_image, to_array
from classmargin.data.policies import DrawnPolicy, apply_policy, draw_autoaugment, draw_randaugment
from classmargin.data.prepare_images import SMALL_SIDE
from classmargin.data.randomness import Purpose, stream
from classmargin.data.raw import IntArray
from classmargin.data.transforms import Pixels, crop_and_flip, draw_crop_and_flip

AUGMENTATIONS = ("none", "standard", "randaugment", "autoaugment")
_CROP_AREA = (0.08, 1.0)
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
    """

    split: Split
    augmentation: str
    size: tuple[int, int]
    channels: int
    resize: int | None
    flip: bool

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
            return scaled_image(self.split.images.name(row), image, self.size, self.resize)
        random = address.random(Purpose.DECODE, view=view, position=position)
        pillow = require_extra("PIL.Image", "train", "reading image files")
        box = draw_crop_box(random, image.width, image.height)
        cut = image.resize((self.size[1], self.size[0]), pillow.Resampling.BILINEAR, box=box)
        mirror = self.flip and random.random() < 0.5
        return cut.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if mirror else cut


def draw_crop_box(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Draw the random resized crop of ImageNet training: 8 to 100 % of the area, sides 3:4 to 4:3.

    Returns:
        ``(left, top, right, bottom)``; the largest allowed centre cut when ten draws do not fit.
    """
    for _ in range(_CROP_TRIES):
        area = width * height * random.uniform(*_CROP_AREA)
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
