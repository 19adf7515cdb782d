"""ImageNet (ILSVRC 2012) in the layouts in which it is distributed.

``train/<synset>/*`` always; the validation images, on which ImageNet is judged, either sorted into
``val/<synset>/`` or flat in ``val/`` with their classes in ``LOC_val_solution.csv`` or in the development
kit. ``ILSVRC/Data/CLS-LOC`` is found by itself. Classes are the synsets, sorted.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from classmargin.data.errors import DataError
from classmargin.data.formats.image_folder import class_folder_names, read_class_folders
from classmargin.data.formats.side_files import read_lines, read_mat
from classmargin.data.image_source import ImageFiles
from classmargin.data.raw import RawData, RawPart

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
    with open(path, newline="", encoding="utf-8") as file:
        return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}


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
    """Return readable names where a list of them is there, else the synsets."""
    words: dict[str, str] = {}
    if (folder / "LOC_synset_mapping.txt").is_file():
        pairs = (line.split(" ", 1) for line in read_lines(folder / "LOC_synset_mapping.txt"))
        words = {synset: text.split(",")[0] for synset, text in pairs}
    elif (folder / _DEVKIT / "meta.mat").is_file():
        rows = np.atleast_1d(read_mat(folder / _DEVKIT / "meta.mat")["synsets"])
        words = {str(row.WNID): str(row.words).split(",")[0] for row in rows}
    return tuple(words.get(synset, synset) for synset in synsets)
