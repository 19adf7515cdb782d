"""Trees of image files in which a folder is a class (the ImageFolder convention).

Either ``train/<class>/*``, with ``val`` and ``test`` beside it (or ``Training``, ``Valid``, ``Testing`` ...), or
``<class>/*`` directly. A tree with ``train`` and ``val`` but no ``test`` is judged on ``val``: its validation
samples are then taken from training, because a part that chooses a model must not judge it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from classmargin.data.images import ImageFiles
from classmargin.data.raw import DataError, RawData, RawPart, name_some

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
# Formats of phones and browsers that are not read; skipping them silently would bias classes.
UNREAD_ENDINGS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng")
# In lower case; where a tree has several folders for one part, the first name wins.
PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


def looks_like_image_tree(folder: Path) -> bool:
    """Return whether ``folder`` has class folders with images, directly or below ``train``."""
    return any(_has_images(child) for child in _class_folders(_part_folders(folder).get("train", folder)))


def read_image_tree(folder: Path) -> RawData:
    """Read an ImageFolder tree; classes are sorted by name."""
    places = _part_folders(folder)
    if "train" not in places:
        classes = class_folder_names(folder)
        if places and {folder / name for name in classes} <= set(places.values()):
            raise DataError(f"{folder} has the parts {', '.join(places)}, but no folder called train")
        train = read_class_folders(folder, classes)
        return RawData(train=train, class_names=classes, notes=_note_unread([folder], classes))
    classes = class_folder_names(places["train"])
    parts = {name: read_class_folders(place, classes) for name, place in places.items()}
    ignored = (place.name for name, place in _named_folders(folder).items() if name not in places)
    return RawData(
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        class_names=classes,
        notes=(
            *(f"the folder {name} has no class folders with images and is ignored" for name in ignored),
            *_note_unread(list(places.values()), classes),
        ),
    )


def _note_unread(folders: list[Path], classes: tuple[str, ...]) -> tuple[str, ...]:
    unread = [
        f"{Path(place).relative_to(folder).as_posix()}/{name}"
        for folder in folders
        for class_name in classes
        for place, files in _walk(folder / class_name)
        for name in sorted(files)
        if name.lower().endswith(UNREAD_ENDINGS) and not name.startswith(".")
    ]
    return (f"{len(unread)} images of kinds that are not read: {name_some(unread)}",) if unread else ()


def _named_folders(folder: Path) -> dict[str, Path]:
    """Return the folders whose names are those of parts."""
    found = {child.name.lower(): child for child in reversed(_class_folders(folder))}
    named = {
        part: next((found[name] for name in names if name in found), None)
        for part, names in PART_NAMES.items()
    }
    return {part: place for part, place in named.items() if place is not None}


def _part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders that are parts: ``train`` may also be a class, and ``test`` a pile of unlabelled images."""
    return {
        part: place
        for part, place in _named_folders(folder).items()
        if any(_has_images(child) for child in _class_folders(place))
    }


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
    return any(_is_image(name) for _place, files in _walk(folder) for name in files)


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders below ``folder`` with their files, without hidden ones (copies made by other programs)."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        yield place, files


def _images_below(folder: Path, class_name: str) -> list[str]:
    """Return the images of a class, below any depth of folders, sorted, relative to ``folder``."""
    names: list[str] = []
    for place, files in _walk(folder / class_name):
        relative = Path(place).relative_to(folder)
        names.extend((relative / name).as_posix() for name in files if _is_image(name))
    return sorted(names)


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")
