"""What runs say about single classes: columns of ``audit.json``, statistics of training features, and ``spread.jsonl``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classmargin._files import LONG_FILE, read_json
from classmargin.data import make_loader
from classmargin.evaluation.class_metrics import TIERS, tier_codes
from classmargin.evaluation.feature_geometry import ClassGeometry, FeatureSums, class_geometry
from classmargin.recipes.run_parts import RunParts, load_bundle
from classmargin.recipes.saved_model import load_model
from classmargin.recipes.train_run import read_json_lines
from classmargin.training.metric_logs import Evaluation, json_line
from classmargin.training.run_folder import RunFolder

Values = npt.NDArray[np.float64]
GEOMETRY_BATCH = 256
SPREAD_FILE = "spread.jsonl"


def class_column(runs: Sequence[RunFolder], name: str) -> Values:
    """Return a column of the class table, mean over runs ``[K]``; NaN where a run does not tell."""
    tables = [read_audit_part(run, "by_class") for run in runs]
    found = [[np.nan if row[name] is None else float(row[name]) for row in rows] for rows in tables]
    return np.asarray(np.mean(found, axis=0))


def read_audit_part(run: RunFolder, part: str) -> Any:
    """Return one part of the audit that a run keeps; a missing or damaged file is named."""
    try:
        return read_json(run.audit_file, max_bytes=LONG_FILE)[part]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{run.audit_file} cannot be read as an audit ({error!r})") from error


def thirds_of(accuracy: Values) -> dict[str, npt.NDArray[np.int64]]:
    """Return the classes of each third, ranked by accuracy."""
    codes = tier_codes(accuracy)
    return {name: np.flatnonzero(codes == code) for code, name in enumerate(TIERS)}


def third_means(values: Values, accuracy: Values) -> dict[str, float | None]:
    """Return the mean of a class value over each third; None where a third has no class."""
    known = {name: values[classes][~np.isnan(values[classes])] for name, classes in thirds_of(accuracy).items()}
    return {name: float(found.mean()) if len(found) else None for name, found in known.items()}


def training_geometry(folder: RunFolder) -> ClassGeometry:
    """Return spread and means of each class over the training samples, without augmentation."""
    model = load_model(folder.path)
    bundle = replace(load_bundle(model.config), mean=model.record.mean, std=model.record.std)
    return _geometry(model.backbone, make_loader(bundle, "train", batch_size=GEOMETRY_BATCH, training=False), bundle)


def _geometry(network: Any, loader: Any, bundle: Any) -> ClassGeometry:
    """Return the statistics of the features of all samples of a loader, for a network in evaluation mode."""
    sums = FeatureSums.empty(bundle.num_classes, network.feature_dim, 2.0)
    device = next(network.parameters()).device
    with torch.inference_mode():
        for batch in loader.epoch(0):
            features = network(batch.inputs.to(device)).features
            sums.add(features.float().cpu().numpy(), batch.labels.numpy())
    return class_geometry(sums)


class SpreadLog:
    """Notes ``‖ŝ_y‖²`` of the validation samples in the folder of a run; one line per evaluation."""

    def __init__(self, run: RunFolder, session: RunParts) -> None:
        if len(session.bundle.split("validation")) == 0:
            raise ValueError("watching spreads needs validation samples; set data.validation above 0")
        self._file, self._session = run.path / SPREAD_FILE, session

    def log(self, evaluation: Evaluation) -> None:
        """Measure and append a line."""
        # Only the first process writes; it looks at all samples, not at its share of them.
        session, network = self._session, self._session.network
        loader = replace(session.loaders, rank=0, world_size=1).evaluation("validation")
        was_training = network.training
        spread = _geometry(network.eval(), loader, session.bundle).spread
        network.train(was_training)
        line = {"epoch": evaluation.epoch, "spread": spread.tolist()}
        with self._file.open("a+b") as file:
            # A killed writer or a full disk may have left half a line; the next one must not continue it.
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                file.write(b"\n" * (file.read(1) != b"\n"))
            file.write(json_line(line).encode())

    def close(self) -> None:
        """Nothing is held open."""


def read_spreads(run: RunFolder) -> dict[int, list[float | None]]:
    """Return ``‖ŝ_y‖²`` of every class by epoch; of an epoch noted twice (a resumed run) the later line counts."""
    path = run.path / SPREAD_FILE
    if not path.exists():
        raise ValueError(f"{run.path} has no {SPREAD_FILE}: it was not trained by this recipe")
    found = {}
    for record in read_json_lines(path):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            found[int(record["epoch"])] = record["spread"]
    return found
