"""The audit's numbers as torchmetrics: ``ClassTiers``, ``WorstClassAccuracy``, ``ClassAccuracyGini``.

    metrics = MetricCollection([ClassTiers(num_classes=10), WorstClassAccuracy(num_classes=10)])
    metrics.update(logits, labels)
    metrics.compute()   # {"easy": ..., "medium": ..., "hard": ..., "WorstClassAccuracy": ...}

Their state, which a collection shares, counts right samples and all samples per class, which add up exactly; values are
those of :func:`classmargin.audit`, by the same code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_int, require_extra
from classmargin.evaluation.class_metrics import TIERS
from classmargin.integrations.class_counts import accuracy_gini, count_classes, headlines

require_extra("torchmetrics", "torchmetrics", "the metrics of classmargin")

from torchmetrics import Metric  # noqa: E402


class ClassCounts(Metric):
    """Keeps the counts; subclasses compute a number from them."""

    is_differentiable = False
    full_state_update = False
    counts: Tensor

    def __init__(self, num_classes: int, *, ignore_index: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.ignore_index = ignore_index
        self.add_state("counts", torch.zeros(2, num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take logits or probabilities ``[B, K]``, or classes ``[B]``, and true classes ``[B]``."""
        self.counts += count_classes(preds, target, self.num_classes, self.ignore_index)

    def _number(self, value: float) -> Tensor:
        device = self.counts.device
        # float64 as in the audit, wherever the device has it
        return torch.tensor(value, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


class ClassTiers(ClassCounts):
    """Mean accuracy of the easy, medium and hard third of the classes, ranked by the same accuracies.

    ``compute`` returns ``{"easy", "medium", "hard"}``; a third without classes is NaN.

    Args:
        num_classes: ``K``.
        ignore_index: Label of rows that do not count.
        **settings: Arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = ClassTiers(num_classes=3)
        >>> metric.update(torch.tensor([0, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2]))
        >>> {name: value.item() for name, value in metric.compute().items()}
        {'easy': 1.0, 'medium': 0.5, 'hard': 0.0}
    """

    higher_is_better = True

    def compute(self) -> dict[str, Tensor]:
        """Return the three means."""
        values = headlines(self.counts)
        return {name: self._number(values[name]) for name in TIERS}


class WorstClassAccuracy(ClassCounts):
    """Lowest accuracy of a class with samples. Arguments are those of :class:`ClassTiers`."""

    higher_is_better = True

    def compute(self) -> Tensor:
        """Return the lowest accuracy."""
        return self._number(headlines(self.counts)["worst"])


class ClassAccuracyGini(ClassCounts):
    """Gini index of the class accuracies; 0 = all classes are equal. Arguments are those of :class:`ClassTiers`."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Return the Gini index."""
        return self._number(accuracy_gini(self.counts))
