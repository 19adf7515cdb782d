"""RandAugment (Cubuk et al., 2020) and AutoAugment (Cubuk et al., 2019) for batches, every image on its own.

The numbers for a whole global batch are drawn first; each process then applies its share of them. The operations follow
Pillow, in which the two methods were published, to within one grey level (tests compare them). Kornia draws one operation
for a whole batch from the global random state, which survives neither a split over processes nor resuming.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Strengths = npt.NDArray[np.float64]
Operation = Callable[[Bytes, Strengths], Bytes]


def _blend(plain: npt.NDArray[Any], images: Bytes, strengths: Strengths) -> Bytes:
    """Return ``plain + (1 + strength) * (image - plain)``, cut to bytes as Pillow does."""
    factor, plain = (1.0 + strengths).astype(np.float32)[:, None, None, None], plain.astype(np.float32)
    mixed: npt.NDArray[np.float32] = plain + factor * (images.astype(np.float32) - plain)
    return np.clip(mixed, 0.0, 255.0).astype(np.uint8)


def _grey(images: Bytes) -> Bytes:
    """Return the luma ``[B, 1, H, W]`` with Pillow's integer weights."""
    if images.shape[1] != 3:
        return images[:, :1]
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)[:, None]


def contrast(images: Bytes, strengths: Strengths) -> Bytes:
    """Blend with the mean grey level of each image."""
    level = np.floor(_grey(images).mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64) + 0.5)
    return _blend(level, images, strengths)


def sharpness(images: Bytes, strengths: Strengths) -> Bytes:
    """Blend with a smoothed image (3 x 3 mean with centre weight 5); the border is left as it is."""
    height, width = images.shape[2:]
    if height < 3 or width < 3:
        return images
    wide = images.astype(np.int32)
    total = 4 * wide[:, :, 1:-1, 1:-1]
    for down in range(3):
        for right in range(3):
            total = total + wide[:, :, down : down + height - 2, right : right + width - 2]
    smooth = images.astype(np.float32)
    smooth[:, :, 1:-1, 1:-1] = np.floor(total / 13.0 + 0.5)
    return _blend(smooth, images, strengths)


def autocontrast(images: Bytes, _strengths: Strengths) -> Bytes:
    """Stretch each channel to the full range."""
    low = images.min(axis=(2, 3), keepdims=True).astype(np.float64)
    high = images.max(axis=(2, 3), keepdims=True).astype(np.float64)
    scale = 255.0 / np.where(high > low, high - low, 1.0)
    # Pillow truncates scale * level + offset, in double precision, in this order.
    stretched = np.trunc(images * scale + (-low * scale))
    return np.where(high > low, np.clip(stretched, 0, 255), images).astype(np.uint8)


