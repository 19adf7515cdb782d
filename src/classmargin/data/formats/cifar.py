"""CIFAR-10 and CIFAR-100 as their authors distribute them: folders of pickled batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from classmargin.data.errors import DataError
from classmargin.data.formats.restricted_pickle import load_pickled_arrays
from classmargin.data.raw import RawData, RawPart

CIFAR10_FOLDER = "cifar-10-batches-py"
CIFAR100_FOLDER = "cifar-100-python"


def looks_like_cifar10(folder: Path) -> bool:
    """Return whether ``folder`` (or the folder inside it) holds the batches of CIFAR-10."""
    return (_inner(folder, CIFAR10_FOLDER) / "data_batch_1").is_file()


def looks_like_cifar100(folder: Path) -> bool:
    """Return whether ``folder`` (or the folder inside it) holds CIFAR-100."""
    inner = _inner(folder, CIFAR100_FOLDER)
    return (inner / "train").is_file() and (inner / "meta").is_file()


def read_cifar10(folder: Path) -> RawData:
    """Read ``data_batch_1`` to ``data_batch_5``, ``test_batch`` and ``batches.meta``."""
    inner = _inner(folder, CIFAR10_FOLDER)
    batches = [inner / f"data_batch_{number}" for number in range(1, 6)]
    return RawData(
        train=_read_batches(batches, "labels"),
        test=_read_batches([inner / "test_batch"], "labels"),
        class_names=_names(inner / "batches.meta", "label_names"),
    )


def read_cifar100(folder: Path) -> RawData:
    """Read ``train``, ``test`` and ``meta`` with the fine labels."""
    inner = _inner(folder, CIFAR100_FOLDER)
    return RawData(
        train=_read_batches([inner / "train"], "fine_labels"),
        test=_read_batches([inner / "test"], "fine_labels"),
        class_names=_names(inner / "meta", "fine_label_names"),
    )


def _inner(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).is_dir() else folder


def _read_batches(paths: list[Path], label_key: str) -> RawPart:
    pixels, labels = zip(*(_read_batch(path, label_key) for path in paths), strict=True)
    return RawPart(labels=np.concatenate(labels), inputs=np.concatenate(pixels))


def _read_batch(path: Path, label_key: str) -> tuple[Any, Any]:
    if not path.is_file():
        raise DataError(f"{path} is missing; the folder of batches is incomplete")
    content = load_pickled_arrays(path)
    pixels, labels = content.get("data"), content.get(label_key)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != 3072
    ):
        raise DataError(f"{path}: 'data' must be bytes of shape [N, 3072]")
    if not isinstance(labels, (list, np.ndarray)):
        raise DataError(f"{path}: {label_key!r} must be a list of labels")
    if isinstance(labels, list) and not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path}: {label_key!r} must hold whole numbers")
    return pixels.reshape(-1, 3, 32, 32), np.asarray(labels)


def _names(path: Path, key: str) -> tuple[str, ...] | None:
    if not path.is_file():
        return None
    names = load_pickled_arrays(path).get(key)
    if not isinstance(names, list) or not all(isinstance(name, (bytes, str)) for name in names):
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names)
