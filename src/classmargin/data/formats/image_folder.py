"""Sets of image files: trees in which a folder is a class, and ImageNet and five fine-grained sets as they are distributed.

A tree has ``train/<class>/*``, with ``val`` and ``test`` beside it (or ``Training``, ``Valid``, ``Testing`` ...), or
``<class>/*`` directly. One with ``train`` and ``val`` but no ``test`` is judged on ``val``: its validation
samples are then taken from training, because a part that chooses a model must not judge it too.

imagenet        train/<synset>/ val/<synset>/
stanford-cars   cars_train/ cars_test/ devkit/cars_*.mat cars_test_annos_withlabels.mat
oxford-pets     images/ annotations/trainval.txt test.txt
flowers-102     jpg/ imagelabels.mat setid.mat
food-101        images/<class>/ meta/train.txt test.txt classes.txt
fgvc-aircraft   data/images/ data/images_variant_{train,val,test}.txt data/variants.txt
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._files import LONG_FILE, SMALL_FILE, open_regular, read_text
from classmargin.data.images import ImageFiles
from classmargin.data.raw import DataError, RawData, RawPart, name_some

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
# Formats of phones and browsers that are not read; skipping them silently would bias classes.
UNREAD_ENDINGS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng")
_HIDDEN = (".", "__")
# In lower case; where a tree has several folders for one part, the first name wins.
PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


def looks_like_image_tree(folder: Path) -> bool:
    """Return whether ``folder`` has class folders with images, directly or below ``train``."""
    return any(_has_class_images(place) for place in (*_part_folders(folder).values(), folder))


def read_image_tree(folder: Path) -> RawData:
    """Read an ImageFolder tree; classes are sorted by name."""
    named = _part_folders(folder)
    # "train" may also be a class, and "test" a pile of unlabelled images.
    places = {part: place for part, place in named.items() if _has_class_images(place)}
    classes = _class_names(places.get("train", folder))
    if "train" not in places:
        if places and {folder / name for name in classes} <= set(places.values()):
            raise DataError(f"{folder} has the parts {', '.join(places)}, but no folder called train")
        named = places = {"train": folder}
    parts = {name: _read_class_folders(place, classes) for name, place in places.items()}
    notes = [
        f"the folder {place.name} has no class folders with images and is ignored"
        for name, place in named.items()
        if name not in places
    ]
    folders = [(place, name) for place in places.values() for name in classes]
    unread = [file for place, name in folders for file in sorted(_files_below(place, name, UNREAD_ENDINGS))]
    if unread:
        notes.append(f"{len(unread)} images of kinds that are not read: {name_some(unread)}")
    return RawData(**parts, class_names=classes, notes=tuple(notes))


def _part_folders(folder: Path) -> dict[str, Path]:
    """Return the folders that have the name of a part."""
    found = {child.name.lower(): child for child in reversed(_class_folders(folder))}
    return {
        part: next(found[name] for name in names if name in found)
        for part, names in PART_NAMES.items()
        if not found.keys().isdisjoint(names)
    }


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(child.name for child in _class_folders(folder))
    if not names:
        raise DataError(f"{folder} must hold one folder of images for each class, but has no folder")
    return names


def _read_class_folders(folder: Path, classes: tuple[str, ...]) -> RawPart:
    """List the images of each class; a folder that is not in ``classes`` is an error."""
    extra = [child.name for child in _class_folders(folder) if child.name not in set(classes)]
    if extra:
        raise DataError(f"{folder} has {len(extra)} classes that the training part does not have: {name_some(extra)}")
    found = [sorted(_files_below(folder, name, IMAGE_ENDINGS)) for name in classes]
    labels = np.repeat(np.arange(len(classes)), [len(names) for names in found])
    return RawPart(labels=labels, images=ImageFiles(folder, chain.from_iterable(found)))


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    children = (child for child in folder.iterdir() if not child.name.startswith(_HIDDEN))
    return sorted(child for child in children if child.is_dir())


def _has_class_images(folder: Path) -> bool:
    return any(any(_files_below(folder, child.name, IMAGE_ENDINGS)) for child in _class_folders(folder))


def _files_below(folder: Path, name: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of a class at any depth, relative to ``folder``, without hidden ones (copies by other programs)."""
    for place, folders, files in os.walk(folder / name):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        relative = Path(place).relative_to(folder)
        for file in files:
            if file.lower().endswith(endings) and not file.startswith("."):
                yield (relative / file).as_posix()


def read_oxford_pets(folder: Path) -> RawData:
    """Read Oxford-IIIT Pets; lines of the lists are ``image class species breed`` with classes from 1."""
    names: dict[int, str] = {}

    def part(list_name: str) -> RawPart:
        lines = read_lines(folder / "annotations" / list_name)
        rows = [line.split() for line in lines if not line.startswith("#")]
        for image, number, *_rest in rows:
            names[int(number) - 1] = image.rsplit("_", 1)[0].replace("_", " ")
        return _part(folder / "images", [f"{row[0]}.jpg" for row in rows], [int(row[1]) - 1 for row in rows])

    train, test = part("trainval.txt"), part("test.txt")
    num_classes = _num_classes(max(names), len(train), "annotations/trainval.txt")
    return RawData(train, test=test, class_names=tuple(names.get(k, str(k)) for k in range(num_classes)))


def read_food101(folder: Path) -> RawData:
    """Read Food-101; lines of the lists are ``class/number``."""
    classes = read_lines(folder / "meta" / "classes.txt")
    lists = [folder / "meta" / f"{name}.txt" for name in ("train", "test")]
    train, test = _listed_parts(folder / "images", classes, lists, lambda line: (line, line.split("/")[0]))
    return RawData(train, test=test, class_names=tuple(name.replace("_", " ") for name in classes))


