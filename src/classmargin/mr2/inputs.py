"""What comes into the objective: checked, grouped by class, and without the rows that are to be ignored."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from classmargin._checks import check_floating, check_label_shape
from classmargin.mr2.class_groups import Groups, group_compact, group_dense, uses_dense_layout
from classmargin.mr2.logit_margin import check_targets


class GroupedBatch(NamedTuple):
    """A batch with hard labels, ready for statistics and losses.

    Attributes:
        logits: ``[B, K]``.
        labels: Classes ``[B]``, valid everywhere.
        features: ``[B, d]``.
        groups: Rows by class.
        row_weight: 0 for rows to ignore where rows cannot be dropped ``[B]``; None where all count.
    """

    logits: Tensor
    labels: Tensor
    features: Tensor
    groups: Groups
    row_weight: Tensor | None


def check_batch(
    logits: Tensor, labels: Tensor, features: Tensor, num_classes: int, feature_dim: int | None
) -> None:
    """Check shapes and types of one call."""
    check_floating("logits", logits, dim=2)
    check_floating("features", features, dim=2)
    rows = logits.shape[0]
    if logits.shape[1] != num_classes:
        raise ValueError(
            f"logits must have {num_classes} columns (num_classes), got shape {tuple(logits.shape)}"
        )
    if features.shape[0] != rows:
        raise ValueError(f"features must have {rows} rows like logits, got shape {tuple(features.shape)}")
    if feature_dim is not None and features.shape[1] != feature_dim:
        raise ValueError(
            f"features must have {feature_dim} columns (feature_dim), got shape {tuple(features.shape)}"
        )
    if isinstance(labels, Tensor) and labels.is_floating_point():
        check_targets(labels, batch=rows, num_classes=num_classes, ignore_index=None)
    else:  # the range is checked where the labels are sorted anyway
        check_label_shape("labels", labels, batch=rows)


def group_batch(
    logits: Tensor, labels: Tensor, features: Tensor, num_classes: int, ignore_index: int
) -> GroupedBatch:
    """Group rows by class and leave out ignored ones.

    On the CPU ignored rows are really dropped; where shapes must not depend on values they get weight 0.
    """
    if uses_dense_layout(labels):
        keep = labels != ignore_index
        weight = keep.to(features.dtype)
        labels = labels.masked_fill(~keep, 0)
        return GroupedBatch(logits, labels, features, group_dense(labels, num_classes, weight), weight)
    groups = group_compact(labels)
    if 0 <= ignore_index < num_classes or not groups.all_within(num_classes):
        check_targets(labels, batch=labels.shape[0], num_classes=num_classes, ignore_index=ignore_index)
        keep = labels != ignore_index
        logits, labels, features = logits[keep], labels[keep], features[keep]
        groups = group_compact(labels)
    return GroupedBatch(logits, labels, features, groups, None)
