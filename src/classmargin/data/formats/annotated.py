"""Five fine-grained sets in the layouts in which they are distributed: images in one place, lists in another.

stanford-cars   cars_train/ cars_test/ devkit/cars_*.mat  (or car_ims/ cars_annos.mat)
oxford-pets     images/ annotations/trainval.txt test.txt
flowers-102     jpg/ imagelabels.mat setid.mat
food-101        images/<class>/ meta/train.txt test.txt classes.txt
fgvc-aircraft   data/images/ data/images_variant_{train,val,test}.txt data/variants.txt
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin.data.errors import DataError
from classmargin.data.formats.side_files import read_lines, read_mat
from classmargin.data.image_source import ImageFiles
from classmargin.data.raw import RawData, RawPart


def read_oxford_pets(folder: Path) -> RawData:
    """Read Oxford-IIIT Pets; lines of the lists are ``image class species breed`` with classes from 1."""
    names: dict[int, str] = {}

    def part(list_name: str) -> RawPart:
        rows = [
            line.split()
            for line in read_lines(folder / "annotations" / list_name)
            if not line.startswith("#")
        ]
        for image, number, *_rest in rows:
            names[int(number) - 1] = image.rsplit("_", 1)[0].replace("_", " ")
        return _part(folder / "images", [f"{row[0]}.jpg" for row in rows], [int(row[1]) - 1 for row in rows])

    train, test = part("trainval.txt"), part("test.txt")
    highest = max(names)
    if highest >= len(train.labels):  # before a name is made for each: a broken number would take all memory
        raise DataError(
            f"annotations/trainval.txt names class {highest + 1} among {len(train.labels)} images"
        )
    return RawData(train, test=test, class_names=tuple(names.get(k, str(k)) for k in range(highest + 1)))


def read_food101(folder: Path) -> RawData:
    """Read Food-101; lines of the lists are ``class/number``."""
    classes = read_lines(folder / "meta" / "classes.txt")
    label = {name: number for number, name in enumerate(classes)}

    def part(list_name: str) -> RawPart:
        entries = read_lines(folder / "meta" / list_name)
        labels = [_lookup(label, entry.split("/")[0], list_name) for entry in entries]
        return _part(folder / "images", [f"{entry}.jpg" for entry in entries], labels)

    names = tuple(name.replace("_", " ") for name in classes)
    return RawData(part("train.txt"), test=part("test.txt"), class_names=names)


def read_fgvc_aircraft(folder: Path) -> RawData:
    """Read FGVC-Aircraft with the 100 variants as classes; lines of the lists are ``image variant``."""
    data = folder / "data" if (folder / "data").is_dir() else folder
    classes = read_lines(data / "variants.txt")
    label = {name: number for number, name in enumerate(classes)}

    def part(list_name: str) -> RawPart:
        rows = [line.split(" ", 1) for line in read_lines(data / list_name)]
        labels = [_lookup(label, variant, list_name) for _image, variant in rows]
        return _part(data / "images", [f"{image}.jpg" for image, _variant in rows], labels)

    train, validation, test = (part(f"images_variant_{name}.txt") for name in ("train", "val", "test"))
    return RawData(train, validation, test, class_names=tuple(classes))


def read_flowers102(folder: Path) -> RawData:
    """Read Flowers-102; the distributed files name no classes, ``class_names.txt`` may (one a line)."""
    labels = read_mat(folder / "imagelabels.mat")["labels"].ravel().astype(np.int64) - 1
    sets = read_mat(folder / "setid.mat")

    def part(key: str) -> RawPart:
        numbers = sets[key].ravel().astype(np.int64)
        return _part(folder / "jpg", [f"image_{number:05d}.jpg" for number in numbers], labels[numbers - 1])

    if labels.max() >= len(labels):  # before a name is made for each: a broken number would take all memory
        raise DataError(f"imagelabels.mat names class {labels.max() + 1} among {len(labels)} images")
    names_file = folder / "class_names.txt"
    names = (
        tuple(read_lines(names_file))
        if names_file.is_file()
        else tuple(f"flower {k + 1}" for k in range(labels.max() + 1))
    )
    return RawData(part("trnid"), part("valid"), part("tstid"), class_names=names)


def read_stanford_cars(folder: Path) -> RawData:
    """Read Stanford Cars, as two image folders with a devkit or one ``car_ims`` with ``cars_annos.mat``."""
    if (folder / "cars_annos.mat").is_file():
        return _read_cars_in_one_folder(folder)
    devkit = folder / "devkit"
    names = read_mat(devkit / "cars_meta.mat")["class_names"]

    def part(images: str, *places: Path) -> RawPart:
        file = next((place for place in places if place.is_file()), places[0])
        return _cars_part(folder / images, np.atleast_1d(read_mat(file)["annotations"]), "fname")

    with_labels = "cars_test_annos_withlabels.mat"
    return RawData(
        part("cars_train", devkit / "cars_train_annos.mat"),
        test=part("cars_test", devkit / with_labels, folder / with_labels),
        class_names=tuple(str(name) for name in np.atleast_1d(names)),
    )


def _read_cars_in_one_folder(folder: Path) -> RawData:
    content = read_mat(folder / "cars_annos.mat")
    rows = np.atleast_1d(content["annotations"])
    is_test = np.array([bool(row.test) for row in rows])
    return RawData(
        _cars_part(folder, rows[~is_test], "relative_im_path"),
        test=_cars_part(folder, rows[is_test], "relative_im_path"),
        class_names=tuple(str(name) for name in np.atleast_1d(content["class_names"])),
    )


def _cars_part(folder: Path, rows: Any, field: str) -> RawPart:
    if len(rows) and not hasattr(rows[0], "class"):
        raise DataError(
            f"the annotations of {folder.name} have no classes; cars_test_annos_withlabels.mat is needed"
        )
    return _part(
        folder, [str(getattr(row, field)) for row in rows], [int(getattr(row, "class")) - 1 for row in rows]
    )


def _part(folder: Path, names: Sequence[str], labels: Any) -> RawPart:
    outside = [name for name in names if name.startswith("/") or ".." in name.split("/")]
    if outside:
        raise DataError(
            f"a list of {folder.name} names the image {outside[0]!r}, which is not below {folder}"
        )
    return RawPart(labels=np.asarray(labels, dtype=np.int64), images=ImageFiles(folder, names))


def _lookup(label: dict[str, int], name: str, list_name: str) -> int:
    if name not in label:
        raise DataError(f"{list_name} names the class {name!r}, which the list of classes does not have")
    return label[name]
