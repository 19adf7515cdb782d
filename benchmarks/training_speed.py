"""How fast the loop trains: ResNet-32 epochs against a plain PyTorch loop, MR² against ERM, processes, the probe.

All ratios come from one run in which the candidates take turns; medians over the turns::

    eager      plain loop / ours, same network, batch and threads            (target >= 1.05)
    compiled   plain loop / ours with torch.compile, once warm               (target >= 1.2; needs g++)
    mr2        our epoch with MR² / our epoch with ERM                       (target <= 1.03)
    processes  one process with two threads / two processes with one thread  (target >= 1.1; needs two cores)
    probe      seconds of 100 epochs on 50 000 x 1280 features, 100 classes  (target < 60)

The plain loop is what most training scripts look like: ``DataLoader`` with workers over a ``Dataset`` that augments one
sample at a time, SGD, no further thought about memory layout. Both see synthetic images of CIFAR's size: only
shapes matter for time.

    python -m benchmarks.training_speed [eager mr2 compiled processes probe]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from classmargin.backbones import create_backbone
from classmargin.data import DataBundle, Split, synthetic_images
from classmargin.methods import TaskInfo, create, requirements_of
from classmargin.recipes.run_parts import BundleLoaders, frozen_features
from classmargin.training import devices
from classmargin.training.config_reader import build
from classmargin.training.loop import Ingredients, Loop
from classmargin.training.recorder import Recorder
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import Watchers

BATCH, STEPS, CLASSES, SIDE, ROUNDS = 128, 6, 10, 32, 5
BACKBONE = "resnet32"
PARTS = ("eager", "mr2", "compiled", "processes", "probe")


def images() -> DataBundle:
    # The bundle holds out validation and test samples, so a little more than an epoch needs is drawn.
    per_class = -(-BATCH * STEPS * 3 // (2 * CLASSES))
    return synthetic_images(num_classes=CLASSES, side=SIDE, channels=3, samples_per_class=per_class).bundle


class PlainSamples(Dataset[tuple[Tensor, int]]):
    """One image at a time: pad, crop, mirror, normalise."""

    def __init__(self, bundle: DataBundle) -> None:
        assert bundle.train.inputs is not None
        self.images, self.labels = bundle.train.inputs, bundle.train.labels.tolist()
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (bundle.mean, bundle.std))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        padded = nn.functional.pad(self.images[row], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = padded[:, top : top + SIDE, left : left + SIDE]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return (image.float() / 255 - self.mean) / self.std, self.labels[row]


class PlainLoop:
    """The loop of a plain training script."""

    def __init__(self, bundle: DataBundle, workers: int) -> None:
        torch.manual_seed(0)
        self.network = create_backbone(BACKBONE, num_classes=CLASSES, input_size=(SIDE, SIDE))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.criterion = nn.CrossEntropyLoss()
        # Workers stay alive between epochs, which favours the plain loop.
        self.loader = DataLoader(
            PlainSamples(bundle),
            batch_size=BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def epoch(self) -> int:
        self.network.train()
        steps = 0
        for inputs, labels in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.network(inputs).logits, labels)
            loss.backward()
            self.optimizer.step()
            steps += 1
        return steps


class OurLoop:
    """The package's loop, epoch by epoch."""

    def __init__(self, bundle: DataBundle, folder: Path, tables: dict[str, dict[str, Any]]) -> None:
        defaults: dict[str, dict[str, Any]] = {
            "loop": {"epochs": 1000, "batch_size": BATCH, "evaluate_every": 1000, "checkpoint_seconds": 0.0},
            "machine": {
                "threads": torch.get_num_threads(),
                "accelerator": "cpu",
                "memory_format": "channels_last",
            },
            "optimizer": {"learning_rate": 0.01},
            "backbone": {"name": BACKBONE},
        }
        config = build({part: {**defaults.get(part, {}), **tables.get(part, {})} for part in {**defaults, **tables}})
        fabric = devices.start(config)
        size = bundle.input_shape[1:] if bundle.kind == "images" else bundle.input_shape
        torch.manual_seed(0)
        network = create_backbone(config.backbone.name, num_classes=bundle.num_classes, input_size=size)
        devices.apply_memory_format(network, config.machine.memory_format)
        needs, name = requirements_of(config.method.name), config.method.name
        ranks = (fabric.global_rank, fabric.world_size)
        loaders = BundleLoaders(bundle, needs, config.loop.batch_size, "standard", 0, *ranks)
        steps = len(loaders.training(sampler=None, views=None, multiplicity=None))
        counts, labels = bundle.train.class_counts, bundle.train.labels
        task = TaskInfo(
            bundle.num_classes,
            network.feature_dim,
            counts,
            labels,
            config.loop.epochs,
            steps,
            frozen_features=frozen_features(bundle, network),
        )
        method, names = create(name, task), tuple(bundle.class_names)
        folder.mkdir(parents=True, exist_ok=True)
        ingredients = Ingredients(network, method, lambda: network, loaders, names)
        self.loop = Loop(config, ingredients, fabric, Recorder(RunFolder(folder), config, names), Watchers())
        self.stage = self.loop.stages[0]
        self.begun = False

    def epoch(self) -> int:
        if not self.begun:
            self.loop._enter_stage(self.stage)
            self.begun = True
        before = self.loop.position.global_step
        self.loop._train_epoch()
        at = self.loop.position
        self.loop.position = at._replace(step=0, epoch=at.epoch + 1, stage_epoch=at.stage_epoch + 1)
        return at.global_step - before


