"""Which of several checkpoints or runs to keep: named rules, so that a result says how its model was chosen.

A record is ``{"validation": {...}, "test": {...}}`` with headline numbers (an audit's ``overall``, ``hard``, ``worst``, …) of one
candidate, in order of time. A rule that looks at the test set carries "oracle" in its name; what it selects is an upper limit, never a
result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real  # NumPy's numbers are among them
from typing import Any

from classmargin._checks import check_choice


@dataclass(frozen=True)
class SelectionRule:
    """How a record is chosen.

    Attributes:
        split: Part of the record that is looked at, or ``None`` for the last record.
        metric: Number that is compared.
        higher_is_better: Direction.
    """

    split: str | None
    metric: str = ""
    higher_is_better: bool = True


RULES: Mapping[str, SelectionRule] = {
    "last": SelectionRule(None),
    "best_overall_validation": SelectionRule("validation", "overall"),
    "best_hard_validation": SelectionRule("validation", "hard"),
    "best_worst_validation": SelectionRule("validation", "worst"),
    "smallest_gap_validation": SelectionRule("validation", "gap", higher_is_better=False),
    "oracle_best_overall_test": SelectionRule("test", "overall"),
    "oracle_best_hard_test": SelectionRule("test", "hard"),
    "oracle_best_worst_test": SelectionRule("test", "worst"),
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
    if chosen.split is None:
        return len(records) - 1
    values = [_number(record, position, chosen) for position, record in enumerate(records)]
    best = max(values) if chosen.higher_is_better else min(values)
    return values.index(best)


def _number(record: Mapping[str, Any], position: int, rule: SelectionRule) -> float:
    part = record.get(rule.split or "")
    value = getattr(part, rule.metric, None) if not isinstance(part, Mapping) else part.get(rule.metric)
    if not isinstance(value, Real) or math.isnan(value):
        raise ValueError(f"records[{position}] must hold a number {rule.split}.{rule.metric}, got {value!r}")
    return float(value)
