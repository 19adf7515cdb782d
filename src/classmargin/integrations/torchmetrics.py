"""The audit's numbers as torchmetrics: ``ClassTiers``, ``WorstClassAccuracy``, ``ClassAccuracyGini``.

Real :class:`torchmetrics.Metric` classes: they sum over processes, work in a ``MetricCollection`` (where the three share one
state), in ``forward`` and in ``self.log`` of Lightning. State: right and all samples of each class, which add up exactly.
Values are those of :func:`classmargin.audit`, by the same code.

    metrics = MetricCollection([ClassTiers(num_classes=10), WorstClassAccuracy(num_classes=10)])
    metrics.update(logits, labels)
    metrics.compute()   # {"easy": ..., "medium": ..., "hard": ..., "WorstClassAccuracy": ...}

The classes are made when first asked for, so that this module can be imported without torchmetrics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from classmargin._checks import check_int, require_extra
from classmargin.integrations.class_counts import accuracy_gini, count_classes, thirds, worst_class

NAMES = ("ClassTiers", "WorstClassAccuracy", "ClassAccuracyGini")


def _number(value: float, device: torch.device) -> Tensor:
    # float64 as in the audit, wherever the device has it
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.tensor(value, dtype=dtype, device=device)


def _make_classes() -> dict[str, type]:
    torchmetrics = require_extra("torchmetrics", "torchmetrics", "the metrics of classmargin")

    class ClassCounts(torchmetrics.Metric):  # type: ignore[misc, name-defined]
        """Keeps the counts; subclasses say what is made of them.

        Args:
            num_classes: ``K``.
            ignore_index: Label of rows that do not count.
            **settings: Arguments of ``torchmetrics.Metric``.
        """

        is_differentiable = False
        full_state_update = False
        counts: Tensor

        def __init__(self, num_classes: int, *, ignore_index: int | None = None, **settings: Any) -> None:
            super().__init__(**settings)
            self.num_classes = check_int("num_classes", num_classes, minimum=1)
            self.ignore_index = ignore_index
            empty = torch.zeros(2, num_classes, dtype=torch.long)
            self.add_state("counts", default=empty, dist_reduce_fx="sum")

        def update(self, preds: Tensor, target: Tensor) -> None:
            """Take logits or probabilities ``[B, K]``, or classes ``[B]``, and true classes ``[B]``."""
            self.counts += count_classes(preds, target, self.num_classes, self.ignore_index)

    class ClassTiers(ClassCounts):
        """Mean accuracy of the easy, medium and hard third of the classes, ranked by the same accuracies.

        ``compute`` returns ``{"easy", "medium", "hard"}``; a third without classes is NaN.
        """

        higher_is_better = True

        def compute(self) -> dict[str, Tensor]:
            """Return the three means."""
            return {name: _number(value, self.counts.device) for name, value in thirds(self.counts).items()}

    class WorstClassAccuracy(ClassCounts):
        """Lowest accuracy of a class with samples."""

        higher_is_better = True

        def compute(self) -> Tensor:
            """Return it, scalar."""
            return _number(worst_class(self.counts), self.counts.device)

    class ClassAccuracyGini(ClassCounts):
        """Gini index of the class accuracies; 0 = all classes are equal."""

        higher_is_better = False

        def compute(self) -> Tensor:
            """Return it, scalar."""
            return _number(accuracy_gini(self.counts), self.counts.device)

    made: dict[str, type] = {
        metric.__name__: metric for metric in (ClassTiers, WorstClassAccuracy, ClassAccuracyGini)
    }
    for name, metric in made.items():  # pickles find a class by its module and name
        metric.__module__, metric.__qualname__ = __name__, name
    return made


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_make_classes())
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(NAMES)
