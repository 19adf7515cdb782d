"""Trees of image files in which a folder is a class (the ImageFolder habit).

Either ``train/<class>/*``, with ``val`` and ``test`` beside it, or ``<class>/*`` directly. A tree with
``train`` and ``val`` but no ``test`` is judged on ``val``: its validation samples are then taken from
training, because a part that chooses a model must not judge it too.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from classmargin.data.errors import DataError, name_some
from classmargin.data.image_source import ImageFiles
from classmargin.data.raw import RawData, RawPart

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
VALIDATION_NAMES = ("val", "valid", "validation")


def looks_like_image_tree(folder: Path) -> bool:
    """Return whether ``folder`` has class folders with images, directly or below ``train``."""
    base = folder / "train" if (folder / "train").is_dir() else folder
    return any(_has_images(child) for child in _class_folders(base))


def read_image_tree(folder: Path) -> RawData:
    """Read an ImageFolder tree; classes are sorted by name."""
    if not (folder / "train").is_dir():
        classes = class_folder_names(folder)
        return RawData(train=read_class_folders(folder, classes), class_names=classes)
    classes = class_folder_names(folder / "train")
    found = {name: folder / name for name in (*VALIDATION_NAMES, "test") if (folder / name).is_dir()}
    parts = {name: read_class_folders(place, classes) for name, place in found.items()}
    validation = next((parts[name] for name in VALIDATION_NAMES if name in parts), None)
    return RawData(
        read_class_folders(folder / "train", classes), validation, parts.get("test"), class_names=classes
    )


def class_folder_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders, sorted."""
    names = tuple(child.name for child in _class_folders(folder))
    if not names:
        raise DataError(f"{folder} must hold one folder of images for each class, but has no folder")
    return names


def read_class_folders(folder: Path, classes: tuple[str, ...]) -> RawPart:
    """List the images of each class; a folder that is not in ``classes`` is an error."""
    extra = [child.name for child in _class_folders(folder) if child.name not in set(classes)]
    if extra:
        raise DataError(
            f"{folder} has {len(extra)} classes that the training part does not have: {name_some(extra)}"
        )
    names: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        found = _images_below(folder, class_name)
        names.extend(found)
        labels.extend([label] * len(found))
    return RawPart(labels=np.array(labels, dtype=np.int64), images=ImageFiles(folder, names))


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        child for child in folder.iterdir() if child.is_dir() and not child.name.startswith((".", "__"))
    )


def _has_images(folder: Path) -> bool:
    return any(_is_image(name) for _place, _folders, files in os.walk(folder) for name in files)


def _images_below(folder: Path, class_name: str) -> list[str]:
    """Return the images of a class, below any depth of folders, sorted, relative to ``folder``."""
    names: list[str] = []
    for place, _folders, files in os.walk(folder / class_name):
        relative = Path(place).relative_to(folder)
        names.extend((relative / name).as_posix() for name in files if _is_image(name))
    return sorted(names)


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")
