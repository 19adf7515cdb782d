"""Sets of image files: trees in which a folder is a class, and ImageNet and five fine-grained sets as they are distributed.

A tree has ``train/<class>/*``, with ``val`` and ``test`` beside it (or ``Training``, ``Valid``, ``Testing`` ...), or
``<class>/*`` directly. One with ``train`` and ``val`` but no ``test`` is judged on ``val``: its validation
samples are then taken from training, because a part that chooses a model must not judge it too.

imagenet        train/<synset>/; val/<synset>/, or val/ with LOC_val_solution.csv or the devkit
stanford-cars   cars_train/ cars_test/ devkit/cars_*.mat cars_test_annos_withlabels.mat
oxford-pets     images/ annotations/trainval.txt test.txt
flowers-102     jpg/ imagelabels.mat setid.mat
food-101        images/<class>/ meta/train.txt test.txt classes.txt
fgvc-aircraft   data/images/ data/images_variant_{train,val,test}.txt data/variants.txt
"""

from __future__ import annotations

import csv
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


_DEVKIT = Path("ILSVRC2012_devkit_t12") / "data"


def read_imagenet(folder: Path) -> RawData:
    """Read ImageNet; the official validation part becomes the test part, since no test labels are public."""
    places = (folder, folder / "ILSVRC/Data/CLS-LOC")
    images = next((place for place in places if (place / "train").is_dir()), None)
    if images is None:
        raise DataError(f"{folder} must hold train/<synset>/*.JPEG (or ILSVRC/Data/CLS-LOC/train)")
    synsets = _class_names(images / "train")
    if any(child.is_dir() and not child.name.startswith(".") for child in (images / "val").glob("*")):
        test = _read_class_folders(images / "val", synsets)
    else:
        test = _read_flat(folder, images / "val", synsets)
    train = _read_class_folders(images / "train", synsets)
    return RawData(train, test=test, class_names=_words(folder, synsets))


def _read_flat(folder: Path, images: Path, synsets: tuple[str, ...]) -> RawPart:
    found = (path for path in images.glob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    files = sorted(path.name for path in found if not path.name.startswith("."))
    if not files:
        raise DataError(f"{images} must hold the validation images, on which ImageNet is judged; it has none")
    if (folder / "LOC_val_solution.csv").is_file():
        rows = csv.DictReader(read_text(folder / "LOC_val_solution.csv").splitlines())
        of_image = {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}
    elif (folder / _DEVKIT / "meta.mat").is_file():
        synset_of = {int(row.ILSVRC2012_ID): str(row.WNID) for row in _devkit_rows(folder)}
        truth = read_lines(folder / _DEVKIT / "ILSVRC2012_validation_ground_truth.txt")
        if len(truth) != len(files):
            raise DataError(f"the devkit knows {len(truth)} validation images, the folder holds {len(files)}")
        of_image = {Path(file).stem: synset_of[int(k)] for file, k in zip(files, truth, strict=True)}
    else:
        raise DataError(
            f"{images} is not sorted into class folders; put LOC_val_solution.csv or ILSVRC2012_devkit_t12/ beside it"
        )
    number = {synset: label for label, synset in enumerate(synsets)}
    try:
        labels = [number[of_image[Path(file).stem]] for file in files]
    except KeyError as error:
        raise DataError(f"no class is known for the image or synset {error} of {images}") from error
    return RawPart(labels=np.array(labels, dtype=np.int64), images=ImageFiles(images, files))


def _devkit_rows(folder: Path) -> Any:
    return np.atleast_1d(read_mat(folder / _DEVKIT / "meta.mat")["synsets"])


def _words(folder: Path, synsets: tuple[str, ...]) -> tuple[str, ...]:
    """Return readable names where a list of them is there, else the synsets.

    ``class_names.txt`` comes first: one name per class in the order of the synsets, or ``synset name`` on each line.
    """
    words: dict[str, str] = {}
    if (folder / "class_names.txt").is_file():
        lines = read_lines(folder / "class_names.txt")
        named = [line.partition(" ") for line in lines]
        if all(synset in synsets and name for synset, _, name in named):
            words = {synset: name for synset, _, name in named}
        elif len(lines) == len(synsets):
            words = dict(zip(synsets, lines, strict=True))
        else:
            raise DataError(
                f"{folder}/class_names.txt must name {len(synsets)} classes, one on each line, got {len(lines)} lines"
            )
    elif (folder / "LOC_synset_mapping.txt").is_file():
        pairs = [line.split(" ", 1) for line in read_lines(folder / "LOC_synset_mapping.txt")]
        words = {synset: text.split(",")[0] for synset, text in pairs}
    elif (folder / _DEVKIT / "meta.mat").is_file():
        words = {str(row.WNID): str(row.words).split(",")[0] for row in _devkit_rows(folder)}
    return tuple(words.get(synset, synset) for synset in synsets)


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
