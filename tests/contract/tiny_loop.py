"""A complete training loop in a few lines: every hook, stages, several processes, resuming.

It follows the pseudo-code of ``classmargin.methods.base`` and nothing else, so that a method that passes here
depends on the contract only. Batches are a function of (epoch, step).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from classmargin._distributed import is_distributed, rank, world_size
from classmargin._types import ModelOutput
from classmargin.backbones.contract import Backbone
from classmargin.backbones.small_networks import FeatureEncoder
from classmargin.methods import (
    Method,
    MethodLoss,
    Stage,
    Step,
    TaskInfo,
    create,
    list_methods,
    requirements_of,
)

CLASSES, INPUTS, FEATURES, PER_CLASS = 4, 6, 8, 16
NAMES = [info.name for info in list_methods()]
COMBINATIONS = ["sam+mr2", "sam+lff", "sam+center", "sam+group-dro"]
SIZE = CLASSES * PER_CLASS


def tiny_data(seed: int) -> tuple[Tensor, Tensor]:
    """Overlapping Gaussian classes, balanced, in mixed order."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(SIZE) % CLASSES
    noise = torch.randn(SIZE, INPUTS, generator=torch.Generator().manual_seed(seed))
    return centres[labels] * 1.2 + noise, labels


@dataclass
class Position:
    stage: int = 0
    stage_epoch: int = 0
    epoch: int = 0
    step: int = 0
    global_step: int = 0