def equalize(images: Bytes, _strengths: Strengths) -> Bytes:
    """Make the histogram of each channel flat."""
    count, channels, height, width = images.shape
    flat = images.reshape(count * channels, height * width)
    offsets = np.arange(count * channels)[:, None] * 256
    histograms = np.bincount((flat + offsets).ravel(), minlength=count * channels * 256).reshape(-1, 256)
    last = histograms[np.arange(len(histograms)), 255 - np.argmax(histograms[:, ::-1] > 0, axis=1)]
    step = (histograms.sum(axis=1) - last) // 255
    before = np.cumsum(histograms, axis=1) - histograms
    safe_step = np.maximum(step, 1)[:, None]
    table = np.minimum((before + safe_step // 2) // safe_step, 255)
    table = np.where((step == 0)[:, None], np.arange(256), table).astype(np.uint8)
    equalized: Bytes = table.ravel()[flat + offsets].reshape(images.shape)
    return equalized


def _warp(images: Bytes, matrices: Strengths) -> Bytes:
    """Read each target pixel from the nearest source pixel, to whose centre ``matrices`` ``[B, 2, 3]`` lead; outside is black."""
    count, _channels, height, width = images.shape
    rows, columns = np.mgrid[0:height, 0:width] + 0.5
    points = np.stack([columns.ravel(), rows.ravel(), np.ones(height * width)])
    source = np.floor(matrices @ points).astype(np.int64)
    inside = (source[:, 0] >= 0) & (source[:, 0] < width) & (source[:, 1] >= 0) & (source[:, 1] < height)
    flat = np.where(inside, source[:, 1] * width + source[:, 0], 0)[:, None]
    pixels = images.reshape(count, -1, height * width)
    moved = np.take_along_axis(pixels, np.broadcast_to(flat, pixels.shape), axis=2)
    return np.where(inside[:, None], moved, 0).astype(np.uint8).reshape(images.shape)


def _affine(images: Bytes, strengths: Strengths, cell: tuple[int, int], of_axis: int | None = None) -> Bytes:
    """Move pixels by a matrix that is the identity but for one cell: the strength, or that share of a side."""
    matrices = np.tile(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), (len(images), 1, 1))
    matrices[:, cell[0], cell[1]] = strengths if of_axis is None else strengths * images.shape[of_axis]
    return _warp(images, matrices)


def rotate(images: Bytes, strengths: Strengths) -> Bytes:
    """Rotate by ``strength`` degrees about the centre, counter-clockwise."""
    angle = -np.deg2rad(strengths)
    cosine, sine = np.cos(angle), np.sin(angle)
    centre_x, centre_y = images.shape[3] / 2.0, images.shape[2] / 2.0
    right = centre_x - cosine * centre_x - sine * centre_y
    down = centre_y + sine * centre_x - cosine * centre_y
    return _warp(images, np.array([[cosine, sine, right], [-sine, cosine, down]]).transpose(2, 0, 1))


# Bytes [B, C, H, W] and a strength for each image to bytes of the same shape.
OPERATIONS: dict[str, Operation] = {
    "identity": lambda images, _strengths: images,
    "shear_x": partial(_affine, cell=(0, 1)),
    "shear_y": partial(_affine, cell=(1, 0)),
    "translate_x": partial(_affine, cell=(0, 2), of_axis=3),
    "translate_y": partial(_affine, cell=(1, 2), of_axis=2),
    "rotate": rotate,
    "brightness": lambda images, strengths: _blend(np.zeros_like(images), images, strengths),
    "color": lambda images, strengths: _blend(_grey(images), images, strengths),
    "contrast": contrast,
    "sharpness": sharpness,
    # The strength is the number of bits kept, and the level from which on bytes are inverted.
    "posterize": lambda images, bits: images & (256 - 2.0 ** (8 - bits)).astype(np.uint8)[:, None, None, None],
    "solarize": lambda images, levels: np.where(images >= levels[:, None, None, None], 255 - images, images),
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": lambda images, _strengths: 255 - images,
}
NAMES = tuple(OPERATIONS)
_SIGNED = set(NAMES) - {"identity", "posterize", "solarize", "autocontrast", "equalize", "invert"}
_RAND_OPERATIONS = tuple(name for name in NAMES if name != "invert")
RAND_OPERATIONS_PER_IMAGE = 2
RAND_LEVEL = 9 / 30

# Sub-policies as published: two operations each with probability (tenths) and level (0 to 9).
_CIFAR_POLICY = """
invert 1 0 contrast 2 6 | rotate 7 2 translate_x 3 9 | sharpness 8 1 sharpness 9 3
shear_y 5 8 translate_y 7 9 | autocontrast 5 0 equalize 9 0 | shear_y 2 7 posterize 3 7
color 4 3 brightness 6 7 | sharpness 3 9 brightness 7 9 | equalize 6 0 equalize 5 0
contrast 6 7 sharpness 6 5 | color 7 7 translate_x 5 8 | equalize 3 0 autocontrast 4 0
translate_y 4 3 sharpness 2 6 | brightness 9 6 color 2 8 | solarize 5 2 invert 0 0
equalize 2 0 autocontrast 6 0 | equalize 2 0 equalize 6 0 | color 9 9 equalize 6 0
autocontrast 8 0 solarize 2 8 | brightness 1 3 color 7 0 | solarize 4 5 autocontrast 9 0
translate_y 9 9 translate_y 7 9 | autocontrast 9 0 solarize 8 3 | equalize 8 0 invert 1 0
translate_y 7 9 autocontrast 9 0
"""
_IMAGENET_POLICY = """
posterize 4 8 rotate 6 9 | solarize 6 5 autocontrast 6 0 | equalize 8 0 equalize 6 0
posterize 6 7 posterize 6 6 | equalize 4 0 solarize 2 4 | equalize 4 0 rotate 8 8
solarize 6 3 equalize 6 0 | posterize 8 5 equalize 10 0 | rotate 2 3 solarize 6 8
equalize 6 0 posterize 4 6 | rotate 8 8 color 4 0 | rotate 4 9 equalize 6 0
equalize 0 0 equalize 8 0 | invert 6 0 equalize 10 0 | color 6 4 contrast 10 8
rotate 8 8 color 10 2 | color 8 8 solarize 8 7 | sharpness 4 7 invert 6 0
shear_x 6 5 equalize 10 0 | color 4 0 equalize 6 0 | equalize 4 0 solarize 2 4
solarize 6 5 autocontrast 6 0 | invert 6 0 equalize 10 0 | color 6 4 contrast 10 8
equalize 8 0 equalize 6 0
"""


class DrawnPolicy(NamedTuple):
    """Operations of each image, in order, all ``[B, R]`` for ``R`` rounds: positions in ``NAMES``, strengths between 0 and
    1, and the direction (-1 or 1) of those that have two.
    """

    operations: npt.NDArray[np.int64]
    levels: Strengths
    signs: Strengths


def draw_randaugment(random: np.random.Generator, count: int) -> DrawnPolicy:
    """Draw two of the 14 operations for each image, at level 9 of 30 as in the common implementations."""
    shape = (count, RAND_OPERATIONS_PER_IMAGE)
    choices = np.array([NAMES.index(name) for name in _RAND_OPERATIONS])
    operations = choices[random.integers(0, len(choices), shape)]
    return DrawnPolicy(operations, np.full(shape, RAND_LEVEL), _signs(random, shape))


def draw_autoaugment(random: np.random.Generator, count: int, *, small_images: bool) -> DrawnPolicy:
    """Draw one sub-policy for each image, from the CIFAR table for small images, else the ImageNet table."""
    table = _parse(_CIFAR_POLICY if small_images else _IMAGENET_POLICY)
    chosen = table[random.integers(0, len(table), count)]
    happens = random.random((count, 2)) < chosen[:, :, 1] / 10.0
    signs = _signs(random, (count, 2))
    operations = np.where(happens, chosen[:, :, 0].astype(np.int64), NAMES.index("identity"))
    return DrawnPolicy(operations, chosen[:, :, 2] / 9.0, signs)


def apply_policy(images: Bytes, drawn: DrawnPolicy) -> Bytes:
    """Return images ``[B, C, H, W]`` after what was drawn for them, all with the same operation together."""
    result = images.copy()
    for turn in range(drawn.operations.shape[1]):
        for number in np.unique(drawn.operations[:, turn]):
            rows = np.flatnonzero(drawn.operations[:, turn] == number)
            strengths = strength_of(NAMES[number], drawn.levels[rows, turn], drawn.signs[rows, turn])
            result[rows] = OPERATIONS[NAMES[number]](result[rows], strengths)
    return result


def strength_of(name: str, levels: Strengths, signs: Strengths) -> Strengths:
    """Return the strength that a level in [0, 1] means for an operation."""
    if name == "posterize":
        return 8.0 - np.round(4.0 * levels)
    if name == "solarize":
        return 255.0 * (1.0 - levels)
    if name not in _SIGNED:
        return np.zeros_like(levels)
    largest = {"shear": 0.3, "translate": 150.0 / 331.0, "rotate": 30.0}.get(name.split("_")[0], 0.9)
    return signs * largest * levels


def _signs(random: np.random.Generator, shape: tuple[int, int]) -> Strengths:
    return np.where(random.integers(0, 2, shape) == 1, 1.0, -1.0)


def _parse(policy: str) -> Strengths:
    """Return sub-policies as numbers ``[25, 2, 3]``: operation, tenths of probability, level."""
    words = np.array(policy.replace("|", " ").split()).reshape(-1, 3)
    rows = [[NAMES.index(str(name)), float(tenths), float(level)] for name, tenths, level in words]
    return np.array(rows, dtype=np.float64).reshape(-1, 2, 3)
