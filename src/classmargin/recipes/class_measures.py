"""What finished runs say about single classes: columns of the class tables in ``audit.json``, and statistics of training features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from classmargin._files import LONG_FILE, read_json
from classmargin.data import make_loader
from classmargin.evaluation.feature_geometry import ClassGeometry, FeatureSums, class_geometry
from classmargin.evaluation.tiers import TIERS, tier_codes
from classmargin.recipes.run_parts import load_bundle
from classmargin.recipes.saved_model import load_model
from classmargin.training.run_folder import RunFolder

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
    from dataclasses import replace

    model = load_model(folder.path)
    bundle = load_bundle(model.config)
    bundle = replace(bundle, mean=model.record.mean, std=model.record.std)
    sums = FeatureSums.empty(bundle.num_classes, model.backbone.feature_dim, 2.0)
    loader = make_loader(bundle, "train", batch_size=GEOMETRY_BATCH, training=False)
    with torch.inference_mode():
        for batch in loader.epoch(0):
            sums.add(model.backbone(batch.inputs).features.numpy(), batch.labels.numpy())
    return class_geometry(sums)
