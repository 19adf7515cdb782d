"""Decides, for encoded images, on one size, on memory or streaming, and on what to do with corrupt files.

Images whose sides are at most 64 pixels are decoded once and live in memory (up to 1 GiB); larger ones are
decoded by worker processes during training.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from classmargin.data.bundle import Framing
from classmargin.data.errors import CorruptImageError, MixedSizeError, name_some
from classmargin.data.images import SMALL_SIDE, corrupt_message, decode_all, find_corrupt, scan_headers
from classmargin.data.raw import RawData, RawPart

MEMORY_LIMIT = 1024**3


@dataclass(frozen=True)
class ImageFormat:
    """How encoded images become arrays: channels, size (H, W), and the shorter side before the centre cut."""

    channels: int
    size: tuple[int, int]
    resize: int | None

    def bytes_of(self, count: int) -> int:
        """Return the memory that ``count`` images need."""
        return count * self.channels * self.size[0] * self.size[1]


def prepare_images(
    raw: RawData, *, image_size: int | None, skip_corrupt: bool, framing: Framing
) -> tuple[RawData, ImageFormat | None]:
    """Return ``raw`` with small images decoded and corrupt ones dropped (or refused), and their format.

    Data without encoded images pass unchanged, with format ``None``.
    """
    if raw.train.images is None:
        return raw, None
    notes = list(raw.notes)
    if image_size is None:
        raw, image_format = _common_format(raw, notes, skip_corrupt=skip_corrupt)
    else:
        resize = image_size if image_size <= SMALL_SIDE else round(image_size / framing.centre_share)
        image_format = ImageFormat(3, (image_size, image_size), resize)
    total = sum(len(part) for part in raw.parts().values())
    if max(image_format.size) <= SMALL_SIDE and image_format.bytes_of(total) <= MEMORY_LIMIT:
        raw = _decode(raw, image_format, notes, skip_corrupt=skip_corrupt, framing=framing)
    elif skip_corrupt:
        corrupt = {name: find_corrupt(part.images)[0] for name, part in raw.parts().items() if part.images}
        raw = _drop(raw, corrupt, notes, skip_corrupt=True)
    return replace(raw, notes=tuple(notes)), image_format


def _common_format(raw: RawData, notes: list[str], *, skip_corrupt: bool) -> tuple[RawData, ImageFormat]:
    scans = {name: scan_headers(part.images) for name, part in raw.parts().items() if part.images is not None}
    raw = _drop(raw, {name: scan.corrupt for name, scan in scans.items()}, notes, skip_corrupt=skip_corrupt)
    sizes: Counter[tuple[int, int]] = Counter()
    for scan in scans.values():
        sizes.update(scan.sizes)
    if len(sizes) > 1:
        common = ", ".join(f"{count} of {height}x{width}" for (height, width), count in sizes.most_common(3))
        raise MixedSizeError(
            f"the images have {len(sizes)} different sizes (height x width: {common}, ...). Give image_size "
            "(--set data.image_size=224) to scale the shorter side and cut out the centre"
        )
    grey = all(scan.grey for scan in scans.values())
    size = next(iter(sizes), (1, 1))
    return raw, ImageFormat(1 if grey else 3, size, None)


def _decode(
    raw: RawData, image_format: ImageFormat, notes: list[str], *, skip_corrupt: bool, framing: Framing
) -> RawData:
    decoded: dict[str, RawPart] = {}
    corrupt: dict[str, dict[int, str]] = {}
    for name, part in raw.parts().items():
        assert part.images is not None
        pixels, corrupt[name] = decode_all(
            part.images,
            channels=image_format.channels,
            size=image_format.size,
            resize=image_format.resize,
            interpolation=framing.interpolation,
        )
        decoded[name] = replace(part, inputs=pixels, images=None)
    return _drop(_with_parts(raw, decoded), corrupt, notes, skip_corrupt=skip_corrupt)


def _drop(
    raw: RawData, corrupt: dict[str, dict[int, str]], notes: list[str], *, skip_corrupt: bool
) -> RawData:
    reasons = [text for rows in corrupt.values() for text in rows.values()]
    if not reasons:
        return raw
    parts = raw.parts()
    total = sum(len(part) for part in parts.values())
    if not skip_corrupt:
        raise CorruptImageError(corrupt_message(reasons, total, total))
    kept = {
        name: part.take(
            np.setdiff1d(np.arange(len(part)), np.fromiter(corrupt.get(name, {}), dtype=np.int64))
        )
        for name, part in parts.items()
    }
    notes.append(
        f"{len(reasons)} of {total} images cannot be read and are left out: "
        f"{name_some(sorted(reasons), limit=20)}"
    )
    return _with_parts(raw, kept)


def _with_parts(raw: RawData, parts: dict[str, RawPart]) -> RawData:
    return replace(raw, train=parts["train"], validation=parts.get("validation"), test=parts.get("test"))
