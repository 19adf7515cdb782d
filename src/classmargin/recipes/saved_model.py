"""A trained network from its run folder, without the data it was trained on: its scores on any labelled data with the same
classes (``classmargin predict RUN DATA``), and itself as one file for other programs (``classmargin export RUN --format onnx``).

An exported graph takes pixels in [0, 1] or features, normalises them, and returns scores by the method's rule and features.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._checks import check_choice, require_extra
from classmargin._progress import progress
from classmargin._types import Batch, ModelOutput
from classmargin.backbones import Backbone
from classmargin.backbones.feature_cache import encoder_fingerprint
from classmargin.data import DataBundle, load_data, make_loader
from classmargin.data.raw import name_some
from classmargin.methods import Method, TaskInfo, create
from classmargin.recipes.run_parts import ModelRecord, build_network, framing_of, method_needs, read_record
from classmargin.recipes.train_run import read_progress
from classmargin.training.checkpoint import CheckpointStore
from classmargin.training.config import RunConfig
from classmargin.training.evaluate import Arrays, predict_arrays
from classmargin.training.process_state import seed_process
from classmargin.training.run_folder import RunFolder, write_json
from classmargin.training.run_progress import say
from classmargin.training.weights import final_weights, load_weights

BATCH = 256
SPLITS = ("train", "validation", "test")
SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class SavedModel:
    """A trained network with its method, both in evaluation mode, and what is known of its data."""

    config: RunConfig
    record: ModelRecord
    backbone: Backbone  # with the weights that count
    method: Method  # decides how scores are made


def load_model(folder: str | os.PathLike[str]) -> SavedModel:
    """Load the trained network of a run (of an unfinished run: that of its newest checkpoint)."""
    run = RunFolder(folder)
    config, record = run.read_config(), read_record(run)
    found = CheckpointStore(run.checkpoint_folder, say).load_newest()
    if found is None:
        raise ValueError(f"{run.path} holds no readable checkpoint")
    tree, needs = found[1], method_needs(config)
    seed_process(config.loop.seed, "weights", 0)  # a frozen encoder from scratch comes from the seed again
    new_network = partial(build_network, config, record, needs)
    backbone = new_network()
    try:
        weights, of_method = final_weights(tree), dict(tree["method"])
        stage, step = (int(tree["position"][name]) for name in ("stage", "global_step"))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the checkpoint of {run.path} is not one of a training: {error}") from error
    _check_finite(run, weights)
    if record.encoder:
        if encoder_fingerprint(backbone) != record.encoder:
            raise ValueError(
                f"the weights of the frozen encoder {backbone.name} are not those the head was trained on; "
                "point backbone.checkpoint to the same file as then"
            )
        heads = {name.removeprefix("head."): value for name, value in weights.items()}
        load_weights(backbone.head, heads, "the head")
    else:
        load_weights(backbone, weights, "the network")
    task = TaskInfo(
        num_classes=record.num_classes,
        feature_dim=backbone.feature_dim,
        class_counts=torch.tensor(record.class_counts),
        labels=torch.full((record.full_size,), -1, dtype=torch.long),
        epochs=config.loop.epochs,
        steps_per_epoch=record.steps_per_epoch,
        new_model=new_network,
    )
    method = create(config.method.name, task, preset=config.method.preset, **config.method.options)
    load_weights(method, of_method, "the method")
    # Its statistics may be infinite: classes not seen yet.
    _check_finite(run, dict(method.named_parameters()))
    # A trial of a sweep is trained to its end and yet not done: it was never tested.
    if not run.done and stage < len(method.stages(config.loop.epochs)):
        shown = read_progress(run.progress_file)
        total = "" if shown is None else f" of {shown['total']}"
        say(f"{run.path} is unfinished: weights of step {step}{total}")
    return SavedModel(config, record, backbone.eval(), method.eval())


def _check_finite(run: RunFolder, state: Mapping[str, object]) -> None:
    """Refuse a network that answers every input with no number; a checkpoint of ours never holds one."""
    bad = [name for name, value in state.items() if isinstance(value, Tensor) and not value.isfinite().all()]
    if bad:
        raise ValueError(
            f"the checkpoint of {run.path} holds NaN or infinity in {name_some(list(map(repr, bad)))}; train it again"
        )


class DeployedModel(nn.Module):
    """From pixels in [0, 1] (or features) to class scores and features, with everything in between inside."""

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


# This process's CPU in full precision, in place of a Fabric.
HOST: Any = SimpleNamespace(device=torch.device("cpu"), autocast=contextlib.nullcontext)


def predict(
    model: SavedModel, data: str, *, split: str = "test", root: Path | None = None, download: bool = False
) -> Arrays:
    """Return logits, labels, features and ids of a split (or of ``all`` of them) of data whose classes the network knows."""
    record, own = model.record, model.config.data
    size = record.input_shape[1] if record.kind == "images" else None
    place = root or (Path(own.root) if own.root else None)
    bundle = load_data(data, root=place, image_size=size, download=download, framing=framing_of(own))
    bundle = replace(bundle, mean=record.mean, std=record.std)
    if bundle.kind != record.kind or tuple(bundle.input_shape) != tuple(record.input_shape):
        raise ValueError(
            f"the network reads {record.kind} of shape {tuple(record.input_shape)}, but {bundle.name} holds "
            f"{bundle.kind} of shape {tuple(bundle.input_shape)}"
        )
    known = {name: position for position, name in enumerate(record.class_names)}
    unknown = [name for name in bundle.class_names if name not in known]
    if unknown:
        raise ValueError(f"{bundle.name} has classes that the network does not know: {name_some(unknown)}")
    positions = torch.tensor([known[name] for name in bundle.class_names])
    names = SPLITS if split == "all" else (split,)
    steps = sum(-(-len(bundle.split(name)) // BATCH) for name in names)
    batches = progress(_batches(bundle, names, positions), "predicting", total=steps)
    return predict_arrays(model.backbone, model.method, batches, record.class_names, HOST)


def _batches(bundle: DataBundle, names: tuple[str, ...], positions: Tensor) -> Iterator[Batch]:
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
    """Return what keeps the ids of several splits apart: samples held out of the training part share its numbering."""
    train, validation = bundle.train, bundle.validation
    held_out = not bool(torch.isin(validation.index, train.index).any())
    start = 0 if held_out else train.full_size
    return {"train": 0, "validation": start, "test": max(train.full_size, start + validation.full_size)}


def export(model: SavedModel, target: str | os.PathLike[str], file_format: str) -> Path:
    """Write the network as ``onnx``, ``torchscript`` or ``safetensors`` (weights alone) and return where the file is."""
    path, suffix = Path(target), SUFFIXES[check_choice("format", file_format, SUFFIXES)]
    if path.suffix != suffix:
        path = path.with_name(path.name + suffix)
    if file_format == "safetensors":
        from safetensors.torch import save_file

        weights = {name: value.contiguous().clone() for name, value in model.backbone.state_dict().items()}
        names = json.dumps(list(model.record.class_names))
        with atomic_path(path) as temporary:
            metadata = {"backbone": model.config.backbone.name, "class_names": names}
            save_file(weights, temporary, metadata=metadata)
    else:
        write_graph(DeployedModel(model).eval(), _example(model), path, file_format)
    write_names(path, model.record, file_format)
    return path


def write_names(path: Path, record: ModelRecord, file_format: str) -> None:
    """Write names and shapes beside an exported file."""
    write_json(path.with_name(f"{path.name}.json"), {"format": file_format, **asdict(record)})


def _example(model: SavedModel) -> Tensor:
    # Two samples: with one, a tracer takes the batch for a constant.
    random = torch.Generator().manual_seed(0)
    shape = (2, *model.record.input_shape)
    if model.record.kind == "text":  # without padding: a tracer keeps the length of what it saw
        encoder: Any = model.backbone.encoder
        others = torch.tensor([token for token in range(encoder.vocabulary) if token != encoder.padding])
        return others[torch.randint(len(others), shape, generator=random)]
    return torch.rand(shape, generator=random)


def write_graph(model: nn.Module, example: Tensor, path: Path, file_format: str) -> None:
    """Write a module that returns scores and features as ``onnx`` or ``torchscript``, if the file computes the same."""
    run = run_onnx if file_format == "onnx" else run_script
    with atomic_path(path) as temporary, torch.no_grad(), warnings.catch_warnings():
        # TorchScript says at each use that it is in maintenance, the ONNX exporter that its interface will change.
        warnings.simplefilter("ignore")
        if file_format == "onnx":
            _write_onnx(model, example, temporary)
        else:
            torch.jit.save(torch.jit.trace(model, example), str(temporary))  # type: ignore[no-untyped-call]
        pairs = zip(("scores", "features"), model(example), run(temporary, example), strict=True)
        for name, expected, found in pairs:
            worst = float((expected - found).abs().max())
            if not worst <= TOLERANCE:
                raise ValueError(f"the exported network differs from the original: {name} by up to {worst:g}")


def run_script(path: Path, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run an exported TorchScript file."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        scores, features = torch.jit.load(str(path))(inputs)  # type: ignore[no-untyped-call]
    return scores, features


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    require_extra("onnxscript", "export", "ONNX export")
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports every optional package it lacks
    program = torch.onnx.export(
        model,
        (example,),
        input_names=["inputs"],
        output_names=["scores", "features"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(path), external_data=False)


def run_onnx(path: Path, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run an exported ONNX file on the CPU."""
    runtime = require_extra("onnxruntime", "export", "checking an ONNX file")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    scores, features = session.run(["scores", "features"], {"inputs": inputs.numpy()})
    return torch.from_numpy(scores), torch.from_numpy(features)
