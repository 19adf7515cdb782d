"""The operations of AutoAugment and RandAugment on batches of bytes, each image with its own strength.

They follow Pillow, in which the two methods were published, to within one grey level (tests compare them).
They are written here because Kornia, the torch library for this, draws one operation for a whole batch from
the global random
state: neither would survive splitting a batch over processes or resuming in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Strengths = npt.NDArray[np.float64]
Operation = Callable[[Bytes, Strengths], Bytes]


def _blend(plain: npt.NDArray[np.float32], images: Bytes, strengths: Strengths) -> Bytes:
    """Return ``plain + (1 + strength) * (image - plain)``, cut to bytes as Pillow does."""
    factor = (1.0 + strengths).astype(np.float32)[:, None, None, None]
    mixed = plain + factor * (images.astype(np.float32) - plain)
    return np.clip(mixed, 0.0, 255.0).astype(np.uint8)


def _grey(images: Bytes) -> Bytes:
    """Return the luma ``[B, 1, H, W]`` with Pillow's integer weights."""
    if images.shape[1] != 3:
        return images[:, :1]
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    return ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)[:, None]


def brightness(images: Bytes, strengths: Strengths) -> Bytes:
    """Blend with black; ``[B, C, H, W]`` bytes in and out, strength 0 changes nothing."""
    return _blend(np.zeros_like(images, dtype=np.float32), images, strengths)


def color(images: Bytes, strengths: Strengths) -> Bytes:
    """Blend with the grey image."""
    return _blend(_grey(images).astype(np.float32), images, strengths)


def contrast(images: Bytes, strengths: Strengths) -> Bytes:
    """Blend with the mean grey level of each image."""
    level = np.floor(_grey(images).mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64) + 0.5)
    return _blend(level.astype(np.float32), images, strengths)


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


def posterize(images: Bytes, strengths: Strengths) -> Bytes:
    """Keep the ``strength`` highest bits of each byte."""
    kept = np.array([256 - (1 << (8 - int(bits))) for bits in strengths], dtype=np.uint8)
    return images & kept[:, None, None, None]


def solarize(images: Bytes, strengths: Strengths) -> Bytes:
    """Invert bytes at or above the threshold ``strength``."""
    return np.where(images >= strengths[:, None, None, None], 255 - images, images)


def invert(images: Bytes, _strengths: Strengths) -> Bytes:
    """Invert all bytes."""
    return 255 - images


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


def _warp(images: Bytes, matrices: npt.NDArray[np.float64]) -> Bytes:
    """Read each target pixel from the nearest source pixel; outside is black.

    Args:
        images: ``[B, C, H, W]``.
        matrices: ``[B, 2, 3]``, from target to source coordinates of pixel centres (x, y, 1).
    """
    count, _channels, height, width = images.shape
    rows, columns = np.mgrid[0:height, 0:width] + 0.5
    points = np.stack([columns.ravel(), rows.ravel(), np.ones(height * width)])
    source = np.floor(matrices @ points).astype(np.int64)
    inside = (source[:, 0] >= 0) & (source[:, 0] < width) & (source[:, 1] >= 0) & (source[:, 1] < height)
    flat = np.where(inside, source[:, 1] * width + source[:, 0], 0)[:, None]
    pixels = images.reshape(count, -1, height * width)
    moved = np.take_along_axis(pixels, np.broadcast_to(flat, pixels.shape), axis=2)
    return np.where(inside[:, None], moved, 0).astype(np.uint8).reshape(images.shape)


def _matrices(count: int) -> npt.NDArray[np.float64]:
    return np.tile(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), (count, 1, 1))


def shear_x(images: Bytes, strengths: Strengths) -> Bytes:
    """Shift each row by ``strength`` times its height."""
    matrices = _matrices(len(images))
    matrices[:, 0, 1] = strengths
    return _warp(images, matrices)


def shear_y(images: Bytes, strengths: Strengths) -> Bytes:
    """Shift each column by ``strength`` times its position."""
    matrices = _matrices(len(images))
    matrices[:, 1, 0] = strengths
    return _warp(images, matrices)


def translate_x(images: Bytes, strengths: Strengths) -> Bytes:
    """Shift by ``strength`` of the width."""
    matrices = _matrices(len(images))
    matrices[:, 0, 2] = strengths * images.shape[3]
    return _warp(images, matrices)


def translate_y(images: Bytes, strengths: Strengths) -> Bytes:
    """Shift by ``strength`` of the height."""
    matrices = _matrices(len(images))
    matrices[:, 1, 2] = strengths * images.shape[2]
    return _warp(images, matrices)


def rotate(images: Bytes, strengths: Strengths) -> Bytes:
    """Turn by ``strength`` degrees about the centre, against the clock."""
    angle = -np.deg2rad(strengths)
    cosine, sine = np.cos(angle), np.sin(angle)
    centre_x, centre_y = images.shape[3] / 2.0, images.shape[2] / 2.0
    matrices = _matrices(len(images))
    matrices[:, 0, 0], matrices[:, 0, 1] = cosine, sine
    matrices[:, 1, 0], matrices[:, 1, 1] = -sine, cosine
    matrices[:, 0, 2] = centre_x - cosine * centre_x - sine * centre_y
    matrices[:, 1, 2] = centre_y + sine * centre_x - cosine * centre_y
    return _warp(images, matrices)


def identity(images: Bytes, _strengths: Strengths) -> Bytes:
    """Change nothing."""
    return images


OPERATIONS: dict[str, Operation] = {
    operation.__name__: operation
    for operation in (
        identity,
        shear_x,
        shear_y,
        translate_x,
        translate_y,
        rotate,
        brightness,
        color,
        contrast,
        sharpness,
        posterize,
        solarize,
        autocontrast,
        equalize,
        invert,
    )
}
