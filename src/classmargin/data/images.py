"""Decoding with Pillow: one image at a time, every failure with the name of the file."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin._checks import require_extra
from classmargin._progress import progress
from classmargin.data.errors import CorruptImageError, name_some
from classmargin.data.image_source import ImageSource

_DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
_GREY_MODES = ("1", "L")
# Pillow looks at the content, not at the name, and knows formats that start other programs (EPS: Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# A line of one pixel's width would grow into gigabytes when its shorter side is scaled up.
LARGEST_SCALED = 100_000_000
Bytes = npt.NDArray[np.uint8]


def open_image(source: ImageSource, position: int) -> Any:
    """Return the Pillow image at ``position``, header read, pixels not yet.

    Raises:
        CorruptImageError: missing, not an image, or larger than Pillow's limit against decompression bombs.
    """
    image_module = require_extra("PIL.Image", "train", "reading image files")
    try:
        place = source.open(position)
        if isinstance(place, Path) and not place.is_file():  # a pipe would be waited for without end
            raise OSError("not there, or not a regular file")
        image = image_module.open(place, formats=FORMATS)
    except Exception as error:  # damaged files raise nearly anything, and bombs their own warning or error
        raise CorruptImageError(f"{source.name(position)} ({error})") from error
    limit = image_module.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        # Pillow only warns up to twice its limit; a training set has no use for such an image.
        raise CorruptImageError(
            f"{source.name(position)} ({image.width}x{image.height} pixels exceed the limit {limit})"
        )
    return image


def decode_image(source: ImageSource, position: int, *, channels: int) -> Any:
    """Return the decoded Pillow image at ``position``, in grey (1 channel) or colour (3)."""
    with open_image(source, position) as image:
        try:
            return _as_bytes(image).convert("L" if channels == 1 else "RGB")
        except Exception as error:
            raise CorruptImageError(f"{source.name(position)} ({error})") from error


def _as_bytes(image: Any) -> Any:
    """Return an image of more than 8 bits a pixel as one of 8; all others as they are.

    Left to itself, Pillow cuts every value above 255 off, which turns a 16-bit image white.
    """
    if _has_16_bits(image):
        levels = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
        image_module = require_extra("PIL.Image", "train", "reading image files")
        return image_module.fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        values = np.asarray(image)
        low, high = float(values.min()), float(values.max())
        in_units = image.mode == "F" and 0.0 < high <= 1.0
        if in_units or not (low >= 0.0 and high <= 255.0):
            raise ValueError(
                f"32-bit values between {low:g} and {high:g}, which have no agreed white; save 8 or 16 bits"
            )
    return image


def _has_16_bits(image: Any) -> bool:
    # Some versions of Pillow open grey PNG files of 16 bits, and all of them such PGM files, in the 32-bit mode.
    return image.mode in _DEEP_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))


def to_array(image: Any) -> Bytes:
    """Return a Pillow image as bytes ``[C, H, W]``."""
    pixels = np.asarray(image, dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def resize_and_cut(image: Any, size: tuple[int, int], resize: int | None) -> Any:
    """Scale the shorter side to ``resize`` (bilinear) and cut ``size = (H, W)`` out of the centre."""
    if resize is None:
        return image
    bilinear = require_extra("PIL.Image", "train", "reading image files").Resampling.BILINEAR
    scale = resize / min(image.width, image.height)
    if scale != 1.0:
        target = (max(round(image.width * scale), resize), max(round(image.height * scale), resize))
        if target[0] * target[1] > LARGEST_SCALED:
            raise CorruptImageError(
                f"{image.width}x{image.height} pixels are too narrow to be scaled to {resize}"
            )
        image = image.resize(target, bilinear)
    left, top = (image.width - size[1]) // 2, (image.height - size[0]) // 2
    return image.crop((left, top, left + size[1], top + size[0]))


def scaled_image(name: str, image: Any, size: tuple[int, int], resize: int | None) -> Any:
    """Return a decoded image as the network wants it: scaled and cut.

    Raises:
        CorruptImageError: It cannot be brought to ``size``; the message has ``name``.
    """
    try:
        scaled = resize_and_cut(image, size, resize)
    except CorruptImageError as error:
        raise CorruptImageError(f"{name} ({error})") from error
    if (scaled.height, scaled.width) != size:  # headers were read before: the file has changed meanwhile
        raise CorruptImageError(
            f"{name} ({scaled.height}x{scaled.width} pixels instead of {size[0]}x{size[1]})"
        )
    return scaled


@dataclass(frozen=True)
class HeaderScan:
    """What the headers of many images say.

    Attributes:
        sizes: How many images have each ``(H, W)``.
        grey: Whether all of them are grey.
        corrupt: Rows that cannot be opened, with the reason.
    """

    sizes: Counter[tuple[int, int]]
    grey: bool
    corrupt: dict[int, str]


def scan_headers(source: ImageSource) -> HeaderScan:
    """Read the header of every image (no pixels)."""
    sizes: Counter[tuple[int, int]] = Counter()
    corrupt: dict[int, str] = {}
    grey = True
    for position in progress(range(len(source)), "reading image headers"):
        try:
            with open_image(source, position) as image:
                sizes[image.height, image.width] += 1
                grey = grey and (image.mode in _GREY_MODES or _has_16_bits(image))
        except CorruptImageError as error:
            corrupt[position] = str(error)
    return HeaderScan(sizes, grey, corrupt)


def decode_all(
    source: ImageSource, *, channels: int, size: tuple[int, int], resize: int | None
) -> tuple[Bytes, dict[int, str]]:
    """Decode all images into one array ``[N, C, H, W]``, and return the rows that fail with the reason."""
    pixels = np.zeros((len(source), channels, *size), dtype=np.uint8)
    corrupt: dict[int, str] = {}
    for position in progress(range(len(source)), "decoding images"):
        try:
            image = decode_image(source, position, channels=channels)
            pixels[position] = to_array(scaled_image(source.name(position), image, size, resize))
        except CorruptImageError as error:
            corrupt[position] = str(error)
    return pixels, corrupt


def find_corrupt(source: ImageSource, *, time_limit: float | None = None) -> tuple[dict[int, str], int]:
    """Decode every image; return the rows that fail, and how many were seen within ``time_limit`` seconds.

    Threads help here: Pillow lets go of Python's lock while it decodes.
    """

    def reason(position: int) -> str | None:
        try:
            decode_image(source, position, channels=3)
        except CorruptImageError as error:
            return str(error)
        return None

    corrupt: dict[int, str] = {}
    begin = time.monotonic()
    block = 256
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for start in progress(range(0, len(source), block), "checking images"):
            rows = range(start, min(start + block, len(source)))
            corrupt.update(
                {row: text for row, text in zip(rows, pool.map(reason, rows), strict=True) if text}
            )
            if time_limit is not None and time.monotonic() - begin > time_limit:
                return corrupt, rows.stop
    return corrupt, len(source)


def corrupt_message(reasons: list[str], looked_at: int, total: int) -> str:
    """Return the sentence that names and counts corrupt files."""
    part = f"{looked_at}" if looked_at == total else f"the first {looked_at} (of {total})"
    return (
        f"{len(reasons)} of {part} images cannot be read: {name_some(reasons)}. "
        "Repair or remove them, or leave them out with skip_corrupt=True (--skip-corrupt)"
    )
