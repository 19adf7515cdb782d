"""Several finished runs as one classifier: averaged probabilities, one ONNX file, and one student that learns from them.

Running the same command again reuses what is there: the student (``OUT/student``, a run like any other) resumes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from classmargin._checks import check_number
from classmargin._files import read_json
from classmargin._progress import progress
from classmargin.data import make_loader
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.headlines import HEADLINES
from classmargin.evaluation.prediction_files import Predictions, read_predictions
from classmargin.recipes.run_parts import load_bundle
from classmargin.recipes.saved_model import BATCH, HOST, DeployedModel, SavedModel, load_model, write_graph, write_names
from classmargin.recipes.train_run import train
from classmargin.training.config import MethodConfig, RunConfig, identity
from classmargin.training.config_reader import merge, with_values
from classmargin.training.evaluate import Arrays, audit_arrays, collect_outputs, write_predictions
from classmargin.training.run_folder import RunFolder, hold_lock, write_json

# ln of a probability that a float32 softmax rounds to 0.
SMALLEST = 1e-30


@dataclass(frozen=True)
class Ensemble:
    """What came out, on the test set."""

    out: Path
    audit: Audit  # of the averaged probabilities
    members: dict[str, dict[str, float]]  # accuracies of each run, by its folder
    student: dict[str, float] | None  # accuracies of the distilled network; None without distillation
    files: dict[str, Path]  # what was written, by kind

    def rows(self) -> list[tuple[str, dict[str, float]]]:
        """Return accuracies by name: members, the ensemble, and the student if there is one."""
        rows = [*self.members.items(), ("ensemble", _accuracies(self.audit))]
        return rows if self.student is None else [*rows, ("student", self.student)]


def ensemble(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    distill: bool = False,
    method: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    temperature: float = 1.0,
    onnx: bool = True,
    report: bool = True,
) -> Ensemble:
    """Average the probabilities of finished runs, audit the result, and export or distil it.

    The runs, at least two, must be tested on the same samples. With ``distill`` one network is trained on the averaged
    probabilities of the training samples; it has the settings of the first run unless ``method`` (one that takes class
    probabilities as labels) and ``settings`` (tables, e.g. ``{"loop": {"epochs": 50}}``) say otherwise. A ``temperature``
    above 1 says more about the classes that were not chosen. ``onnx`` also writes the whole ensemble as one ONNX file.
    """
    check_number("temperature", temperature, above=0.0)
    folders, place = [RunFolder(run) for run in runs], Path(out)
    if len(folders) < 2:
        raise ValueError(f"an ensemble needs at least two runs, got {len(folders)}")
    for folder in folders:
        if not folder.done:
            raise ValueError(f"{folder.path} holds no finished run; finish it with classmargin train --resume first")
    members = {str(folder.path): read_predictions(folder.predictions_file) for folder in folders}
    if len(members) < len(folders):
        raise ValueError("a run is given twice; its vote would count double")
    arrays = average(members)
    configs = [folder.read_config() for folder in folders]
    with hold_lock(place / ".lock"):
        _claim(place, [identity(config) for config in configs], temperature)
        files = {"predictions": place / "predictions.npz", "audit": place / "audit.json"}
        write_predictions(files["predictions"], arrays)
        result = audit_arrays(arrays)
        write_json(files["audit"], result.to_dict())
        if report:
            files["report"] = result.to_html(place / "report.html")
        models = [load_model(folder.path) for folder in folders] if onnx or distill else []
        if onnx:
            files["onnx"] = place / "ensemble.onnx"
            _export(models, files["onnx"])
        student = None
        if distill:
            files["teacher"], files["student"] = place / "teacher.npz", place / "student"
            # The student has the settings of the first run, with the teacher's labels, and what was asked for.
            first = configs[0]
            if method not in (None, first.method.name):
                first = replace(first, method=MethodConfig(str(method)))
            labels = {"data": {"soft_labels": str(files["teacher"])}}
            config = with_values(first, merge(settings or {}, labels))
            if not files["teacher"].exists():
                write_predictions(files["teacher"], teach(models, config, temperature))
            student = train(config, files["student"], resume=True)["test"]
    alone = {name: _accuracies(found.audit(bootstrap=0)) for name, found in members.items()}
    return Ensemble(place, result, alone, student, files)


def _accuracies(audit: Audit) -> dict[str, float]:
    return {name: float(getattr(audit, name)) for name in HEADLINES}


def average(members: Mapping[str, Predictions]) -> Arrays:
    """Return the logarithm of the members' mean probabilities as the arrays of a prediction file."""
    (first_name, first), *others = members.items()
    for name, other in others:
        for what in ("labels", "sample_id", "class_names"):
            if not np.array_equal(np.asarray(getattr(first, what)), np.asarray(getattr(other, what))):
                raise ValueError(f"{name} and {first_name} were not tested on the same samples: {what} differ")
    mean = np.mean([probabilities_of(found) for found in members.values()], axis=0)
    return {
        "labels": np.asarray(first.labels),
        "sample_id": np.asarray(first.sample_id),
        "class_names": np.array(first.class_names, dtype=np.str_),
        "logits": np.log(mean.clip(min=SMALLEST)).astype(np.float32),
    }


