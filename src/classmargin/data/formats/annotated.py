"""ImageNet and five fine-grained sets as they are distributed: images in one place, lists in another.

imagenet        train/<synset>/; val/<synset>/, or val/ with LOC_val_solution.csv or the devkit
stanford-cars   cars_train/ cars_test/ devkit/cars_*.mat  (or car_ims/ cars_annos.mat)
oxford-pets     images/ annotations/trainval.txt test.txt
flowers-102     jpg/ imagelabels.mat setid.mat
food-101        images/<class>/ meta/train.txt test.txt classes.txt
fgvc-aircraft   data/images/ data/images_variant_{train,val,test}.txt data/variants.txt
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._files import LONG_FILE, SMALL_FILE, UnfitFileError, open_regular, read_text
from classmargin.data.formats.image_folder import class_folder_names, read_class_folders
from classmargin.data.images import ImageFiles
from classmargin.data.raw import DataError, RawData, RawPart


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
    """Read Flowers-102; the distributed files name no classes, ``class_names.txt`` may (one per line)."""
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


_DEVKIT = Path("ILSVRC2012_devkit_t12") / "data"


def read_imagenet(folder: Path) -> RawData:
    """Read ImageNet; the official validation part becomes the test part, since no test labels are public."""
    images = next(
        (place for place in (folder, folder / "ILSVRC/Data/CLS-LOC") if (place / "train").is_dir()), None
    )
    if images is None:
        raise DataError(f"{folder} must hold train/<synset>/*.JPEG (or ILSVRC/Data/CLS-LOC/train)")
    synsets = class_folder_names(images / "train")
    if any(child.is_dir() and not child.name.startswith(".") for child in (images / "val").glob("*")):
        test = read_class_folders(images / "val", synsets)
    else:
        test = _read_flat(folder, images / "val", synsets)
    return RawData(
        read_class_folders(images / "train", synsets), test=test, class_names=_words(folder, synsets)
    )


def _read_flat(folder: Path, images: Path, synsets: tuple[str, ...]) -> RawPart:
    files = sorted(
        path.name
        for path in images.glob("*")
        if path.suffix.lower() in (".jpeg", ".jpg") and not path.name.startswith(".")
    )
    if not files:
        raise DataError(f"{images} must hold the validation images, on which ImageNet is judged; it has none")
    if (folder / "LOC_val_solution.csv").is_file():
        of_image = _solution_csv(folder / "LOC_val_solution.csv")
    elif (folder / _DEVKIT / "meta.mat").is_file():
        of_image = _devkit_truth(folder / _DEVKIT, files)
    else:
        raise DataError(
            f"{images} is not sorted into class folders; put LOC_val_solution.csv or "
            "ILSVRC2012_devkit_t12/ beside it"
        )
    number = {synset: label for label, synset in enumerate(synsets)}
    try:
        labels = [number[of_image[Path(file).stem]] for file in files]
    except KeyError as error:
        raise DataError(f"no class is known for the image or synset {error} of {images}") from error
    return RawPart(labels=np.array(labels, dtype=np.int64), images=ImageFiles(images, files))


def _solution_csv(path: Path) -> dict[str, str]:
    rows = csv.DictReader(read_text(path).splitlines())
    return {row["ImageId"]: row["PredictionString"].split()[0] for row in rows}


def _devkit_truth(devkit: Path, files: list[str]) -> dict[str, str]:
    rows = np.atleast_1d(read_mat(devkit / "meta.mat")["synsets"])
    synset_of = {int(row.ILSVRC2012_ID): str(row.WNID) for row in rows}
    truth = [int(line) for line in read_lines(devkit / "ILSVRC2012_validation_ground_truth.txt")]
    if len(truth) != len(files):
        raise DataError(
            f"the development kit knows {len(truth)} validation images, the folder holds {len(files)}"
        )
    return {Path(file).stem: synset_of[number] for file, number in zip(files, truth, strict=True)}


def _words(folder: Path, synsets: tuple[str, ...]) -> tuple[str, ...]:
    """Return readable names where a list of them is there, else the synsets.

    ``class_names.txt`` comes first: one name per class in the order of the synsets, or ``synset name`` on each line.
    """
    words: dict[str, str] = {}
    if (folder / "class_names.txt").is_file():
        lines = read_lines(folder / "class_names.txt")
        if all(line.split(" ", 1)[0] in synsets and " " in line for line in lines):
            words = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines}
        elif len(lines) == len(synsets):
            words = dict(zip(synsets, lines, strict=True))
        else:
            raise DataError(
                f"{folder}/class_names.txt must name {len(synsets)} classes, one on each line, got {len(lines)} lines"
            )
    elif (folder / "LOC_synset_mapping.txt").is_file():
        pairs = (line.split(" ", 1) for line in read_lines(folder / "LOC_synset_mapping.txt"))
        words = {synset: text.split(",")[0] for synset, text in pairs}
    elif (folder / _DEVKIT / "meta.mat").is_file():
        rows = np.atleast_1d(read_mat(folder / _DEVKIT / "meta.mat")["synsets"])
        words = {str(row.WNID): str(row.words).split(",")[0] for row in rows}
    return tuple(words.get(synset, synset) for synset in synsets)


def read_lines(path: Path) -> list[str]:
    """Return the lines that are not empty, without the space around them."""
    if not path.is_file():
        raise DataError(f"{path} is missing; the data set is incomplete")
    try:
        text = read_text(path, max_bytes=LONG_FILE)
    except UnfitFileError as error:
        raise DataError(str(error)) from error
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
