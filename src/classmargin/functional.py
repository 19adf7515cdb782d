"""Every pure function under one import: ``import classmargin.functional as CF``."""

from classmargin.mr2 import (
    class_margins,
    class_moments,
    hard_representation_margin,
    margin_cross_entropy,
    representation_margin,
)

__all__ = [
    "class_margins",
    "class_moments",
    "hard_representation_margin",
    "margin_cross_entropy",
    "representation_margin",
]
