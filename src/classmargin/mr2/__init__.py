"""The method: tensors in, tensors out."""

from classmargin.mr2.equations import (
    class_margins,
    hard_representation_margin,
    margin_cross_entropy,
    representation_margin,
)
from classmargin.mr2.health import FeatureCollapseWarning
from classmargin.mr2.loss import MR2Loss
from classmargin.mr2.settings import PRESETS
from classmargin.mr2.statistics import ClassMoments, ClassStatistics, class_moments

__all__ = [
    "PRESETS",
    "ClassMoments",
    "ClassStatistics",
    "FeatureCollapseWarning",
    "MR2Loss",
    "class_margins",
    "class_moments",
    "hard_representation_margin",
    "margin_cross_entropy",
    "representation_margin",
]
