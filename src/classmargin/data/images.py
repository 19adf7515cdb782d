"""Encoded images, in files or inside a table, opened one at a time; every failure names the image.

A source is cheap to copy into worker processes: names are packed into one byte array instead of a million
Python strings, whose reference counts would otherwise make every forked worker copy them.
"""

from __future__ import annotations

import copy
import io
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin._checks import require_extra
from classmargin._progress import progress
from classmargin.data.raw import CorruptImageError, name_some

_DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
_GREY_MODES = ("1", "L")
# Pillow looks at the content, not at the name, and knows formats that start other programs (EPS: Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# Images whose sides are at most this long are decoded once and live in memory.
SMALL_SIDE = 64
# An image one pixel wide would grow to gigabytes when its shorter side is scaled up.
LARGEST_SCALED = 100_000_000
Bytes = npt.NDArray[np.uint8]


class ImageSource:
    """Encoded images that are opened one at a time; a subset shares everything with what it was taken from."""

    def __init__(self, count: int) -> None:
        self._rows = np.arange(count, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: npt.NDArray[np.int64]) -> ImageSource:
        """Return the images at ``rows``."""
        taken = copy.copy(self)
        taken._rows = self._rows[rows]
        return taken

    def name(self, position: int) -> str:
        """Return a name that a person can find the image by."""
        return self._name(int(self._rows[position]))

    def open(self, position: int) -> Path | io.BytesIO:
        """Return what Pillow can open."""
        return self._open(int(self._rows[position]))

    def _name(self, row: int) -> str:
        raise NotImplementedError

    def _open(self, row: int) -> Path | io.BytesIO:
        raise NotImplementedError


class ImageFiles(ImageSource):
    """Image files below one folder, named by their paths below it.

    Example:
        >>> files = ImageFiles(Path("photos"), ["cat/1.png", "dog/2.png"])
        >>> files.name(1), len(files.take(np.array([1])))
        ('dog/2.png', 1)
    """

    def __init__(self, folder: Path, relative: Iterable[str]) -> None:
        self.folder = folder
        self._names = np.array([os.fsencode(name) for name in relative], dtype=np.bytes_)
        super().__init__(len(self._names))

    def _name(self, row: int) -> str:
        return os.fsdecode(bytes(self._names[row]))

    def _open(self, row: int) -> Path:
        return self.folder / self._name(row)


class EncodedImages(ImageSource):
    """Encoded images (PNG, JPEG, ...) held as bytes, for example a column of a parquet table.

    Args:
        column: Anything whose items are ``bytes`` or, as in Arrow, know ``as_py()``.
        label: Words before the row number in messages.
    """

    def __init__(self, column: Any, label: str) -> None:
        super().__init__(len(column))
        self._column, self._label = column, label

    def _name(self, row: int) -> str:
        return f"{self._label} row {row}"

    def _open(self, row: int) -> io.BytesIO:
        item = self._column[row]
        content = item if isinstance(item, bytes) else item.as_py()
        return io.BytesIO(content if content is not None else b"")


class JoinedImages(ImageSource):
    """Several sources, one after the other.

    Example:
        >>> both = JoinedImages(ImageFiles(Path("a"), ["1.png"]), ImageFiles(Path("b"), ["2.png", "3.png"]))
        >>> len(both), both.name(2), both.take(np.array([2, 0])).name(1)
        (3, '3.png', '1.png')
    """

    def __init__(self, *sources: ImageSource) -> None:
        self._sources = sources
        self._starts = np.cumsum([0, *(len(source) for source in sources)])
        super().__init__(int(self._starts[-1]))

    def _place(self, row: int) -> tuple[ImageSource, int]:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._sources[number], row - int(self._starts[number])

    def _name(self, row: int) -> str:
        source, position = self._place(row)
        return source.name(position)

    def _open(self, row: int) -> Path | io.BytesIO:
        source, position = self._place(row)
        return source.open(position)


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
    """Return an image of more than 8 bits per pixel as one of 8 bits; all others as they are.

    Left to itself, Pillow clips every value above 255, which turns a 16-bit image white.
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


def resampling(interpolation: str) -> Any:
    """Return Pillow's filter for ``"bilinear"`` or ``"bicubic"``."""
    return require_extra("PIL.Image", "train", "reading image files").Resampling[interpolation.upper()]


def scaled_image(
    name: str, image: Any, size: tuple[int, int], resize: int | None, interpolation: str = "bilinear"
) -> Any:
    """Scale the shorter side of a decoded image to ``resize`` and cut ``size = (H, W)`` out of the centre.

    Raises:
        CorruptImageError: It cannot be brought to ``size``; the message has ``name``.
    """
    if resize is not None and resize != min(image.width, image.height):
        scale = resize / min(image.width, image.height)
        target = (max(round(image.width * scale), resize), max(round(image.height * scale), resize))
        if target[0] * target[1] > LARGEST_SCALED:
            raise CorruptImageError(
                f"{name} ({image.width}x{image.height} pixels are too narrow to be scaled to {resize})"
            )
        image = image.resize(target, resampling(interpolation))
    if resize is not None:
        left, top = (image.width - size[1]) // 2, (image.height - size[0]) // 2
        image = image.crop((left, top, left + size[1], top + size[0]))
    if (image.height, image.width) != size:  # headers were read before: the file has changed meanwhile
        raise CorruptImageError(
            f"{name} ({image.height}x{image.width} pixels instead of {size[0]}x{size[1]})"
        )
    return image


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
    source: ImageSource,
    *,
    channels: int,
    size: tuple[int, int],
    resize: int | None,
    interpolation: str = "bilinear",
) -> tuple[Bytes, dict[int, str]]:
    """Decode all images into one array ``[N, C, H, W]``, and return the rows that fail with the reason."""
    pixels = np.zeros((len(source), channels, *size), dtype=np.uint8)
    corrupt: dict[int, str] = {}
    for position in progress(range(len(source)), "decoding images"):
        try:
            image = decode_image(source, position, channels=channels)
            name = source.name(position)
            pixels[position] = to_array(scaled_image(name, image, size, resize, interpolation))
        except CorruptImageError as error:
            corrupt[position] = str(error)
    return pixels, corrupt


def find_corrupt(source: ImageSource, *, time_limit: float | None = None) -> tuple[dict[int, str], int]:
    """Decode every image; return the rows that fail, and how many were seen within ``time_limit`` seconds.

    Threads help here: Pillow releases the GIL while it decodes.
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
