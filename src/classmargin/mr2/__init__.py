"""The method: tensors in, tensors out."""

from classmargin.mr2.class_margins import class_margins
from classmargin.mr2.class_moments import ClassMoments, class_moments
from classmargin.mr2.class_statistics import ClassStatistics
from classmargin.mr2.collapse import FeatureCollapseWarning
from classmargin.mr2.logit_margin import margin_cross_entropy
from classmargin.mr2.objective import MR2Loss
from classmargin.mr2.presets import PRESETS
from classmargin.mr2.representation_margin import hard_representation_margin, representation_margin

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