def read_fgvc_aircraft(folder: Path) -> RawData:
    """Read FGVC-Aircraft with the 100 variants as classes; lines of the lists are ``image variant``."""
    data = folder / "data" if (folder / "data").is_dir() else folder
    classes = read_lines(data / "variants.txt")
    lists = [data / f"images_variant_{name}.txt" for name in ("train", "val", "test")]
    train, validation, test = _listed_parts(data / "images", classes, lists, lambda line: line.split(" ", 1))
    return RawData(train, validation, test, class_names=tuple(classes))


def _listed_parts(
    images: Path, classes: list[str], lists: Sequence[Path], parse: Callable[[str], Sequence[str]]
) -> list[RawPart]:
    """Return one part for each list; ``parse`` finds the image and the name of its class in a line."""
    label, parts = {name: number for number, name in enumerate(classes)}, []
    for file in lists:
        rows = [(image, name) for image, name in map(parse, read_lines(file))]
        if unknown := [name for _, name in rows if name not in label]:
            raise DataError(f"{file.name} names the class {unknown[0]!r}, which the list of classes does not have")
        parts.append(_part(images, [f"{image}.jpg" for image, _ in rows], [label[name] for _, name in rows]))
    return parts


def read_flowers102(folder: Path) -> RawData:
    """Read Flowers-102; the distributed files name no classes, ``class_names.txt`` may (one per line)."""
    labels = read_mat(folder / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
    sets = read_mat(folder / "setid.mat")

    def part(key: str) -> RawPart:
        numbers = sets[key].ravel().astype(np.int64)
        return _part(folder / "jpg", [f"image_{number:05d}.jpg" for number in numbers], labels[numbers - 1])

    num_classes = _num_classes(labels.max(), len(labels), "imagelabels.mat")
    file = folder / "class_names.txt"
    names = read_lines(file) if file.is_file() else [f"flower {k + 1}" for k in range(num_classes)]
    return RawData(part("trnid"), part("valid"), part("tstid"), class_names=tuple(names))


def read_stanford_cars(folder: Path) -> RawData:
    """Read Stanford Cars: two folders of images and a devkit; ``cars_test_annos_withlabels.mat`` lies in or beside it."""
    devkit, with_labels = folder / "devkit", "cars_test_annos_withlabels.mat"
    test_file = devkit / with_labels if (devkit / with_labels).is_file() else folder / with_labels

    def part(images: str, file: Path) -> RawPart:
        rows = np.atleast_1d(read_mat(file)["annotations"])
        if len(rows) and not hasattr(rows[0], "class"):
            raise DataError(f"{file.name} has no classes; {with_labels} is needed")
        labels = [int(getattr(row, "class")) - 1 for row in rows]
        return _part(folder / images, [str(row.fname) for row in rows], labels)

    train, test = part("cars_train", devkit / "cars_train_annos.mat"), part("cars_test", test_file)
    names = np.atleast_1d(read_mat(devkit / "cars_meta.mat")["class_names"])
    return RawData(train, test=test, class_names=tuple(str(name) for name in names))


def _num_classes(highest: int, images: int, file: str) -> int:
    if highest >= images:  # before a name is made for each: a broken number would take all memory
        raise DataError(f"{file} names class {highest + 1} among {images} images")
    return highest + 1


def _part(folder: Path, names: Sequence[str], labels: Any) -> RawPart:
    outside = [name for name in names if name.startswith("/") or ".." in name.split("/")]
    if outside:
        raise DataError(f"a list of {folder.name} names the image {outside[0]!r}, which is not below {folder}")
    return RawPart(labels=np.asarray(labels, dtype=np.int64), images=ImageFiles(folder, names))


def read_imagenet(folder: Path) -> RawData:
    """Read ImageNet; the official validation part becomes the test part, since no test labels are public.

    ``class_names.txt`` gives readable names: one per class in the order of the synsets, or ``synset name`` on each line.
    """
    synsets = _class_names(folder / "train")
    _class_names(folder / "val")  # as the archives unpack it, it is not sorted: the test part would be empty
    train, test = (_read_class_folders(folder / part, synsets) for part in ("train", "val"))
    file = folder / "class_names.txt"
    lines = read_lines(file) if file.is_file() else list(synsets)
    words = {synset: name for synset, _, name in (line.partition(" ") for line in lines) if name and synset in synsets}
    if words and len(words) == len(lines):
        names = [words.get(synset, synset) for synset in synsets]
    elif len(lines) == len(synsets):
        names = lines
    else:
        raise DataError(f"{file} must name {len(synsets)} classes, one on each line, got {len(lines)} lines")
    return RawData(train, test=test, class_names=tuple(names))


def read_lines(path: Path) -> list[str]:
    """Return the lines that are not empty, without the space around them."""
    if not path.is_file():
        raise DataError(f"{path} is missing; the data set is incomplete")
    text = read_text(path, max_bytes=LONG_FILE)
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_mat(path: Path) -> dict[str, Any]:
    """Return the variables of a MATLAB file; structs become objects with attributes."""
    from scipy.io import loadmat

    if not path.is_file():
        raise DataError(f"{path} is missing; the data set is incomplete")
    try:
        with open_regular(path, max_bytes=SMALL_FILE) as file:
            content: dict[str, Any] = loadmat(  # an open file serves as well
                file,  # type: ignore[arg-type]
                squeeze_me=True,
                struct_as_record=False,
            )
    except Exception as error:  # loadmat raises many kinds for damaged files
        raise DataError(f"{path} is not a readable .mat file: {error}") from error
    return content
