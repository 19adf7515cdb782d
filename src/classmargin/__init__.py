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

_HOME_OF = {
    "Audit": "classmargin.evaluation",
    "ClassOffsetClassifier": "classmargin.integrations.sklearn_offsets",
    "ClassStatistics": "classmargin.mr2",
    "Comparison": "classmargin.evaluation",
    "FeatureCapture": "classmargin.integrations.capture",
    "FeatureCollapseWarning": "classmargin.mr2",
    "Improvement": "classmargin.recipes.improve.improvement",
    "LossTerms": "classmargin._types",
    "MR2Classifier": "classmargin.integrations.sklearn_classifier",
    "MR2Loss": "classmargin.mr2",
    "ModelOutput": "classmargin._types",
    "audit": "classmargin.evaluation",
    "audit_model": "classmargin.evaluation.auditing",
    "capture_features": "classmargin.integrations.capture",
    "compare": "classmargin.evaluation",
    "improve": "classmargin.recipes.improve.improving",
}
_MODULES = ("functional", "theory")

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
    if name in _MODULES:
        return importlib.import_module(f"classmargin.{name}")
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'classmargin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
