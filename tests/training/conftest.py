"""The smallest things the loop can work on: data with known classes, a two-layer network, simple methods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from classmargin._distributed import rank, world_size
from classmargin._types import Batch
from classmargin.backbones.contract import Backbone
from classmargin.methods.base import Method, MethodLoss, TaskInfo
from classmargin.training.config_reader import build
from classmargin.training.devices import start
from classmargin.training.loop import Ingredients, Loop
from classmargin.training.recorder import Recorder
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import Watchers

CLASSES, SIZE = 4, 6


def toy_data(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % CLASSES
    centres = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(99)) * 2
    return centres[labels] + torch.randn(samples, SIZE, generator=generator), labels


class ToyLoader:
    """A loader whose every batch is a function of (epoch, step), as the contract asks."""

    def __init__(self, inputs: Tensor, labels: Tensor, batch_size: int, *, shuffle: bool, views: int = 1) -> None:
        self.inputs, self.labels, self.batch_size, self.shuffle, self.views = (
            inputs,
            labels,
            batch_size,
            shuffle,
            views,
        )

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def epoch(self, epoch: int, start_step: int = 0, **wishes: object) -> Iterator[Batch]:
        order = torch.arange(len(self.labels))
        if self.shuffle:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1000 + epoch))
        for step in range(start_step, len(self)):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            rows = rows.tensor_split(world_size())[rank()].repeat(self.views)
            yield Batch(self.inputs[rows], self.labels[rows], rows, self.views)


class ToyLoaders:
    def __init__(self, batch_size: int, validation: int = 20) -> None:
        self.batch_size = batch_size
        self.train = toy_data(50, 0)
        self.validation = toy_data(validation, 1) if validation else None
        self.asked: list[dict[str, object]] = []

    def training(self, **wishes: object) -> ToyLoader:
        self.asked.append(wishes)
        return ToyLoader(*self.train, self.batch_size, shuffle=True, views=wishes["views"] or 1)

    def evaluation(self, split: str) -> ToyLoader | None:
        data = {"train": self.train, "validation": self.validation, "test": self.validation}[split]
        return None if data is None else ToyLoader(*data, 16, shuffle=False)


class ToyNetwork(Backbone):
    """One hidden layer with dropout (draws random numbers) and batch norm (has running statistics)."""

    def __init__(self, dropout: float = 0.2) -> None:
        encoder = nn.Sequential(nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout))
        super().__init__(encoder, feature_dim=8, num_classes=CLASSES)


class CountingMethod(Method):
    """Cross-entropy with own state: a count of updates and a learnable temperature."""

    def __init__(self, task: TaskInfo) -> None:
        super().__init__(task)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.ones(()))
        self.calls: list[str] = []

    def loss(self, step, update_state: bool) -> MethodLoss:
        if update_state:
            self.updates += 1
        total = nn.functional.cross_entropy(step.logits * self.scale, step.labels)
        return MethodLoss(total, {"cross_entropy": total.detach(), "scale": self.scale.detach()})

    def parameter_groups(self) -> list[dict[str, object]]:
        return [{"params": [self.scale], "lr_scale": 0.5, "weight_decay": 0.0}]


def toy_task() -> TaskInfo:
    _, labels = toy_data(50, 0)
    return TaskInfo(CLASSES, 8, torch.bincount(labels), labels)


class Toy:
    """Builds and runs loops on the toy parts."""

    CLASSES = CLASSES
    Network, Counting, Loaders, task = ToyNetwork, CountingMethod, ToyLoaders, staticmethod(toy_task)

    def __init__(self, folder) -> None:
        self.folder = folder

    def config(self, **tables):
        loop = {"epochs": 3, "batch_size": 16, "seed": 5, **tables.pop("loop", {})}
        machine = {
            "threads": 1,
            "accelerator": "cpu",
            "memory_format": "contiguous",
            **tables.pop("machine", {}),
        }
        return build({"loop": loop, "machine": machine, **tables})

    def loop(self, name="run", method=None, loaders=None, network=None, **tables) -> Loop:
        config = self.config(**tables)
        fabric = start(config)
        torch.manual_seed(config.loop.seed)
        network = network or ToyNetwork()
        method = method or CountingMethod(toy_task())
        run = RunFolder(self.folder / name)
        run.path.mkdir(parents=True, exist_ok=True)
        names = tuple(f"class {number}" for number in range(CLASSES))
        recorder = Recorder(run, config, names)
        loaders = loaders or ToyLoaders(config.loop.batch_size)
        return Loop(config, Ingredients(network, method, ToyNetwork, loaders, names), fabric, recorder, Watchers())

    @staticmethod
    def run_until(loop: Loop, step: int | None) -> None:
        """Run, and break off after a step as if killed; None runs to the end."""
        train_step = loop._train_step

        def step_then_cut(batch):
            train_step(batch)
            if loop.position.global_step == step:
                raise InterruptedError

        loop._train_step = step_then_cut
        if step is None:
            loop.run()
        else:
            with pytest.raises(InterruptedError):
                loop.run()


@pytest.fixture
def toy(tmp_path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
