"""Which of several checkpoints or runs to keep: named rules, so that a result says how its model was chosen.

A record is ``{"validation": {...}, "test": {...}}`` with headline numbers (an audit's ``overall``, ``hard``, ``worst``, …) of one
candidate, in order of time. A rule that looks at the test set carries "oracle" in its name; what it selects is an upper limit, never a
result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real  # NumPy's numbers are among them
from typing import Any

from classmargin._checks import check_choice

# Name -> (part of the record that is looked at, number that is compared, its best value); the last record needs none.
RULES: Mapping[str, tuple[str, str, Callable[[list[float]], float]] | None] = {
    "last": None,
    "best_overall_validation": ("validation", "overall", max),
    "best_hard_validation": ("validation", "hard", max),
    "best_worst_validation": ("validation", "worst", max),
    "smallest_gap_validation": ("validation", "gap", min),
    "oracle_best_overall_test": ("test", "overall", max),
    "oracle_best_hard_test": ("test", "hard", max),
    "oracle_best_worst_test": ("test", "worst", max),
}


def select(records: Sequence[Mapping[str, Any]], rule: str) -> int:
    """Return the position of the record that a rule selects; of equals the earliest.

    Args:
        records: Candidates in order of time.
        rule: Name of a rule, see ``RULES``.

    Raises:
        ValueError: Unknown rule, no record, or a record without the number the rule needs.

    Example:
        >>> epochs = [{"validation": {"hard": 0.5}}, {"validation": {"hard": 0.6}}, {"validation": {"hard": 0.6}}]
        >>> select(epochs, "best_hard_validation"), select(epochs, "last")
        (1, 2)
    """
    chosen = RULES[check_choice("rule", rule, RULES)]
    if not records:
        raise ValueError("records must hold at least one record, got none")
    if chosen is None:
        return len(records) - 1
    split, metric, best = chosen
    values = []
    for k, record in enumerate(records):
        part: Any = record.get(split)
        value = part.get(metric) if isinstance(part, Mapping) else getattr(part, metric, None)
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"records[{k}] must hold a number {split}.{metric}, got {value!r}")
        values.append(float(value))
    return values.index(best(values))
