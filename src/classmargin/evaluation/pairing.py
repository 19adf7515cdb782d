"""Bringing the runs of two models to the same samples in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.inputs import AnyArray, IntArray
from classmargin.evaluation.named_classes import shared_names


def paired_correctness(audits: Sequence[Audit]) -> tuple[IntArray, AnyArray]:
    """Return the shared labels ``[N]`` and which model is right on which sample ``[N, M]`` (bool).

    Samples are matched by ``sample_id`` where every audit has them, by position where none has.

    Raises:
        ValueError: Different classes, different samples, or different labels for the same sample.
    """
    first = audits[0]
    shared_class_names(audits)
    with_id = [audit.sample_id is not None for audit in audits]
    if any(with_id) and not all(with_id):
        raise ValueError("sample_id must be given for all compared models or for none")
    # Numbers in one file may be text in another, and text sorts otherwise: one text makes all of them text.
    as_text = any(audit.sample_id is not None and audit.sample_id.dtype.kind in "US" for audit in audits)
    orders = [_order(audit, as_text=as_text) for audit in audits]
    labels = first.labels[orders[0]]
    columns = []
    for audit, order in zip(audits, orders, strict=True):
        _check_same_samples(first, orders[0], audit, order)
        columns.append((audit.labels == audit.predictions)[order])
    return labels, np.stack(columns, axis=1)


def shared_class_names(audits: Sequence[Audit]) -> tuple[str, ...]:
    """Return the names of the classes that all models know; a model that was given none goes along with the others.

    Raises:
        ValueError: Another number of classes, or other names.
    """
    return shared_names([audit.class_names for audit in audits])


def _order(audit: Audit, *, as_text: bool) -> IntArray:
    if audit.sample_id is None:
        return np.arange(audit.num_samples)
    return np.argsort(audit.sample_id.astype(str) if as_text else audit.sample_id, kind="stable")


def _check_same_samples(first: Audit, first_order: IntArray, other: Audit, order: IntArray) -> None:
    if other.num_samples != first.num_samples:
        raise ValueError(
            f"the models must be evaluated on the same samples, got {first.num_samples} and {other.num_samples} samples"
        )
    if first.sample_id is not None and other.sample_id is not None:
        same = first.sample_id[first_order].astype(str) == other.sample_id[order].astype(str)
        if not same.all():
            raise ValueError(
                f"the models must be evaluated on the same samples, but {int((~same).sum())} of {len(same)} "
                "values of sample_id have no partner"
            )
    wrong = first.labels[first_order] != other.labels[order]
    if wrong.any():
        raise ValueError(
            f"the models must be evaluated on the same samples, but {int(wrong.sum())} of {len(wrong)} labels differ"
            + ("" if first.sample_id is not None else " (give sample_id if only the order differs)")
        )
