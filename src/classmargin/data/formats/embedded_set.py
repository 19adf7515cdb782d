"""The data set inside the package: 1 000 images a class of Fashion-MNIST, pixels unchanged.

``embedded/fashion_mnist_mini.npz.xz`` is an ``.npz`` packed with xz (smaller than PNG-style filtering of
these images), made by ``scripts/make_fashion_mnist_mini.py``; its checksum is compared before anything is
read.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np

from classmargin.data.errors import DataError
from classmargin.data.formats.arrays import arrays_to_raw
from classmargin.data.raw import RawData

EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
MINI_FILE = EMBEDDED / "fashion_mnist_mini.npz.xz"


def read_embedded(path: Path = MINI_FILE) -> RawData:
    """Read the embedded data set after comparing its checksum with ``SHA256SUMS`` beside it."""
    import lzma  # late: some minimal Python builds lack it, and only this set needs it

    packed = path.read_bytes()
    expected = read_checksums(path.with_name("SHA256SUMS")).get(path.name)
    found = hashlib.sha256(packed).hexdigest()
    if found != expected:
        raise DataError(
            f"{path.name} is damaged: its sha256 is {found}, expected {expected}; reinstall the package"
        )
    with np.load(io.BytesIO(lzma.decompress(packed)), allow_pickle=False) as archive:
        return arrays_to_raw({key: archive[key] for key in archive.files}, path.name)


def read_checksums(path: Path) -> dict[str, str]:
    """Return file name -> sha256 of a ``SHA256SUMS`` file as ``sha256sum`` writes it."""
    pairs = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {name.lstrip("*"): digest for digest, name in pairs}
