"""Doubted training samples: what networks that have not seen them say, and what follows from it.

The training part is cut into folds, and an ordinary run is made without each of them. A label is doubted by the rule of the audit
(confident learning). Such a sample gets the probabilities of those networks as its label, or is left out. No sample of validation or
test is touched.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin.data import DataBundle
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.training.evaluate import write_predictions


def doubted_samples(bundle: DataBundle, pooled: Path) -> tuple[Any, Any]:
    """Return which training samples are doubted, by position, and class probabilities of all of them ``[N, K]``."""
    found = read_predictions(pooled)
    assert found.probabilities is not None
    order = np.argsort(np.argsort(bundle.train.index.numpy()))  # the file is in the order of the index
    labels, probabilities = np.asarray(found.labels)[order], np.asarray(found.probabilities)[order]
    seen = audit(labels, probabilities=probabilities, class_names=bundle.class_names, bootstrap=0, ranking="own")
    doubted = seen.samples.loc[seen.samples["kind"] == "doubted label", "position"]
    return np.sort(doubted.to_numpy()), probabilities


def write_relabelled(bundle: DataBundle, doubted: Any, probabilities: Any, file: Path) -> None:
    """Write class probabilities for all training samples, as ``data.soft_labels`` reads them."""
    labels = bundle.train.labels.numpy()
    targets = np.eye(bundle.num_classes)[labels]
    targets[doubted] = probabilities[doubted]
    write_predictions(
        file,
        {
            "labels": labels,
            "sample_id": bundle.train.index.numpy(),
            "class_names": np.array(bundle.class_names, dtype=np.str_),
            "probabilities": targets.astype(np.float32),
        },
    )


def write_left_out(bundle: DataBundle, doubted: Any, file: Path) -> None:
    """Write which training samples are doubted, as ``data.left_out`` reads them."""
    index, labels = bundle.train.index.numpy(), bundle.train.labels.numpy()
    with atomic_path(file) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["sample_id", "class_name"])
        writer.writerows((index[row], bundle.class_names[labels[row]]) for row in doubted)
