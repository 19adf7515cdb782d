"""How many images a second the input pipeline alone hands out, on one thread.

CIFAR-sized images (32 x 32 x 3 bytes) in memory, batches of 128, pad-4 random crop, mirroring and
normalisation, by the loader that training uses, against what most training scripts do: ``DataLoader`` over a
``Dataset`` that augments one sample at a time (with tensors, and with Pillow images). Loaders take turns, so
that a busy machine disturbs all alike; rates are medians over the turns::

    ratio = median rate of ours / median rate of the other

Rates count the CPU time of this process; without workers that is all the work there is. The target is 40 000
images a second.

A second part reads a folder of JPEG files (500 x 375, random resized crop to 224, mirrored) with one process, against
a ``Dataset`` that does the same with Pillow and tensors, image by image; and measures what the main process of a training
does per batch of 128 x 3 x 224 x 224 that workers have decoded::

    before   bytes to floats, normalise, rearrange to channels-last        (float32 then goes to the device)
    host     rearrange while bytes become floats, normalise                (the CPU is the device)
    device   copy the bytes                                                (an accelerator does the rest)

    python -m benchmarks.input_pipeline [memory folder]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from classmargin._types import Batch
from classmargin.data import DataBundle, load_data, make_loader, synthetic_images
from classmargin.data.pixels import draw_crop_box, normalise

TARGET = 40_000
BATCH, PER_CLASS, CLASSES, SIDE = 128, 512, 10, 32


class TensorSamples(Dataset[tuple[Tensor, Tensor]]):
    """One sample at a time, augmented with tensor operations."""

    def __init__(self, bundle: DataBundle) -> None:
        assert bundle.train.inputs is not None
        self.images, self.labels = bundle.train.inputs, bundle.train.labels
        self.mean = torch.tensor(bundle.mean).view(-1, 1, 1)
        self.std = torch.tensor(bundle.std).view(-1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        padded = functional.pad(self.images[row], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = padded[:, top : top + SIDE, left : left + SIDE]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return (image.float() / 255 - self.mean) / self.std, self.labels[row]


class PillowSamples(TensorSamples):
    """One sample at a time through Pillow, as image transforms usually are."""

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.images[row].permute(1, 2, 0).numpy())
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image.crop((left - 4, top - 4, left - 4 + SIDE, top - 4 + SIDE))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(SIDE, SIDE, 3).permute(2, 0, 1)
        return (pixels.float() / 255 - self.mean) / self.std, self.labels[row]


def rate(batches: Callable[[], Iterator[Any]], steps: int) -> tuple[float, float]:
    """Return images per CPU second and per second on the wall over ``steps`` batches."""
    iterator = batches()
    next(iterator)  # the order of the epoch is drawn with the first batch, for both kinds of loader
    begin, begin_wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        next(iterator)
    images = BATCH * steps
    return images / (time.process_time() - begin), images / (time.perf_counter() - begin_wall)


def run() -> dict[str, Any]:
    """Measure images in memory, and those of a folder."""
    return {**run_memory(), "folder": run_folder()}


def run_memory(rounds: int = 7, steps: int = 38) -> dict[str, Any]:
    """Measure all pipelines of images in memory in turns.

    Args:
        rounds: Turns of each pipeline; one more is a warm-up.
        steps: Batches of a turn.

    Returns:
        ``images_per_second`` (name to median, CPU time) and ``images_per_wall_second``, ``ratio_to_tensors``,
        ``ratio_to_pillow`` (ours over the other), the ``target`` and whether it is ``met``.
    """
    torch.set_num_threads(1)
    bundle = synthetic_images(num_classes=CLASSES, side=SIDE, channels=3, samples_per_class=PER_CLASS).bundle
    pipelines = _pipelines(bundle, steps)
    cpu: dict[str, list[float]] = {name: [] for name in pipelines}
    wall: dict[str, list[float]] = {name: [] for name in pipelines}
    for turn in range(rounds + 1):
        for name, (batches, count) in pipelines.items():
            per_cpu_second, per_second = rate(batches, count)
            if turn > 0:
                cpu[name].append(per_cpu_second)
                wall[name].append(per_second)
    medians = {name: statistics.median(values) for name, values in cpu.items()}
    return {
        "batch_size": BATCH,
        "rounds": rounds,
        "images_per_second": medians,
        "images_per_wall_second": {name: statistics.median(values) for name, values in wall.items()},
        "ratio_to_tensors": medians["standard"] / medians["tensors one by one"],
        "ratio_to_pillow": medians["standard"] / medians["pillow one by one"],
        "target": TARGET,
        "met": medians["standard"] >= TARGET,
    }


def _pipelines(bundle: DataBundle, steps: int) -> dict[str, tuple[Callable[[], Iterator[Any]], int]]:
    """Return each pipeline with the number of batches of its turn: fewer for the slow ones."""
    result: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {}
    for name, share in (("standard", 1), ("randaugment", 4), ("autoaugment", 4)):
        loader = make_loader(bundle, "train", batch_size=BATCH, training=True, augmentation=name)
        result[name] = (partial(loader.epoch, 0), max(steps // share, 1))
    for name, samples in (("tensors one by one", TensorSamples), ("pillow one by one", PillowSamples)):
        result[name] = (DataLoader(samples(bundle), BATCH, shuffle=True).__iter__, max(steps // 8, 1))
    return result


class FolderSamples(Dataset[tuple[Tensor, int]]):
    """One JPEG file at a time: random resized crop, mirror, tensor, normalise."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.mean, self.std = torch.full((3, 1, 1), 0.45), torch.full((3, 1, 1), 0.25)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = Image.open(self.files[row]).convert("RGB")
        box = draw_crop_box(np.random.default_rng(row), image.width, image.height)
        left, top, right, bottom = box
        image = image.crop((left, top, right, bottom)).resize((224, 224), Image.Resampling.BILINEAR)
        if row % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(224, 224, 3).permute(2, 0, 1)
        return (pixels.float() / 255 - self.mean) / self.std, 0


