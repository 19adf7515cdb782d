"""What runs say about single classes: columns of the class tables in ``audit.json``, statistics of training features, and
the spread of every class at each evaluation (``spread.jsonl``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from classmargin._files import LONG_FILE, read_json
from classmargin.data import make_loader
from classmargin.evaluation.class_metrics import TIERS, tier_codes
from classmargin.evaluation.feature_geometry import ClassGeometry, FeatureSums, class_geometry
from classmargin.recipes.run_parts import load_bundle
from classmargin.recipes.saved_model import load_model
from classmargin.training.metric_logs import Evaluation, json_line
from classmargin.training.run_folder import RunFolder

if TYPE_CHECKING:
    from classmargin.recipes.run_parts import RunParts

Values = npt.NDArray[np.float64]


def class_column(runs: Sequence[RunFolder], name: str) -> Values:
    """Return a column of the class table, mean over runs ``[K]``; NaN where a run does not tell."""
    found = []
    for run in runs:
        rows = read_audit_part(run, "by_class")
        found.append([np.nan if row[name] is None else float(row[name]) for row in rows])
    return np.asarray(np.mean(found, axis=0))


def read_audit_part(run: RunFolder, part: str) -> Any:
    """Return one part of the audit that a run keeps.

    Raises:
        ValueError: The file is missing or damaged.
    """
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
    means = {}
    for name, classes in thirds_of(accuracy).items():
        known = values[classes][~np.isnan(values[classes])]
        means[name] = float(known.mean()) if len(known) else None
    return means


GEOMETRY_BATCH = 256


def training_geometry(folder: RunFolder) -> ClassGeometry:
    """Return spread and means of each class over the training samples, without augmentation.

    Raises:
        ValueError: The run has no readable checkpoint, or its data are gone.
    """
    model = load_model(folder.path)
    bundle = load_bundle(model.config)
    bundle = replace(bundle, mean=model.record.mean, std=model.record.std)
    sums = FeatureSums.empty(bundle.num_classes, model.backbone.feature_dim, 2.0)
    loader = make_loader(bundle, "train", batch_size=GEOMETRY_BATCH, training=False)
    with torch.inference_mode():
        for batch in loader.epoch(0):
            sums.add(model.backbone(batch.inputs).features.numpy(), batch.labels.numpy())
    return class_geometry(sums)


SPREAD_FILE = "spread.jsonl"


class SpreadLog:
    """Notes ``‖ŝ_y‖²`` of the validation samples; one line per evaluation.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / SPREAD_FILE
        self._session: RunParts | None = None

    def attach(self, session: RunParts) -> None:
        """Learn which network and samples to watch.

        Raises:
            ValueError: There are no validation samples to measure on.
        """
        if len(session.bundle.split("validation")) == 0:
            raise ValueError("watching spreads needs validation samples; set data.validation above 0")
        self._session = session

    def log(self, evaluation: Evaluation) -> None:
        """Measure and append a line."""
        session = self._session
        assert session is not None, "attached before training begins"
        # Only the first process writes; it looks at all samples, not at its share of them.
        loader = replace(session.loaders, rank=0, world_size=1).evaluation("validation")
        assert loader is not None, "checked when attached"
        network = session.network
        device = next(network.parameters()).device
        sums = FeatureSums.empty(session.bundle.num_classes, network.feature_dim, 2.0)
        was_training = network.training
        network.eval()
        with torch.inference_mode():
            for batch in loader.epoch(0):
                output = network(batch.inputs.to(device))
                sums.add(output.features.float().cpu().numpy(), batch.labels.numpy())
        network.train(was_training)
        line = {"epoch": evaluation.epoch, "spread": class_geometry(sums).spread.tolist()}
        with self._file.open("a+b") as file:
            # A killed writer or a full disk may have left half a line; the next one must not continue it.
            file.write(b"\n" * _is_cut(file) + json_line(line).encode())

    def close(self) -> None:
        """Nothing is held open."""


def _is_cut(file: IO[bytes]) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
