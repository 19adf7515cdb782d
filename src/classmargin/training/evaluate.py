"""Passes without gradient: over the training set for hooks, on validation, scores and audit of the test set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classmargin._atomic import atomic_path
from classmargin._distributed import all_reduce_sum, gather_rows, rank
from classmargin._types import Batch, ModelOutput
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.class_metrics import tier_codes, tier_means
from classmargin.methods.base import Method, Step
from classmargin.training.process_state import average_running_statistics
from classmargin.training.run_folder import RunFolder, write_json
from classmargin.training.run_progress import say

HEADLINES = ("overall", "easy", "medium", "hard", "worst")
Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Accuracies:
    """Accuracy on one split, in [0, 1]; thirds are ranked by ``by_class`` ``[K]``, which is NaN for classes without samples."""

    overall: float
    easy: float
    medium: float
    hard: float
    worst: float
    worst_class: int
    by_class: np.ndarray[Any, np.dtype[np.float64]]

    def scalars(self) -> dict[str, float]:
        """Return the six numbers of a log record, with the gap between easy and hard."""
        return {**{name: getattr(self, name) for name in HEADLINES}, "gap": self.easy - self.hard}


def accuracies_of(correct: Tensor, counts: Tensor) -> Accuracies:
    """Return all accuracies from the number of correct and of all samples of each class, both ``[K]``."""
    correct, counts = correct.cpu(), counts.cpu()
    by_class = (correct.double() / counts).numpy()  # 0 / 0 is NaN: a class without samples has none
    easy, medium, hard = tier_means(by_class, tier_codes(by_class)).tolist()
    worst_class = int(np.nanargmin(by_class))
    overall = float(correct.sum() / counts.sum())
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


def forward_batches(network: nn.Module, batches: Iterable[Batch], fabric: Any) -> Iterator[tuple[Batch, ModelOutput]]:
    """Yield each batch with the network's output; compiled networks are called uncompiled, as sizes differ here."""
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    for batch in batches:
        # Token numbers stay whole.
        inputs = batch.inputs if batch.inputs.dtype == torch.int64 else batch.inputs.to(dtype)
        with fabric.autocast():
            output = network.forward(inputs)
        yield batch, output


@dataclass
class HookContext:
    """The :class:`classmargin.methods.base.LoopContext` of the loop; ``batches`` starts a pass over the training set."""

    model: nn.Module
    epoch: int
    epochs: int
    stage: int
    global_step: int
    batches: Callable[[], Iterator[Batch]]
    fabric: Any

    def training_pass(self) -> Iterator[Step]:
        """Forward this process's share of the training set: evaluation mode, no gradient, in index order."""
        average_running_statistics(self.model)
        with evaluation_mode(self.model):
            for batch, output in forward_batches(self.model, self.batches(), self.fabric):
                yield Step(
                    output.logits,
                    output.features,
                    batch.labels,
                    batch.index,
                    batch.inputs,
                    model=self.model,
                    epoch=self.epoch,
                    global_step=self.global_step,
                    stage=self.stage,
                )


def measure_accuracies(
    network: nn.Module, method: Method, batches: Iterable[Batch], num_classes: int, fabric: Any
) -> Accuracies:
    """Return the accuracies over all processes' batches, by the method's own prediction rule; counted on the device."""
    table = torch.zeros(2, num_classes, dtype=torch.long, device=fabric.device)
    with evaluation_mode(network, method):
        for batch, output in forward_batches(network, batches, fabric):
            right = method.predict(output).argmax(dim=1) == batch.labels
            table.index_add_(1, batch.labels, torch.stack([right.long(), torch.ones_like(batch.labels)]))
    correct, counts = all_reduce_sum(table)
    return accuracies_of(correct, counts)


def collect_outputs(network: nn.Module, method: Method, batches: Iterable[Batch], fabric: Any) -> Arrays:
    """Return scores, features, labels and ids of all samples of all processes, in the order of the ids."""
    columns: dict[str, list[Tensor]] = {"logits": [], "features": [], "labels": [], "sample_id": []}
    with evaluation_mode(network, method):
        for batch, output in forward_batches(network, batches, fabric):
            columns["logits"].append(method.predict(output).float().cpu())
            columns["features"].append(output.features.float().cpu())
            columns["labels"].append(batch.labels.cpu())
            columns["sample_id"].append(batch.index.cpu())
    gathered: Arrays = {
        name: gather_rows(torch.cat(parts).to(fabric.device))[0].cpu().numpy() for name, parts in columns.items()
    }
    # Samples that a loader repeats to give every process the same number of batches count once.
    _, first = np.unique(gathered["sample_id"], return_index=True)
    return {name: values[first] for name, values in gathered.items()}


def predict_arrays(
    network: nn.Module, method: Method, batches: Iterable[Batch], class_names: tuple[str, ...], fabric: Any
) -> Arrays:
    """Return everything a prediction file holds: logits, labels, features, ids, head weights, class names."""
    arrays = collect_outputs(network, method, batches, fabric)
    weight = getattr(network, "classifier_weight", None)
    if isinstance(weight, Tensor):
        arrays["classifier_weight"] = weight.detach().float().cpu().numpy()
    arrays["class_names"] = np.array(class_names, dtype=np.str_)
    return arrays


def write_predictions(path: Path, arrays: Arrays) -> None:
    """Write a prediction file atomically; it holds plain arrays, nothing pickled."""
    with atomic_path(path, durable=True) as temporary:
        np.savez(temporary, allow_pickle=False, **arrays)


def audit_arrays(arrays: Arrays, **options: Any) -> Audit:
    """Audit what :func:`predict_arrays` returned."""
    given: dict[str, Any] = {**arrays, "class_names": [str(name) for name in arrays["class_names"]]}
    return audit(given.pop("labels"), **given, **options)


def finish_run(
    folder: RunFolder,
    arrays: Arrays,
    *,
    report: bool,
    summary: dict[str, Any],
    norm_order: float = 2.0,
    images: Any = None,
) -> Audit | None:
    """Write predictions, audit and report (with ``images``) of a run and mark it as done; only one process writes."""
    if rank() != 0:
        return None
    write_predictions(folder.predictions_file, arrays)
    result = audit_arrays(arrays, norm_order=norm_order)
    write_json(folder.audit_file, result.to_dict(), durable=True)
    if report:
        try:
            result.to_html(folder.report_file, images=images)
        except ImportError as error:
            say(f"no report.html: {error}")
    test = {name: getattr(result, name) for name in (*HEADLINES, "gap")}
    folder.mark_done({**summary, "test": test})
    return result