def medians(calls: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Seconds per step of each; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            steps = call()
            if number:
                seconds[name].append((time.perf_counter() - begin) / steps)
    return {name: statistics.median(values) for name, values in seconds.items()}


def epochs(parts: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    bundle = images()
    workers = max(1, devices.usable_cores())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plain = PlainLoop(bundle, workers)
        calls = {"plain": plain.epoch, "eager": OurLoop(bundle, place / "erm", {}).epoch}
        if "mr2" in parts:
            calls["mr2"] = OurLoop(bundle, place / "mr2", {"method": {"name": "mr2"}}).epoch
        if "compiled" in parts:
            calls["compiled"] = OurLoop(bundle, place / "compiled", {"loop": {"compile": True}}).epoch
        seconds = medians(calls, ROUNDS)
    result: dict[str, Any] = {"seconds_per_step": seconds, "workers_of_the_plain_loop": workers}
    result["eager"] = _line("eager", seconds["plain"] / seconds["eager"], ">=", 1.05)
    if "mr2" in parts:
        result["mr2"] = _line("mr2 / erm", seconds["mr2"] / seconds["eager"], "<=", 1.03)
    if "compiled" in parts:
        result["compiled"] = _line("compiled", seconds["plain"] / seconds["compiled"], ">=", 1.2)
    return result


def _line(name: str, value: float, sense: str, target: float) -> dict[str, Any]:
    reached = value >= target if sense == ">=" else value <= target
    print(f"{name:12} {value:8.3f}   target {sense} {target:g}   {'yes' if reached else 'NO'}", flush=True)
    return {"value": value, "target": f"{sense} {target:g}", "reached": reached}


def processes() -> dict[str, Any]:
    """One process with two threads against two with one, in turns."""
    if devices.usable_cores() < 2:
        return {"skipped": "needs two cores"}
    seconds: dict[str, list[float]] = {"one process, two threads": [], "two processes, one thread": []}
    for _ in range(3):
        for name, count, threads in (
            ("one process, two threads", 1, 2),
            ("two processes, one thread", 2, 1),
        ):
            seconds[name].append(_child(count, threads))
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = middle["one process, two threads"] / middle["two processes, one thread"]
    return {"seconds_per_step": middle, **_line("processes", ratio, ">=", 1.1)}


def _child(devices: int, threads: int) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.training_speed", "child", str(devices), str(threads)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=root)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds_per_step"])


def child(devices: int, threads: int) -> None:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        ours = OurLoop(images(), Path(folder), {"machine": {"devices": devices, "threads": threads}})
        seconds = medians({"ours": ours.epoch}, 3)["ours"]
    if ours.loop.fabric.global_rank == 0:
        print(json.dumps({"seconds_per_step": seconds}))


def features(samples: int = 50_000, size: int = 1280, classes: int = 100) -> DataBundle:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    centres = torch.randn(classes, size, generator=generator)
    inputs = centres[labels] + 3.0 * torch.randn(samples, size, generator=generator)

    def split(rows: slice) -> Split:
        index = torch.arange(samples)[rows]
        return Split(labels[rows], index, samples, classes, inputs=inputs[rows])

    names = tuple(f"class {number}" for number in range(classes))
    train, rest = split(slice(None)), split(slice(0, 5000))
    return DataBundle("features", "features", names, classes, train, rest, rest, (0.0,), (1.0,), (size,))


def probe() -> dict[str, Any]:
    """A whole run of 100 epochs with the batch of the probe's preset, evaluations and checkpoints included."""
    bundle, seconds = features(), {}
    threads = devices.usable_cores()
    torch.set_num_threads(threads)
    for name in ("erm", "mr2-logit"):
        tables = {
            "loop": {"epochs": 100, "batch_size": 256, "evaluate_every": 10},
            "machine": {"threads": threads, "memory_format": "contiguous"},
            "backbone": {"name": "linear"},
            "method": {"name": name},
        }
        with tempfile.TemporaryDirectory() as folder:
            ours = OurLoop(bundle, Path(folder), tables)
            begin = time.perf_counter()
            ours.loop.run()
            seconds[name] = time.perf_counter() - begin
        _line(f"probe {name}", seconds[name], "<=", 60.0)
    return {"seconds_of_100_epochs": seconds, "reached": max(seconds.values()) < 60}


def run(parts: list[str] | None = None) -> dict[str, Any]:
    """Run the parts asked for (all of them by default) and return their numbers."""
    chosen = list(parts or PARTS)
    result: dict[str, Any] = {"backbone": BACKBONE, "batch": BATCH}
    if {"eager", "mr2", "compiled"} & set(chosen):
        result.update(epochs(chosen))
    if "processes" in chosen:
        result["processes"] = processes()
    if "probe" in chosen:
        result["probe"] = probe()
    return result


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(run(sys.argv[1:]), indent=1))
