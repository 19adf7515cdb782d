"""Which training samples a run sees: not those of one fold, not those that are left out; and which classes are augmented less."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import check_choice
from classmargin._files import read_text
from classmargin.data import DataBundle
from classmargin.training.config import DataConfig


def chosen_samples(bundle: DataBundle, data: DataConfig) -> DataBundle:
    """Return the data with ``data.fold`` in place of the validation samples, and without ``data.left_out``."""
    if data.fold:
        held = fold_numbers(bundle.train.labels.numpy(), data.fold[1]) == data.fold[0]
        bundle = replace(bundle, validation=bundle.train.take(held), train=bundle.train.take(~held))
    if data.left_out is not None:
        kept = ~np.isin(bundle.train.index.numpy(), _sample_ids(data.left_out))
        bundle = replace(bundle, train=bundle.train.take(kept))
    return bundle


def fold_numbers(labels: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Return the fold of each sample ``[N]``; every class is spread evenly."""
    numbers = np.empty(len(labels), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        numbers[rows] = np.arange(len(rows)) % folds
    return numbers


def _sample_ids(path: str) -> NDArray[np.int64]:
    try:
        rows = csv.DictReader(read_text(path).splitlines())
        return np.array([int(row["sample_id"]) for row in rows], dtype=np.int64)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"data.left_out={path!r} must be a CSV file with a column sample_id of numbers ({error})"
        ) from error


def spared_classes(bundle: DataBundle, data: DataConfig) -> tuple[int, ...]:
    """Return the classes that are augmented less; unknown names, and data that are not augmented at all, are refused."""
    if data.spared_classes and (bundle.kind != "images" or data.augmentation == "none"):
        raise ValueError(
            f"data.spared_classes names classes that are augmented less, but {bundle.name} is not augmented at all"
        )
    known = list(bundle.class_names)
    return tuple(known.index(check_choice("data.spared_classes", name, known)) for name in data.spared_classes)
