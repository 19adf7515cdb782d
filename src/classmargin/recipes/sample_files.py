"""A few made-up images for the scale ``smoke``; each class has a colour of its own, so that there is something to learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._atomic import atomic_path

if TYPE_CHECKING:
    from classmargin.recipes.recipe_plan import RecipePlan

CLASSES = 6
SAMPLES = {"train": 8, "test": 5}
SAMPLE_FOLDER = "sample-data"
# The table of per-class accuracies finds its printed values by name.
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog")


def write_sample_files(plan: RecipePlan) -> None:
    """Write what the runs of a plan need and what is not there yet, if its scale trains on made-up files."""
    folder = plan.folder / SAMPLE_FOLDER
    for data in {run.config.data.name: run.config.data for run in plan.runs}.values():
        if data.root == str(folder) and not (folder / data.name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write_images(folder / data.name, *((28, 1) if data.name == "mnist.npz" else (32, 3)))


def _write_images(file: Path, size: int, channels: int) -> None:
    """Write noisy images of each class: a bright band in a colour of its own."""
    names = CIFAR10 if file.stem == "cifar10" else [f"class {label}" for label in range(CLASSES)]
    arrays: dict[str, Any] = {"class_names": np.array(names)}
    for seed, (part, count) in enumerate(SAMPLES.items()):
        rngs = [np.random.default_rng([label, seed]) for label in range(CLASSES)]
        images = np.stack([rng.integers(0, 120, (count, size, size, channels)) for rng in rngs])
        for label in range(CLASSES):
            top = label * size // CLASSES
            images[label, :, top : top + size // CLASSES + 1, :, label % channels] += 130
        arrays[f"x_{part}"] = images.reshape(-1, size, size, channels).astype(np.uint8)
        arrays[f"y_{part}"] = np.repeat(np.arange(CLASSES), count)
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
