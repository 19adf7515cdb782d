"""New labels for doubted training samples: predictions by networks that have not seen them, and what follows from those.

The training part is cut into folds; each fold is the test part of a data set of its own, on which an ordinary run is made. A label is
doubted by the rule of the audit (confident learning); it then becomes the probabilities that the network gave. No sample of validation
or test is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from classmargin._atomic import atomic_path
from classmargin.data import DataBundle
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.improve.judging import log_probabilities
from classmargin.recipes.improve.remedies import FOLDS, lay
from classmargin.training.config import RunConfig
from classmargin.training.evaluate import write_predictions
from classmargin.training.run_folder import RunFolder


def fold_numbers(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the fold of each sample ``[N]``; every class is spread evenly.

    Example:
        >>> np.bincount(fold_numbers(np.zeros(7, dtype=np.int64))).tolist()
        [3, 2, 2]
    """
    folds = np.empty(len(labels), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        folds[rows] = np.arange(len(rows)) % FOLDS
    return folds


def write_folds(bundle: DataBundle, folder: Path) -> list[Path]:
    """Write one data set per fold, with that fold as its test part; those that are there are left alone."""
    assert bundle.train.inputs is not None
    inputs, labels = bundle.train.inputs.numpy(), bundle.train.labels.numpy()
    folds = fold_numbers(labels)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"fold{number}.npz" for number in range(FOLDS)]
    for number, file in enumerate(files):
        if file.exists():
            continue
        held = folds == number
        with atomic_path(file) as temporary:
            np.savez(
                temporary,
                x_train=inputs[~held],
                y_train=labels[~held],
                x_test=inputs[held],
                y_test=labels[held],
                class_names=np.array(bundle.class_names, dtype=np.str_),
            )
    return files


def fold_configs(config: RunConfig, bundle: DataBundle, files: Sequence[Path]) -> list[RunConfig]:
    """Return the run of each fold: the given settings on its data."""
    data = {
        "root": None,
        "fraction": 1.0,
        "imbalance": 1.0,
        "validation": 0.0,
        "flip": bundle.flip and config.data.flip,
        "allow_absent": True,
    }
    loop = {"select": "last"}
    return [lay(config, {"data": {**data, "name": str(file)}, "loop": loop}) for file in files]


def relabelled(bundle: DataBundle, runs: Sequence[RunFolder], file: Path) -> int:
    """Write class probabilities for all training samples and return how many labels were doubted.

    Args:
        bundle: The data.
        runs: One finished run per fold.
        file: Where the labels go, as ``data.soft_labels`` reads them.
    """
    labels = bundle.train.labels.numpy()
    folds = fold_numbers(labels)
    probabilities = np.empty((len(labels), bundle.num_classes))
    for number, run in enumerate(runs):
        found = read_predictions(run.predictions_file)
        assert found.sample_id is not None
        rows = np.flatnonzero(folds == number)
        probabilities[rows[np.asarray(found.sample_id)]] = np.exp(log_probabilities(found))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    seen = audit(
        labels, probabilities=probabilities, class_names=bundle.class_names, bootstrap=0, ranking="own"
    )
    frame = seen.samples
    doubted = frame.loc[frame["kind"] == "doubted label", "position"].to_numpy()
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
    return len(doubted)
