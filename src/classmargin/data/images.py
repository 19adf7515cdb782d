"""Encoded images, in files or inside a table, opened one at a time; every failure names the image."""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from classmargin._checks import require_extra
from classmargin._progress import progress
from classmargin.data.raw import CorruptImageError

_DEEP_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
# Pillow looks at the content, not at the name, and knows formats that start other programs (EPS: Ghostscript).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# Images whose sides are at most this long are decoded once and live in memory.
SMALL_SIDE = 64
CORRUPT_HINT = "Repair or remove them, or leave them out with skip_corrupt=True (--skip-corrupt)"
# An image one pixel wide would grow to gigabytes when its shorter side is scaled up.
LARGEST_SCALED = 100_000_000
Bytes = npt.NDArray[np.uint8]
Corrupt = dict[int, str]  # rows that cannot be read, with the reason


def pillow() -> Any:
    """Return the module ``PIL.Image``."""
    return require_extra("PIL.Image", "train", "reading image files")


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
    """Image files below one folder, named by their paths below it."""

    def __init__(self, folder: Path, relative: Iterable[str]) -> None:
        self.folder = folder
        # One array of bytes: the reference counts of a million texts would make every forked worker copy them.
        self._names = np.array([os.fsencode(name) for name in relative], dtype=np.bytes_)
        super().__init__(len(self._names))

    def _name(self, row: int) -> str:
        return os.fsdecode(bytes(self._names[row]))

    def _open(self, row: int) -> Path:
        return self.folder / self._name(row)


class EncodedImages(ImageSource):
    """An Arrow column of encoded images (PNG, JPEG, ...); ``label`` stands before the row number in messages."""

    def __init__(self, column: Any, label: str) -> None:
        super().__init__(len(column))
        self._column, self._label = column, label

    def _name(self, row: int) -> str:
        return f"{self._label} row {row}"

    def _open(self, row: int) -> io.BytesIO:
        return io.BytesIO(self._column[row].as_py() or b"")


class JoinedImages(ImageSource):
    """Two sources, one after the other."""

    def __init__(self, first: ImageSource, second: ImageSource) -> None:
        super().__init__(len(first) + len(second))
        self._first, self._second = first, second

    def _name(self, row: int) -> str:
        start = len(self._first)
        return self._first.name(row) if row < start else self._second.name(row - start)

    def _open(self, row: int) -> Path | io.BytesIO:
        start = len(self._first)
        return self._first.open(row) if row < start else self._second.open(row - start)


@contextlib.contextmanager
def opened(source: ImageSource, position: int) -> Iterator[Any]:
    """Open the image at ``position`` with Pillow; whatever fails until it is closed again is a CorruptImageError."""
    module = pillow()
    try:
        place = source.open(position)
        if isinstance(place, Path) and not place.is_file():  # a pipe would be waited for without end
            raise OSError("not there, or not a regular file")
        with module.open(place, formats=FORMATS) as image:
            limit = module.MAX_IMAGE_PIXELS
            # Pillow only warns up to twice its limit; a training set has no use for such an image.
            if limit is not None and image.width * image.height > limit:
                raise ValueError(f"{image.width}x{image.height} pixels exceed the limit {limit}")
            yield image
    except Exception as error:  # damaged files raise nearly anything, and bombs their own warning or error
        raise CorruptImageError(f"{source.name(position)} ({error})") from error


def decode_image(source: ImageSource, position: int, channels: int, cut: Callable[[Any], Any]) -> Bytes:
    """Return the image at ``position``, in grey (1 channel) or colour (3), as bytes ``[C, H, W]`` after ``cut``."""
    with opened(source, position) as image:
        pixels = np.asarray(cut(_as_bytes(image).convert("L" if channels == 1 else "RGB")), dtype=np.uint8)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def _as_bytes(image: Any) -> Any:
    """Return an image of 8 bits per pixel; left to itself, Pillow clips above 255 and turns a 16-bit image white."""
    if _has_16_bits(image):
        levels = np.clip(np.asarray(image), 0, 65535).astype(np.uint32)
        return pillow().fromarray(((levels + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("32-bit values have no agreed white; save 8 or 16 bits")
    return image


def _has_16_bits(image: Any) -> bool:
    # Some versions of Pillow open grey PNG files of 16 bits, and all of them such PGM files, in the 32-bit mode.
    return image.mode in _DEEP_MODES or (image.mode == "I" and image.format in ("PNG", "PPM"))


def resampling(interpolation: str) -> Any:
    """Return Pillow's filter for ``"bilinear"`` or ``"bicubic"``."""
    return pillow().Resampling[interpolation.upper()]


class ImageFormat(NamedTuple):
    """How encoded images become arrays: channels, size (H, W), and the shorter side before the centre cut."""

    channels: int
    size: tuple[int, int]
    resize: int | None


def scaled_image(image: Any, image_format: ImageFormat, interpolation: str) -> Any:
    """Scale the shorter side of a decoded image and cut the centre out."""
    _, (height, width), resize = image_format
    if resize is not None:
        shorter = min(image.width, image.height)
        if resize != shorter:
            scale = resize / shorter
            target = (max(round(image.width * scale), resize), max(round(image.height * scale), resize))
            if target[0] * target[1] > LARGEST_SCALED:
                size = f"{image.width}x{image.height}"
                raise ValueError(f"{size} pixels are too narrow to be scaled to {resize}")
            image = image.resize(target, resampling(interpolation))
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    if (image.height, image.width) != (height, width):  # it has changed since its header was read
        raise ValueError(f"{image.height}x{image.width} pixels instead of {height}x{width}")
    return image


def corrupt_among(rows: Iterable[int], look: Callable[[int], None]) -> Corrupt:
    """Look at the images at ``rows``; return those that fail, with the reason."""
    corrupt: Corrupt = {}
    for row in rows:
        try:
            look(row)
        except CorruptImageError as error:
            corrupt[row] = str(error)
    return corrupt


def scan_headers(source: ImageSource) -> tuple[Counter[tuple[int, int, bool]], Corrupt]:
    """Read the header of every image; return how many have each (H, W, grey), and the rows that fail."""
    kinds: Counter[tuple[int, int, bool]] = Counter()

    def look(position: int) -> None:
        with opened(source, position) as image:
            kinds[image.height, image.width, image.mode in ("1", "L") or _has_16_bits(image)] += 1

    return kinds, corrupt_among(progress(range(len(source)), "reading image headers"), look)


def decode_all(source: ImageSource, image_format: ImageFormat, interpolation: str) -> tuple[Bytes, Corrupt]:
    """Decode all images into one array ``[N, C, H, W]``, and return the rows that fail with the reason."""
    channels, size, _ = image_format
    pixels = np.zeros((len(source), channels, *size), dtype=np.uint8)
    cut = partial(scaled_image, image_format=image_format, interpolation=interpolation)

    def look(position: int) -> None:
        pixels[position] = decode_image(source, position, channels, cut)

    return pixels, corrupt_among(progress(range(len(source)), "decoding images"), look)


def find_corrupt(source: ImageSource) -> Corrupt:
    """Decode every image; return the rows that fail, with the reason."""

    def look(position: int) -> None:
        with opened(source, position) as image:
            _as_bytes(image).convert("RGB")

    # Threads help here: Pillow releases the GIL while it decodes.
    corrupt: Corrupt = {}
    blocks = [range(start, min(start + 256, len(source))) for start in range(0, len(source), 256)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for found in progress(
            pool.map(partial(corrupt_among, look=look), blocks), "checking images", total=len(blocks)
        ):
            corrupt |= found
    return corrupt
