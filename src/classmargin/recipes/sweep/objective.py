"""What a sweep maximises, and what it must not lose: both read from evaluations on validation.

``hard``, or a mix ``hard:0.7,overall:0.3`` whose weights are brought to the sum one. The constraint says that
the easy third must not drop below that of a reference run (by default ERM under the same settings).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from classmargin._checks import check_choice

METRICS = ("overall", "easy", "medium", "hard", "worst")
# Thirds need three classes; what is left of fewer has no hard third.
CLASSES_FOR_THIRDS = 3


@dataclass(frozen=True)
class Objective:
    """A weighted mean of accuracies on validation.

    Attributes:
        weights: ``{"hard": 0.7, "overall": 0.3}``; they sum to one.
    """

    weights: Mapping[str, float]

    @property
    def name(self) -> str:
        """How it is written on the command line."""
        if len(self.weights) == 1:
            return next(iter(self.weights))
        return ",".join(f"{metric}:{weight:g}" for metric, weight in self.weights.items())

    def value(self, accuracies: Mapping[str, Any]) -> float:
        """Return the value for the accuracies of one evaluation; NaN if one of them is missing.

        Example:
            >>> parse_objective("hard:3,overall:1").value({"hard": 0.4, "overall": 0.8})
            0.5
        """
        known = {metric: accuracies.get(metric) for metric in self.weights}
        if any(accuracy is None for accuracy in known.values()):
            return math.nan
        return math.fsum(weight * float(known[metric] or 0.0) for metric, weight in self.weights.items())

    def check_classes(self, num_classes: int) -> None:
        """Refuse thirds where there are too few classes for them."""
        thirds = [metric for metric in self.weights if metric in ("easy", "medium", "hard")]
        if thirds and num_classes < CLASSES_FOR_THIRDS:
            raise ValueError(
                f"--objective {thirds[0]} needs at least {CLASSES_FOR_THIRDS} classes, the data has {num_classes}; "
                "use overall or worst"
            )


def parse_objective(text: str) -> Objective:
    """Read ``hard`` or ``hard:0.7,overall:0.3``.

    Raises:
        ValueError: Unknown metric (with the nearest known one), or a weight that is not above zero.

    Example:
        >>> parse_objective("hard:7, overall:3").name
        'hard:0.7,overall:0.3'
    """
    weights: dict[str, float] = {}
    for piece in text.split(","):
        metric, colon, number = (word.strip() for word in piece.partition(":"))
        check_choice("--objective", metric, METRICS)
        if metric in weights:
            raise ValueError(f"--objective names {metric} more than once, got {text!r}")
        weights[metric] = _weight(number, text) if colon else 1.0
    total = sum(weights.values())
    return Objective({metric: weight / total for metric, weight in weights.items()})


def _weight(number: str, text: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"--objective wants weights above 0, e.g. hard:0.7,overall:0.3; got {text!r}")
    return weight


def easy_violation(accuracies: Mapping[str, Any], reference_easy: float, slack: float) -> float:
    """Return by how much the easy third falls below the reference minus ``slack``; zero or less is fine.

    Both thirds are ranked by each run's own accuracies, as everywhere in the paper: ranking both by the
    reference would charge the trial for the luck of the reference's best classes.

    Example:
        >>> easy_violation({"easy": 0.75}, reference_easy=0.875, slack=0.0)
        0.125
    """
    easy = accuracies.get("easy")
    return math.inf if easy is None else reference_easy - slack - float(easy)
