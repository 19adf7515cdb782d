"""A trained network from its run folder, without the data it was trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from classmargin._types import ModelOutput
from classmargin.backbones import Backbone
from classmargin.backbones.feature_cache import encoder_fingerprint
from classmargin.methods import Method, TaskInfo, create
from classmargin.recipes.model_record import ModelRecord, read_record
from classmargin.recipes.run_display import read_progress
from classmargin.recipes.run_parts import build_network, method_needs
from classmargin.training.checkpoint import CheckpointStore
from classmargin.training.config import RunConfig
from classmargin.training.process_state import seed_process
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import say
from classmargin.training.weights import final_weights, load_weights


@dataclass(frozen=True)
class SavedModel:
    """A trained network with its method and what is known of its data.

    Attributes:
        config: The run.
        record: Names, shapes, normalisation.
        backbone: With the weights that count, in evaluation mode.
        method: With its state; decides how scores are made.
    """

    config: RunConfig
    record: ModelRecord
    backbone: Backbone
    method: Method


def load_model(folder: str | os.PathLike[str]) -> SavedModel:
    """Load the trained network of a run (of an unfinished run: that of its newest checkpoint).

    Raises:
        ValueError: No run, no readable checkpoint, or weights that do not fit the network.
    """
    run = RunFolder(folder)
    config, record = run.read_config(), read_record(run)
    found = CheckpointStore(run.checkpoint_folder, say).load_newest()
    if found is None:
        raise ValueError(f"{run.path} holds no readable checkpoint")
    tree = found[1]
    needs = method_needs(config)
    seed_process(config.loop.seed, "weights", 0)  # a frozen encoder from scratch comes from the seed again

    def new_network() -> Backbone:
        return build_network(config, record, needs)

    backbone = new_network()
    try:
        weights, of_method = final_weights(tree), dict(tree["method"])
        stage, step = (int(tree["position"][name]) for name in ("stage", "global_step"))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the checkpoint of {run.path} is not one of a training: {error}") from error
    _check_finite(run, weights)
    if record.encoder:
        _check_encoder(backbone, record)
        heads = {name.removeprefix("head."): value for name, value in weights.items()}
        load_weights(backbone.head, heads, "the head")
    else:
        load_weights(backbone, weights, "the network")
    method = _method(config, record, backbone, new_network)
    load_weights(method, of_method, "the method")
    _check_finite(
        run, dict(method.named_parameters())
    )  # its statistics may be infinite: classes not seen yet
    # A trial of a sweep is trained to its end and yet not done: it was never tested.
    if not run.done and stage < len(method.stages(config.loop.epochs)):
        progress = read_progress(run.progress_file)
        total = "" if progress is None else f" of {progress['total']}"
        say(f"{run.path} is unfinished: weights of step {step}{total}")
    return SavedModel(config, record, backbone.eval(), method.eval())


def _check_finite(run: RunFolder, state: Mapping[str, object]) -> None:
    """Refuse a network that answers every input with no number; a checkpoint of ours never holds one."""
    bad = [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise ValueError(
            f"the checkpoint of {run.path} holds NaN or infinity in {bad[0]!r}{more}, so that its scores would be no "
            "numbers; train it again, or go on from an earlier checkpoint"
        )


def _check_encoder(backbone: Backbone, record: ModelRecord) -> None:
    if encoder_fingerprint(backbone) != record.encoder:
        raise ValueError(
            f"the weights of the frozen encoder {backbone.name} are not those the head was trained on; "
            "point backbone.checkpoint to the same file as then"
        )


def _method(config: RunConfig, record: ModelRecord, backbone: Backbone, new_network: object) -> Method:
    task = TaskInfo(
        num_classes=record.num_classes,
        feature_dim=backbone.feature_dim,
        class_counts=torch.tensor(record.class_counts),
        labels=torch.full((record.full_size,), -1, dtype=torch.long),
        epochs=config.loop.epochs,
        steps_per_epoch=record.steps_per_epoch,
        new_model=new_network,  # type: ignore[arg-type]
    )
    return create(config.method.name, task, preset=config.method.preset, **config.method.options)


class DeployedModel(nn.Module):
    """From pixels in [0, 1] (or features) to class scores and features, with everything in between inside.

    Example:
        >>> from classmargin.methods import create
        >>> task = TaskInfo(2, 12, torch.ones(2, dtype=torch.long), torch.zeros(2, dtype=torch.long))
        >>> record = ModelRecord(("a", "b"), (1, 1), 2, "images", (3, 2, 2), (0.5,) * 3, (0.5,) * 3)
        >>> backbone = Backbone(nn.Flatten(), feature_dim=12, num_classes=2)
        >>> model = DeployedModel(SavedModel(RunConfig(), record, backbone, create("erm", task)))
        >>> [tuple(part.shape) for part in model(torch.rand(4, 3, 2, 2))]
        [(4, 2), (4, 12)]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: SavedModel) -> None:
        super().__init__()
        self.backbone, self.method = model.backbone, model.method
        self.normalises = model.record.kind == "images"
        self.register_buffer("mean", torch.tensor(model.record.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(model.record.std).view(1, -1, 1, 1))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``[B, K]`` and features ``[B, d]``."""
        if self.normalises:
            inputs = (inputs - self.mean) / self.std
        output: ModelOutput = self.backbone(inputs)
        return self.method.predict(output), output.features
