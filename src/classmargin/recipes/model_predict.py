"""Scores of a trained network on any labelled data with the same classes: ``classmargin predict RUN DATA``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from classmargin._progress import progress
from classmargin._types import Batch
from classmargin.data import DataBundle, load_data, make_loader
from classmargin.recipes.data_loaders import framing_of
from classmargin.recipes.model_record import ModelRecord
from classmargin.recipes.saved_model import SavedModel
from classmargin.training.evaluate import Arrays, predict_arrays

BATCH = 256
SPLITS = ("train", "validation", "test")


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
