"""The audit's numbers as torchmetrics: ``ClassTiers``, ``WorstClassAccuracy``, ``ClassAccuracyGini``.

Real :class:`torchmetrics.Metric` classes: they sum over processes, work in a ``MetricCollection`` (where the three share one
state), in ``forward`` and in ``self.log`` of Lightning. State: right and all samples of each class, which add up exactly.
Values are those of :func:`classmargin.audit`, by the same code.

    metrics = MetricCollection([ClassTiers(num_classes=10), WorstClassAccuracy(num_classes=10)])
    metrics.update(logits, labels)
    metrics.compute()   # {"easy": ..., "medium": ..., "hard": ..., "WorstClassAccuracy": ...}

The classes are loaded when first asked for, so that this module can be imported without torchmetrics.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classmargin.integrations.torchmetrics_metrics import ClassAccuracyGini as ClassAccuracyGini
    from classmargin.integrations.torchmetrics_metrics import ClassTiers as ClassTiers
    from classmargin.integrations.torchmetrics_metrics import WorstClassAccuracy as WorstClassAccuracy

NAMES = ("ClassTiers", "WorstClassAccuracy", "ClassAccuracyGini")


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("classmargin.integrations.torchmetrics_metrics"), name)


def __dir__() -> list[str]:
    return sorted(NAMES)
