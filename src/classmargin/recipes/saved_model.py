"""A trained network from its run folder, without the data it was trained on, and its scores on any labelled data with the
same classes (``classmargin predict RUN DATA``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._progress import progress
from classmargin._types import Batch, ModelOutput
from classmargin.backbones import Backbone
from classmargin.backbones.feature_cache import encoder_fingerprint
from classmargin.data import DataBundle, load_data, make_loader
from classmargin.methods import Method, TaskInfo, create
from classmargin.recipes.model_record import ModelRecord, read_record
from classmargin.recipes.run_display import read_progress
from classmargin.recipes.run_parts import build_network, framing_of, method_needs
from classmargin.training.checkpoint import CheckpointStore
from classmargin.training.config import RunConfig
from classmargin.training.evaluate import Arrays, predict_arrays
from classmargin.training.process_state import seed_process
from classmargin.training.run_folder import RunFolder
from classmargin.training.run_progress import say
from classmargin.training.weights import final_weights, load_weights

BATCH = 256
SPLITS = ("train", "validation", "test")


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
        record_of_progress = read_progress(run.progress_file)
        total = "" if record_of_progress is None else f" of {record_of_progress['total']}"
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
            "numbers; train it again, or resume from an earlier checkpoint"
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


@dataclass(frozen=True)
class HostPlace:
    """This process's CPU in full precision."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext()


def predict(
    model: SavedModel, data: str, *, split: str = "test", root: Path | None = None, download: bool = False
) -> Arrays:
    """Return logits, labels, features and ids of a split (or of ``all`` of them).

    Args:
        model: From :func:`classmargin.recipes.saved_model.load_model`.
        data: Name or path of a data set whose classes the network knows.
        split: ``train``, ``validation``, ``test`` or ``all``.
        root: Folder of data sets.
        download: Allow a download where there is a source.

    Raises:
        ValueError: Other classes, another kind of input, or an empty split.
    """
    record = model.record
    size = record.input_shape[1] if record.kind == "images" else None
    own = model.config.data
    place = root or (Path(own.root) if own.root else None)
    bundle = load_data(data, root=place, image_size=size, download=download, framing=framing_of(own))
    bundle = replace(bundle, mean=record.mean, std=record.std)
    _check_inputs(bundle, record)
    positions = class_positions(bundle, record)
    names = SPLITS if split == "all" else (split,)
    steps = sum(-(-len(bundle.split(name)) // BATCH) for name in names)
    batches = progress(_batches(bundle, names, positions), "predicting", total=steps)
    return predict_arrays(model.backbone, model.method, batches, record.class_names, HostPlace())


def _check_inputs(bundle: DataBundle, record: ModelRecord) -> None:
    if bundle.kind != record.kind or tuple(bundle.input_shape) != tuple(record.input_shape):
        raise ValueError(
            f"the network reads {record.kind} of shape {tuple(record.input_shape)}, but {bundle.name} holds "
            f"{bundle.kind} of shape {tuple(bundle.input_shape)}"
        )


def class_positions(bundle: DataBundle, record: ModelRecord) -> torch.Tensor:
    """Return the network's label of each class of the data, matched by name.

    Raises:
        ValueError: A class that the network does not know.
    """
    known = {name: position for position, name in enumerate(record.class_names)}
    unknown = [name for name in bundle.class_names if name not in known]
    if unknown:
        some = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise ValueError(f"{bundle.name} has classes that the network does not know: {some}")
    return torch.tensor([known[name] for name in bundle.class_names])


def _batches(bundle: DataBundle, names: tuple[str, ...], positions: torch.Tensor) -> Iterator[Batch]:
    offsets = _id_offsets(bundle) if len(names) > 1 else {}
    for name in names:
        if len(bundle.split(name)) == 0:
            if len(names) == 1:
                raise ValueError(f"{bundle.name} has no {name} samples")
            continue
        for batch in make_loader(bundle, name, batch_size=BATCH, training=False).epoch(0):
            index = batch.index + offsets.get(name, 0)
            yield replace(batch, labels=positions[batch.labels], index=index)


def _id_offsets(bundle: DataBundle) -> dict[str, int]:
    """Return what keeps the ids of several splits apart: the same id twice would count as one sample.

    Validation samples that were held out of the training part share its numbering; a part of their own has its own, and so
    has the test part.
    """
    train, validation = bundle.train, bundle.validation
    held_out = not bool(torch.isin(validation.index, train.index).any())
    start = 0 if held_out else train.full_size
    return {"train": 0, "validation": start, "test": max(train.full_size, start + validation.full_size)}