def write_photos(folder: Path, count: int = 256) -> None:
    """Write JPEG files of the size of ImageNet's, with structure on several scales, in two class folders."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class{number % 2}" / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        layers = [rng.integers(0, 256, (375 // scale, 500 // scale, 3), dtype=np.uint8) for scale in (4, 25)]
        pictures = [Image.fromarray(layer).resize((500, 375), Image.Resampling.BICUBIC) for layer in layers]
        Image.blend(*pictures, 0.6).save(place, quality=90)


def run_folder(rounds: int = 3) -> dict[str, Any]:
    """Measure the folder pipeline with one process, and the main process's work per decoded batch.

    Args:
        rounds: Turns of each pipeline; one more is a warm-up.

    Returns:
        ``images_per_second`` (CPU time), their ``ratio``, and ``main_process_ms`` per batch of 128.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        write_photos(Path(place))
        bundle = load_data(place, image_size=224)
        ours = make_loader(bundle, "train", batch_size=32, training=True, augmentation="standard")
        files = sorted(Path(place).rglob("*.jpg"))
        plain = DataLoader(FolderSamples(files), 32, shuffle=True)
        rates: dict[str, list[float]] = {"ours": [], "image by image": []}
        for turn in range(rounds + 1):
            for name, batches in (("ours", partial(ours.epoch, turn)), ("image by image", plain.__iter__)):
                iterator, begin, images = batches(), time.process_time(), 0
                for _ in range(4):
                    batch = next(iterator)
                    images += len(batch.labels if isinstance(batch, Batch) else batch[0])
                if turn:
                    rates[name].append(images / (time.process_time() - begin))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "images_per_second": medians,
        "ratio": medians["ours"] / medians["image by image"],
        "main_process_ms": _main_process(),
    }


def _main_process(rounds: int = 5) -> dict[str, float]:
    pixels = torch.randint(0, 256, (128, 3, 224, 224), dtype=torch.uint8)
    mean, std = (0.45,) * 3, (0.25,) * 3
    ways: dict[str, Callable[[], Tensor]] = {
        "before": lambda: normalise(pixels, mean, std).contiguous(memory_format=torch.channels_last),
        "host": lambda: normalise(pixels, mean, std, memory_format=torch.channels_last),
        "device": pixels.clone,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            begin = time.process_time()
            way()
            if turn:
                seconds[name].append(time.process_time() - begin)
    return {name: round(1000 * statistics.median(values), 1) for name, values in seconds.items()}


def main(parts: list[str]) -> None:
    if "folder" in parts:
        folder = run_folder()
        for name, value in folder["images_per_second"].items():
            print(f"JPEG folder, {name:16} {value:8.0f} images per CPU second")
        print(f"ours / image by image {folder['ratio']:.2f}x")
        for name, value in folder["main_process_ms"].items():
            print(f"main process per batch of 128 x 3 x 224 x 224, {name:7} {value:8.1f} ms CPU")
    if "memory" not in parts:
        return
    result = run_memory()
    for name, value in result["images_per_second"].items():
        wall = result["images_per_wall_second"][name]
        print(f"{name:20} {value:10.0f} images per CPU second {wall:10.0f} images per second")
    print(f"ours / tensors one by one {result['ratio_to_tensors']:.1f}x")
    print(f"ours / pillow one by one  {result['ratio_to_pillow']:.1f}x")
    print(f"target {TARGET} images/s: {'met' if result['met'] else 'MISSED'}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["memory", "folder"])
