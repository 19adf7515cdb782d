"""How many images a second the input pipeline alone hands out, on one thread.

CIFAR-sized images (32 x 32 x 3 bytes) in memory, batches of 128, pad-4 random crop, mirroring and
normalisation, by the loader that training uses, against what most training scripts do: ``DataLoader`` over a
``Dataset`` that augments one sample at a time (with tensors, and with Pillow images). Loaders take turns, so
that a busy machine disturbs all alike; rates are medians over the turns::

    ratio = median rate of ours / median rate of the other

Rates count the CPU time of this process; without workers that is all the work there is. The target is 40 000
images a second.

    python -m benchmarks.input_pipeline
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from classmargin.data import DataBundle, make_loader, synthetic_images

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


def run(rounds: int = 7, steps: int = 38) -> dict[str, Any]:
    """Measure all pipelines in turns.

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


def main() -> None:
    result = run()
    for name, value in result["images_per_second"].items():
        wall = result["images_per_wall_second"][name]
        print(f"{name:20} {value:10.0f} images per CPU second {wall:10.0f} images per second")
    print(f"ours / tensors one by one {result['ratio_to_tensors']:.1f}x")
    print(f"ours / pillow one by one  {result['ratio_to_pillow']:.1f}x")
    print(f"target {TARGET} images/s: {'met' if result['met'] else 'MISSED'}")


if __name__ == "__main__":
    main()