class TinyRun:
    """One training of one method. Also the ``LoopContext`` its hooks get.

    Args:
        name: Registry name.
        epochs: Epoch budget given to ``stages``.
        plain: No batch norm and no dropout (they differ between one and several processes).
        dtype: Of network, method and data.
        **hyperparameters: Of the method.
    """

    def __init__(
        self,
        name: str,
        *,
        epochs: int = 6,
        batch_size: int = 16,
        plain: bool = False,
        dtype: torch.dtype = torch.float32,
        **hyperparameters: Any,
    ) -> None:
        torch.manual_seed(0)
        self.name, self.batch_size, self.plain, self.dtype = name, batch_size, plain, dtype
        self.needs = requirements_of(name, **hyperparameters)
        inputs, self.labels = tiny_data(0)
        self.inputs = inputs.to(dtype)
        task = TaskInfo(
            CLASSES,
            FEATURES,
            torch.bincount(self.labels),
            self.labels,
            epochs=epochs,
            steps_per_epoch=-(-SIZE // batch_size),
            new_model=self.new_network,
        )
        self.model = self.new_network()
        self.method: Method = create(name, task, **hyperparameters).to(dtype)
        self.stages = self.method.stages(epochs)
        self.epochs = sum(stage.epochs for stage in self.stages)
        self.at = Position()
        self.optimizer = self.new_optimizer()

    # -- what hooks may see

    epoch = property(lambda self: self.at.epoch)
    stage = property(lambda self: self.at.stage)
    global_step = property(lambda self: self.at.global_step)

    def training_pass(self) -> Iterator[Step]:
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for rows in torch.arange(SIZE).split(24):
                rows = rows.tensor_split(world_size())[rank()]
                yield self.forward(self.inputs[rows], rows)
        self.model.train(was_training)

    # -- parts

    def new_network(self) -> Backbone:
        encoder = FeatureEncoder(INPUTS, (FEATURES,), batch_norm=not self.plain, dropout=0.0 if self.plain else 0.1)
        head, options = self.needs.head, self.needs.head_options
        network = Backbone(encoder, feature_dim=FEATURES, num_classes=CLASSES, head=head, head_options=options)
        return network.to(self.dtype)

    def new_optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": list(self.model.parameters())}, *self.method.parameter_groups()]
        for group in groups:
            group["lr_scale"] = group.get("lr_scale", 1.0)
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def forward(self, inputs: Tensor, rows: Tensor, views: int = 1) -> Step:
        output: ModelOutput = self.model(inputs)
        return Step(
            output.logits, output.features, self.labels[rows], rows, inputs, views, self.model,
            self.at.epoch, self.at.global_step, self.at.stage,
        )  # fmt: skip

    def batches(self) -> list[Tensor]:
        """Rows of every batch of the running epoch, for all processes together."""
        generator = torch.Generator().manual_seed(self.at.epoch)
        multiplicity = self.method.sample_multiplicity(self.at.stage)
        rows = torch.arange(SIZE) if multiplicity is None else torch.arange(SIZE).repeat_interleave(multiplicity)
        batches = list(rows[torch.randperm(len(rows), generator=generator)].split(self.batch_size))
        # Repeated samples give any number of rows, and batch norm cannot train on a single one.
        return batches if self.plain or len(batches[-1]) > 1 else batches[:-1]

    def augmented(self, rows: Tensor, views: int) -> Tensor:
        """Inputs view after view; noise belongs to (step, view, sample), not to the process."""
        if views == 1:
            return self.inputs[rows]
        generator = torch.Generator().manual_seed(1000 + self.at.global_step)
        noise = torch.randn(views, SIZE, INPUTS, generator=generator).to(self.dtype)
        return torch.cat([self.inputs[rows] + 0.1 * noise[view, rows] for view in range(views)])

    # -- the loop

    def run(self, until: int | None = None) -> TinyRun:
        """Train to the end, or until so many steps are done (as if killed right after the step)."""
        while self.at.stage < len(self.stages):
            stage = self.stages[self.at.stage]
            if self.at.step == 0:
                self._begin(stage)
            batches = self.batches()
            while self.at.step < len(batches):
                if until is not None and self.at.global_step == until:
                    return self
                self.train_step(batches[self.at.step], stage)
                self.at.step += 1
                self.at.global_step += 1
            self._end(stage)
        return self

    def _begin(self, stage: Stage) -> None:
        if self.at.stage_epoch == 0:
            if stage.fresh_model:
                torch.manual_seed(self.at.stage)
                self.model = self.new_network()
                self.optimizer = self.new_optimizer()
            self.method.on_stage_start(self)
        self.method.on_epoch_start(self)

    def _end(self, stage: Stage) -> None:
        self.method.on_epoch_end(self)
        self.at.epoch, self.at.stage_epoch, self.at.step = self.at.epoch + 1, self.at.stage_epoch + 1, 0
        if self.at.stage_epoch == stage.epochs:
            self.method.on_stage_end(self)
            self.at.stage, self.at.stage_epoch = self.at.stage + 1, 0

    def set_mode(self, stage: Stage) -> None:
        self.method.train()
        self.model.train()
        for parameter in self.model.parameters():
            parameter.requires_grad_(stage.train == "all")
        if stage.train != "all":
            part = self.model.head if stage.train == "head" else self.model.encoder
            for parameter in part.parameters():
                parameter.requires_grad_()
        if stage.train == "head":
            self.model.encoder.eval()
        for group in self.optimizer.param_groups:
            group["lr"] = 0.1 * stage.learning_rate_scale * group["lr_scale"]

    def train_step(self, rows: Tensor, stage: Stage, step: Any = None) -> MethodLoss:
        self.set_mode(stage)
        views = self.needs.views if stage.views is None else stage.views
        own = rows.tensor_split(world_size())[rank()]
        inputs, repeated = self.augmented(own, views), own.repeat(views)
        seen: list[Step] = []

        def closure(update_state: bool) -> MethodLoss:
            self.optimizer.zero_grad()
            batch = self.forward(inputs, repeated, views)
            loss = self.method.loss(batch, update_state)
            loss.total.backward()
            self._average_gradients()
            if update_state:
                seen.append(batch)
            return loss

        result = self.method.optimizer_step(closure, step or self.optimizer.step, self.model)
        with torch.no_grad():
            detached = Step(seen[0].logits.detach(), seen[0].features.detach(), *list(vars(seen[0]).values())[2:])
            self.method.on_step_end(detached)
        return result

    def _average_gradients(self) -> None:
        if not is_distributed():
            return
        for parameter in [*self.model.parameters(), *self.method.parameters()]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size()

    # -- saving and looking

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save({**self.state(), "at": vars(self.at), "random": torch.get_rng_state()}, file)
        return file.getvalue()

    def load(self, saved: bytes) -> TinyRun:
        tree = torch.load(io.BytesIO(saved), weights_only=True)
        self.at = Position(**tree["at"])
        self.model.load_state_dict(tree["model"])
        self.method.load_state_dict(tree["method"])
        self.optimizer.load_state_dict(tree["optimizer"])
        torch.set_rng_state(tree["random"])
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def accuracy(self) -> float:
        inputs, labels = tiny_data(1)
        self.model.eval()
        with torch.no_grad():
            scores = self.method.predict(self.model(inputs.to(self.dtype)))
        return float((scores.argmax(dim=1) == labels).double().mean())


def tensors_of(tree: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors of nested dictionaries and lists by their path."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return {path: leaf for key, value in items for path, leaf in tensors_of(value, f"{prefix}/{key}").items()}