def probabilities_of(found: Predictions) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return class probabilities ``[N, K]`` in float64."""
    if found.probabilities is not None:
        return np.asarray(found.probabilities, dtype=np.float64)
    if found.logits is None:
        raise ValueError(f"{found.source} holds neither probabilities nor logits, so there is nothing to average")
    return _softmax(np.asarray(found.logits), 1.0)


def _softmax(logits: np.ndarray[Any, Any], temperature: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return (torch.from_numpy(np.asarray(logits)).double() / temperature).softmax(dim=1).numpy()


def _claim(place: Path, members: list[str], temperature: float) -> None:
    """Refuse a folder with files of another ensemble: its student would have learnt from other teachers."""
    file, record = place / "ensemble.json", {"members": members, "temperature": temperature}
    if file.exists() and read_json(file) != record:
        raise ValueError(f"{place} holds another ensemble (other runs or temperature); choose another --out")
    if not file.exists() and any(path.name != ".lock" for path in place.iterdir()):
        raise ValueError(f"{place} exists and is not the folder of an ensemble; choose another --out")
    write_json(file, record, durable=True)


class EnsembleModel(nn.Module):
    """The mean of the members' probabilities, from pixels in [0, 1] (or features) to scores."""

    def __init__(self, models: Sequence[SavedModel]) -> None:
        super().__init__()
        self.members = nn.ModuleList(DeployedModel(model) for model in models)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``[B, K]``, the logarithm of mean probabilities, and all features side by side."""
        outputs = [member(inputs) for member in self.members]
        mean = torch.stack([scores.softmax(dim=1) for scores, _ in outputs]).mean(dim=0)
        return mean.clamp(min=SMALLEST).log(), torch.cat([features for _, features in outputs], dim=1)


def _export(models: Sequence[SavedModel], target: Path) -> None:
    """Write the whole ensemble as one ONNX file, checked against the networks, with names and shapes beside it."""
    record = models[0].record
    if len({(model.record.kind, model.record.input_shape, model.record.class_names) for model in models}) > 1:
        raise ValueError(
            "one file cannot take the inputs of all runs, which differ; leave the export out with --no-onnx"
        )
    example = torch.rand(2, *record.input_shape, generator=torch.Generator().manual_seed(0))
    write_graph(EnsembleModel(models).eval(), example, target, "onnx")
    write_names(target, record, "onnx")


def teach(models: Sequence[SavedModel], config: RunConfig, temperature: float) -> Arrays:
    """Return the averaged probabilities of the student's training samples, without augmentation, as a prediction file has them."""
    bundle, arrays, total = load_bundle(config), {}, np.zeros(())
    for model in models:
        own = replace(bundle, mean=model.record.mean, std=model.record.std)
        loader = make_loader(own, "train", batch_size=BATCH, training=False)
        shown = progress(loader.epoch(0), "labels of the teacher", total=len(loader))
        arrays = collect_outputs(model.backbone, model.method, shown, HOST)
        total = total + _softmax(arrays["logits"], temperature)
    names = {"class_names": np.array(bundle.class_names, dtype=np.str_)}
    return {name: arrays[name] for name in ("labels", "sample_id")} | names | {"probabilities": total / len(models)}
