"""classmargin: the toolkit for classifiers that leave some classes behind.

Public names are loaded when first used, so that ``import classmargin`` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.5.0"

if TYPE_CHECKING:
    from classmargin import functional, theory
    from classmargin._types import LossTerms, ModelOutput
    from classmargin.evaluation import Audit, Comparison, compare
    from classmargin.evaluation.auditing import audit, audit_model
    from classmargin.integrations.capture import FeatureCapture, capture_features
    from classmargin.integrations.sklearn_classifier import MR2Classifier
    from classmargin.integrations.sklearn_offsets import ClassOffsetClassifier
    from classmargin.mr2 import ClassStatistics, FeatureCollapseWarning, MR2Loss
    from classmargin.recipes.improve.improvement import Improvement
    from classmargin.recipes.improve.improving import improve

_NAMES_IN = {
    "_types": ("LossTerms", "ModelOutput"),
    "evaluation": ("Audit", "Comparison", "audit", "compare"),
    "evaluation.auditing": ("audit_model",),
    "integrations.capture": ("FeatureCapture", "capture_features"),
    "integrations.sklearn_classifier": ("MR2Classifier",),
    "integrations.sklearn_offsets": ("ClassOffsetClassifier",),
    "mr2": ("ClassStatistics", "FeatureCollapseWarning", "MR2Loss"),
    "recipes.improve.improvement": ("Improvement",),
    "recipes.improve.improving": ("improve",),
}

__all__ = [
    "Audit",
    "ClassOffsetClassifier",
    "ClassStatistics",
    "Comparison",
    "FeatureCapture",
    "FeatureCollapseWarning",
    "Improvement",
    "LossTerms",
    "MR2Classifier",
    "MR2Loss",
    "ModelOutput",
    "__version__",
    "audit",
    "audit_model",
    "capture_features",
    "compare",
    "functional",
    "improve",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name in ("functional", "theory"):
        return importlib.import_module(f"classmargin.{name}")
    for home, names in _NAMES_IN.items():
        if name in names:
            return getattr(importlib.import_module(f"classmargin.{home}"), name)
    raise AttributeError(f"module 'classmargin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
