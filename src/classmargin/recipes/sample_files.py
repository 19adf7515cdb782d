"""A few made-up files in the formats of the data sets and of published weights, for the scale ``smoke``.

The readers, converters and networks that work on them are the real ones; only the pixels and weights are
made up. Each class has a colour of its own, so that there is something to learn.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from classmargin.training.run_folder import write_text

if TYPE_CHECKING:
    from classmargin.recipes.recipe_plan import RecipePlan

CLASSES = 6
TRAIN, TEST = 8, 5
SAMPLE_FOLDER = "sample-data"
Pixels = npt.NDArray[np.uint8]


def sample_root(folder: Path) -> Path:
    """Return where the sample files of an output folder lie."""
    return folder / SAMPLE_FOLDER


def sample_weights(folder: Path, backbone: str) -> Path:
    """Return where the made-up weights of a network lie."""
    return sample_root(folder) / "weights" / f"{backbone}.pth"


def write_sample_files(plan: RecipePlan) -> None:
    """Write what the runs of a plan need and what is not there yet, if its scale trains on made-up files."""
    if not plan.recipe.scales[plan.scale].sample_files:
        return
    root = sample_root(plan.folder)
    for run in plan.runs:
        name, backbone = run.config.data.name, run.config.backbone
        mark = root / f".{name}-is-complete"
        if name in WRITERS and not mark.exists():
            WRITERS[name](root)
            write_text(mark, "made-up files, see classmargin.recipes.sample_files\n")
        weights = sample_weights(plan.folder, backbone.name)
        if backbone.checkpoint == str(weights) and not weights.exists():
            write_weights(weights, backbone.name, run.config.data.image_size, backbone.options)


def pictures(label: int, count: int, size: int, seed: int, *, channels: int = 3) -> Pixels:
    """Return noisy images ``[count, size, size, channels]`` of a class: a bright band in a colour of its own."""
    rng = np.random.default_rng([label, seed])
    images = rng.integers(0, 120, (count, size, size, channels))
    top = label * size // CLASSES
    images[:, top : top + size // CLASSES + 1, :, label % channels] += 130
    return images.astype(np.uint8)


def _arrays(name: str, class_names: tuple[str, ...]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        arrays: dict[str, Any] = {"class_names": np.array(class_names)}
        for seed, (part, count) in enumerate((("train", TRAIN), ("test", TEST))):
            arrays[f"x_{part}"] = np.concatenate([pictures(k, count, 32, seed) for k in range(CLASSES)])
            arrays[f"y_{part}"] = np.repeat(np.arange(CLASSES), count)
        root.mkdir(parents=True, exist_ok=True)
        np.savez(root / f"{name}.npz", **arrays)

    return write


def _mnist(root: Path) -> None:
    folder = root / "mnist"
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate((("train", TRAIN), ("t10k", TEST))):
        images = np.concatenate([pictures(k, count, 28, seed, channels=1)[..., 0] for k in range(CLASSES)])
        labels = np.repeat(np.arange(CLASSES), count).astype(np.uint8)
        for kind, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{kind}").write_bytes(header + array.tobytes())


def _save(path: Path, label: int, number: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pictures(label, 1, 40, 100 + number)[0]).save(path)


def _imagenet(root: Path) -> None:
    for label in range(CLASSES):
        synset = f"n{1440764 + label:08d}"
        for number in range(TRAIN):
            _save(root / "imagenet" / "train" / synset / f"{synset}_{number}.JPEG", label, number)
        for number in range(TEST):
            name = f"ILSVRC2012_val_{label:04d}{number:04d}.JPEG"
            _save(root / "imagenet" / "val" / synset / name, label, number + TRAIN)


def _listed(lists: Path, images: Path, names: Sequence[str], line: str, image: str, parts: Mapping[str, range]) -> None:
    """Write the images of all classes, and a file for each part that lists its samples."""
    for part, numbers in parts.items():
        lines = [
            line.format(name=name, label=label, label1=label + 1, k=k)
            for label, name in enumerate(names)
            for k in numbers
        ]
        write_text(lists / part, "\n".join(lines) + "\n")
    for label, name in enumerate(names):
        for k in range(TRAIN + TEST):
            _save(images / image.format(name=name, label=label, k=k), label, k)


TRAINING, VALIDATION = range(TRAIN - 3), range(TRAIN - 3, TRAIN)
TRAINVAL, TESTING = range(TRAIN), range(TRAIN, TRAIN + TEST)


def _pets(root: Path) -> None:
    folder = root / "oxford-pets"
    breeds = ["Abyssinian", "american_bulldog", "Bengal", "Birman", "boxer", "pug"]
    parts = {"trainval.txt": TRAINVAL, "test.txt": TESTING}
    line = "{name}_{k} {label1} 1 1"  # numbered from 1
    _listed(folder / "annotations", folder / "images", breeds, line, "{name}_{k}.jpg", parts)


def _food(root: Path) -> None:
    folder = root / "food-101"
    names = ["apple_pie", "baby_back_ribs", "baklava", "beignets", "bibimbap", "waffles"]
    parts = {"train.txt": TRAINVAL, "test.txt": TESTING}
    _listed(folder / "meta", folder / "images", names, "{name}/100{k:02d}", "{name}/100{k:02d}.jpg", parts)
    write_text(folder / "meta" / "classes.txt", "\n".join(names) + "\n")


def _aircraft(root: Path) -> None:
    data = root / "fgvc-aircraft" / "data"
    variants = ["707-320", "727-200", "A300B4", "Boeing 717", "Cessna 172", "F/A-18"]
    parts = {"train": TRAINING, "val": VALIDATION, "test": TESTING}
    files = {f"images_variant_{part}.txt": numbers for part, numbers in parts.items()}
    _listed(data, data / "images", variants, "{label}{k:06d} {name}", "{label}{k:06d}.jpg", files)
    write_text(data / "variants.txt", "\n".join(variants) + "\n")


def _flowers(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "flowers-102"
    total = CLASSES * (TRAIN + TEST)
    for number in range(total):
        _save(folder / "jpg" / f"image_{number + 1:05d}.jpg", number % CLASSES, number)
    savemat(folder / "imagelabels.mat", {"labels": (np.arange(total)[None] % CLASSES + 1).astype(np.uint8)})
    ends = np.cumsum([CLASSES * (TRAIN - 3), CLASSES * 3])
    numbers = np.split(np.arange(1, total + 1, dtype=np.uint16), ends)
    sets = {key: part[None] for key, part in zip(("trnid", "valid", "tstid"), numbers, strict=True)}
    savemat(folder / "setid.mat", sets)


def _cars(root: Path) -> None:
    from scipy.io import savemat

    folder = root / "stanford-cars"
    names = ["AM General Hummer", "Acura RL", "Acura TL", "BMW M3", "Fiat 500", "Volvo 240"]
    (folder / "devkit").mkdir(parents=True, exist_ok=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array([names], dtype=object)})
    parts = (
        ("train", TRAIN, 0, folder / "devkit" / "cars_train_annos.mat"),
        ("test", TEST, 500, folder / "cars_test_annos_withlabels.mat"),
    )
    for part, count, first, place in parts:
        rows = np.zeros((1, CLASSES * count), dtype=[("fname", object), ("class", object)])
        for number in range(CLASSES * count):
            name, label = f"{number + 1:05d}.jpg", number % CLASSES
            rows[0, number] = (name, label + 1)
            _save(folder / f"cars_{part}" / name, label, number + first)
        savemat(place, {"annotations": rows})


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog")
WRITERS: Mapping[str, Callable[[Path], None]] = {
    "cifar10": _arrays("cifar10", CIFAR10),
    "cifar100": _arrays("cifar100", ("apple", "beaver", "boy", "girl", "otter", "wardrobe")),
    "mnist": _mnist,
    "imagenet": _imagenet,
    "oxford-pets": _pets,
    "food-101": _food,
    "fgvc-aircraft": _aircraft,
    "flowers-102": _flowers,
    "stanford-cars": _cars,
}

# How the published files name what the networks of this package hold.
PUBLISHED: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "clip-resnet50": lambda state: {f"visual.{key}": value for key, value in state.items()},
    "clip-vit-b32": lambda state: {key.removeprefix("model."): value for key, value in state.items()},
    "mae-vit-b16": lambda state: {"model": state},
    "moco-resnet50": lambda state: {"state_dict": {f"module.encoder_q.{k}": v for k, v in state.items()}},
}


def write_weights(path: Path, backbone: str, image_size: int | None, options: Mapping[str, Any]) -> None:
    """Write random weights of a network in the format in which trained ones are published."""
    import torch

    from classmargin._atomic import atomic_path
    from classmargin.backbones import create_backbone

    torch.manual_seed(0)
    network = create_backbone(backbone, num_classes=2, input_size=image_size, **options)
    state = {key: value.clone() for key, value in network.encoder.state_dict().items()}
    with atomic_path(path) as temporary:
        torch.save(PUBLISHED[backbone](state), temporary)
