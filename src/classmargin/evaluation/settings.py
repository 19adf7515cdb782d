"""What the caller of an audit may choose, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from classmargin._checks import check_choice, check_int, check_number
from classmargin.evaluation.inputs import FloatArray, check_fraction, to_array
from classmargin.evaluation.named_classes import shared_names
from classmargin.evaluation.tiers import RANKINGS


@dataclass(frozen=True)
class AuditSettings:
    """Choices of an audit.

    Attributes:
        ranking: "own", "reference" or "crossfit".
        reference: Class accuracies ``[K]`` that rank the classes, for "reference".
        confidence: Level of the intervals, in (0, 1).
        bootstrap: Number of resampled copies; 0 leaves intervals of the headline numbers out (NaN).
        seed: Seed of all random draws.
        mean_margin: Mean of the margins γ shown in the class table.
    """

    ranking: str
    reference: FloatArray | None
    confidence: float
    bootstrap: int
    seed: int
    mean_margin: float


def check_settings(
    num_classes: int,
    *,
    ranking: str = "own",
    reference: Any = None,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
    mean_margin: float = 1.0,
    class_names: tuple[str, ...] | None = None,
) -> AuditSettings:
    """Return checked settings; ``reference`` may be an audit (of the same ``class_names``) or class accuracies ``[K]``."""
    check_choice("ranking", ranking, RANKINGS)
    if (ranking == "reference") != (reference is not None):
        raise ValueError(
            'ranking="reference" and reference (an audit or one accuracy a class) go together, '
            f"got ranking={ranking!r} {'without' if reference is None else 'with'} reference"
        )
    return AuditSettings(
        ranking=ranking,
        reference=None if reference is None else _reference_accuracy(reference, num_classes, class_names),
        confidence=check_fraction("confidence", confidence),
        bootstrap=check_int("bootstrap", bootstrap, minimum=0),
        seed=check_int("seed", seed, minimum=0),
        mean_margin=check_number("mean_margin", mean_margin, above=0.0),
    )


def _reference_accuracy(reference: Any, num_classes: int, class_names: tuple[str, ...] | None) -> FloatArray:
    values = reference
    if hasattr(reference, "by_class"):
        values = reference.by_class["accuracy"]
        if class_names is not None and len(reference.class_names) == num_classes:
            shared_names([class_names, reference.class_names])
    array = to_array("reference", values).astype(np.float64)
    if array.shape != (num_classes,):
        raise ValueError(f"reference must hold one accuracy a class ({num_classes}), got shape {array.shape}")
    if np.isinf(array).any() or (array < 0).any() or (array > 1).any():
        raise ValueError("reference must hold accuracies in [0, 1] (NaN for unknown classes)")
    return array
