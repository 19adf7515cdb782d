"""Small files in the real formats, written by the tests themselves."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from classmargin.data import bundle as bundle_module
from classmargin.data import load_data


@pytest.fixture(autouse=True)
def no_outside_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests see no data folder but their own."""
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path / "root"))


@pytest.fixture(scope="session")
def mini() -> bundle_module.DataBundle:
    return load_data("fashion-mnist-mini")


def random_images(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray, *, zipped: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    opener = gzip.open if zipped else open
    with opener(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


def write_idx_set(folder: Path, *, per_class: int = 4, classes: int = 3, zipped: bool = False) -> dict[str, np.ndarray]:
    labels = np.tile(np.arange(classes), per_class)
    ending = ".gz" if zipped else ""
    content = {}
    for number, part in enumerate(("train", "t10k")):
        images = random_images(len(labels), 28, 28, seed=number)
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", images, zipped=zipped)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", labels, zipped=zipped)
        content[part] = images
    return content


def write_image(path: Path, *, size: tuple[int, int] = (8, 8), seed: int = 0, mode: str = "RGB") -> np.ndarray:
    """Write a random image of ``size = (height, width)`` and return its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def write_tree(
    folder: Path, classes: list[str], per_class: int, *, size: tuple[int, int] = (8, 8), ending: str = "png"
) -> None:
    for label, name in enumerate(classes):
        for number in range(per_class):
            write_image(folder / name / f"{number:03d}.{ending}", size=size, seed=1000 * label + number)
