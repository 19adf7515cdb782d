"""What can be chosen: settings, the runs made with them, averages of runs, with class offsets or without; and their predictions.

Also what is made of predictions on folds: those of one network on all samples, and the training samples whose labels they doubt.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classmargin.data import DataBundle
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.evaluation.samples import write_samples
from classmargin.recipes.improve import judging
from classmargin.recipes.improve.judging import Aim, Array, Samples
from classmargin.recipes.improve.remedies import Remedy
from classmargin.recipes.runner import PlannedRun
from classmargin.recipes.train_run import VALIDATION_FILE
from classmargin.training.config import RunConfig
from classmargin.training.evaluate import write_predictions
from classmargin.training.run_folder import RunFolder


@dataclass(frozen=True)
class Candidate:
    """Settings that runs are made with and, once they are made, a model that can be chosen."""

    name: str  # part of the names of folders
    title: str
    remedy: Remedy
    config: RunConfig
    cost: float  # training time relative to a run of the untuned baseline
    members: tuple[tuple[RunFolder, ...], ...] = ()  # for each repetition the runs that are averaged
    offsets: bool = False  # whether class offsets are fitted on validation

    @property
    def runs(self) -> list[RunFolder]:
        """All runs it is made of, each once."""
        return list({run.path: run for group in self.members for run in group}.values())

    def _scores(self, part: str) -> list[Array]:
        return [judging.mean_scores([read_scores(_file(run, part))[1] for run in group]) for group in self.members]

    def samples(self, part: str) -> Samples:
        """Return who was predicted in ``validation`` or ``test``."""
        return read_scores(_file(self.members[0][0], part))[0]

    def scores(self, part: str, aim: Aim) -> list[Array]:
        """Return log-probabilities; offsets on validation are those of the other half, elsewhere those of all of it."""
        groups = self._scores(part)
        if not self.offsets:
            return groups
        if part == "validation":
            return [judging.held_out_offsets(scores, self.samples(part).labels, aim) for scores in groups]
        return [scores + shift for scores, shift in zip(groups, self.fitted_offsets(aim), strict=True)]

    def fitted_offsets(self, aim: Aim) -> list[Array]:
        """Return the offsets of each repetition ``[K]``."""
        labels = self.samples("validation").labels
        return [judging.fit_offsets(scores, labels, aim) for scores in self._scores("validation")]


class ShiftedModel(nn.Module):
    """A network with an offset for each class on its log-probabilities, as they were fitted."""

    shift: Tensor

    def __init__(self, model: nn.Module, offsets: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("shift", torch.tensor(offsets, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``[B, K]`` and features."""
        scores, features = self.model(inputs)
        return scores.log_softmax(dim=1) + self.shift, features


def pooled_file(run: RunFolder) -> Path:
    """Return where the predictions on all folds are, beside the run that is trained on all of them."""
    return run.path.with_name(f"{run.path.name}-folds.npz")


def validation_file(run: RunFolder) -> Path:
    """Return the predictions that a run is chosen by: on held-out samples, or cross-validated ones."""
    pooled = pooled_file(run)
    return pooled if pooled.exists() else run.path / VALIDATION_FILE


def _file(run: RunFolder, part: str) -> Path:
    return validation_file(run) if part == "validation" else run.predictions_file


@functools.lru_cache(maxsize=256)
def read_scores(file: Path) -> tuple[Samples, Array]:
    """Return who was predicted and the log-probabilities ``[N, K]`` of a prediction file."""
    found = read_predictions(file)
    scores = judging.log_probabilities(found)
    return Samples.of(found, scores), scores


def share_right(run: RunFolder) -> float:
    """Return the share of validation samples that a run has right."""
    samples, scores = read_scores(validation_file(run))
    return float((scores.argmax(axis=1) == samples.labels).mean())


def is_made(run: PlannedRun) -> bool:
    """Whether nothing is left to do for a run."""
    return run.folder.done if run.test else validation_file(run.folder).exists()


def averaged(name: str, title: str, remedy: Remedy, models: Sequence[Candidate]) -> Candidate:
    """Return the ensemble of all runs of some models."""
    runs = tuple(run for model in models for run in model.runs)
    cost = sum(model.cost * len(model.members) for model in models)
    return replace(models[0], name=name, title=title, remedy=remedy, members=(runs,), cost=cost)


def digest(runs: Iterable[RunFolder]) -> str:
    """Return what tells files made from some runs from those made from others."""
    return hashlib.sha256("\n".join(run.path.name for run in runs).encode()).hexdigest()[:8]


def pool(files: Sequence[Path], target: Path) -> None:
    """Write what networks predict for the folds they have not seen as predictions of one network, in the order of the samples."""
    found = [read_predictions(file) for file in files]
    order = np.argsort(np.concatenate([np.asarray(one.sample_id) for one in found]))
    arrays: dict[str, list[Any]] = {
        "labels": [one.labels for one in found],
        "sample_id": [one.sample_id for one in found],
        "probabilities": [np.exp(judging.log_probabilities(one)) for one in found],
    }
    joined = {name: np.concatenate(values)[order] for name, values in arrays.items()}
    write_predictions(target, {**joined, "class_names": np.array(found[0].class_names, dtype=np.str_)})


def without_doubt(bundle: DataBundle, pooled: Path, *, relabel: bool) -> tuple[int, dict[str, str]]:
    """Return how many training samples are doubted by the rule of the audit, and the settings that relabel or drop them.

    ``pooled`` holds the predictions of networks that have not seen them; what the settings name is written beside it.
    """
    import pandas as pd

    found = read_predictions(pooled)
    assert found.probabilities is not None
    index, labels = bundle.train.index.numpy(), bundle.train.labels.numpy()
    names = np.array(bundle.class_names, dtype=np.str_)
    order = np.argsort(np.argsort(index))  # the file is in the order of the index
    probabilities = np.asarray(found.probabilities)[order]
    seen = audit(labels, probabilities=probabilities, class_names=bundle.class_names, bootstrap=0, ranking="own")
    doubted = np.sort(seen.samples.loc[seen.samples["kind"] == "doubted label", "position"].to_numpy())
    if not len(doubted):
        return 0, {}
    if not relabel:
        file = pooled.with_name(f"left-out-{pooled.stem.removeprefix('folds-')}.csv")
        write_samples(file, pd.DataFrame({"sample_id": index[doubted], "class_name": names[labels[doubted]]}))
        return len(doubted), {"left_out": str(file)}
    file = pooled.with_name(f"labels-{pooled.stem.removeprefix('folds-')}.npz")
    targets = np.eye(bundle.num_classes, dtype=np.float32)[labels]
    targets[doubted] = probabilities[doubted]
    write_predictions(file, {"labels": labels, "sample_id": index, "class_names": names, "probabilities": targets})
    return len(doubted), {"soft_labels": str(file)}
