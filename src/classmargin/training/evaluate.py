"""Passes without gradient: accuracies on validation, and everything about the test set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from classmargin._distributed import all_reduce_sum, gather_rows
from classmargin._types import Batch, ModelOutput
from classmargin.evaluation.class_metrics import class_accuracy, confusion_counts
from classmargin.evaluation.tiers import tier_codes, tier_means
from classmargin.methods.base import Method


@dataclass(frozen=True)
class Accuracies:
    """Accuracy on one split, in [0, 1]; thirds are ranked by these same accuracies.

    Attributes:
        overall: Over samples.
        easy: Mean over the best third of classes.
        medium: Mean over the middle third.
        hard: Mean over the worst third.
        worst: Lowest class accuracy.
        worst_class: Its position.
        by_class: ``[K]``, NaN for classes without samples.
    """

    overall: float
    easy: float
    medium: float
    hard: float
    worst: float
    worst_class: int
    by_class: np.ndarray[Any, np.dtype[np.float64]]

    def scalars(self) -> dict[str, float]:
        """Return the six numbers of a log record, with the gap between easy and hard."""
        names = ("overall", "easy", "medium", "hard", "worst")
        return {**{name: getattr(self, name) for name in names}, "gap": self.easy - self.hard}


def accuracies_of(confusion: np.ndarray[Any, np.dtype[np.int64]]) -> Accuracies:
    """Return all accuracies of a confusion matrix ``[K, K]`` (row = true class).

    Example:
        >>> accuracies_of(np.array([[9, 1, 0], [0, 5, 5], [2, 0, 8]])).worst_class
        1
    """
    by_class = class_accuracy(confusion)
    easy, medium, hard = tier_means(by_class, tier_codes(by_class)).tolist()
    worst_class = int(np.nanargmin(by_class))
    overall = float(np.trace(confusion) / confusion.sum())
    return Accuracies(overall, easy, medium, hard, float(by_class[worst_class]), worst_class, by_class)


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Switch modules to evaluation and every submodule back to the mode it had; no gradients meanwhile."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


class Place(Protocol):
    """The two things of Lightning Fabric that a pass needs."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        ...

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the network runs."""
        ...


def forward_batches(
    network: nn.Module, batches: Iterable[Batch], place: Place
) -> Iterator[tuple[Batch, ModelOutput]]:
    """Yield each batch on the device with the network's output. The caller has set evaluation mode.

    A compiled network is called uncompiled here: sizes differ from the training's, and compiling again for
    them costs more than it saves.
    """
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    for batch in batches:
        moved = to_device(batch, place.device)
        with place.autocast():
            output = network.forward(moved.inputs.to(dtype))
        yield moved, output


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on ``device`` (itself if they are there)."""
    if batch.labels.device == device:
        return batch
    inputs, labels, index = (
        tensor.to(device, non_blocking=True) for tensor in (batch.inputs, batch.labels, batch.index)
    )
    return Batch(inputs, labels, index, batch.views)


def measure_accuracies(
    network: nn.Module, method: Method, batches: Iterable[Batch], num_classes: int, place: Place
) -> Accuracies:
    """Return the accuracies over all processes' batches, by the method's own prediction rule."""
    confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
    with evaluation_mode(network, method):
        for batch, output in forward_batches(network, batches, place):
            predictions = method.predict(output).argmax(dim=1).cpu().numpy()
            confusion += confusion_counts(batch.labels.cpu().numpy(), predictions, num_classes)
    total = all_reduce_sum(torch.from_numpy(confusion).to(place.device)).cpu().numpy()
    return accuracies_of(total)


def collect_outputs(
    network: nn.Module, method: Method, batches: Iterable[Batch], place: Place
) -> dict[str, np.ndarray[Any, Any]]:
    """Return scores, features, labels and ids of all samples of all processes, in the order of the ids."""
    columns: dict[str, list[Tensor]] = {"logits": [], "features": [], "labels": [], "sample_id": []}
    with evaluation_mode(network, method):
        for batch, output in forward_batches(network, batches, place):
            columns["logits"].append(method.predict(output).float().cpu())
            columns["features"].append(output.features.float().cpu())
            columns["labels"].append(batch.labels.cpu())
            columns["sample_id"].append(batch.index.cpu())
    gathered = {name: _of_all_processes(parts, place.device) for name, parts in columns.items()}
    # Samples that a loader repeats to give every process the same number of batches count once.
    _, first = np.unique(gathered["sample_id"], return_index=True)
    return {name: values[first] for name, values in gathered.items()}


def _of_all_processes(parts: list[Tensor], device: torch.device) -> np.ndarray[Any, Any]:
    rows, _ = gather_rows(torch.cat(parts).to(device))
    values: np.ndarray[Any, Any] = rows.cpu().numpy()
    return values
