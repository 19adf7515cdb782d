"""A release gate with a noise band: fails on drops that are large *and* supported by the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import compare
from classmargin.evaluation.plain import fields_to_plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class GateResult:
    """Decision of the gate.

    Attributes:
        passed: Whether the candidate may pass.
        reasons: Why it failed, one sentence a reason; empty when passed.
        power: What the gate could have seen, one sentence, e.g. "a 5-point drop in one class of 100 samples would be
            caught with probability 0.31".
        power_table: ``drop``, ``n``, ``probability``.
        by_class: ``class_name``, ``n``, ``baseline``, ``candidate``, ``difference``, ``p_value`` (one-sided: drop larger than max_drop),
            ``q_value``, ``failed`` (bool), ``reason``.
        overall: ``baseline``, ``candidate``, ``difference``, ``p_value``, ``failed`` of the overall accuracy.
        max_drop: Largest drop that is tolerated.
        min_worst: Lowest accuracy that a class may have, or ``None``.
        alpha: Error rate after multiplicity control.
        notes: Sentences a reader must know.
    """

    passed: bool
    reasons: tuple[str, ...]
    power: str
    power_table: pd.DataFrame
    by_class: pd.DataFrame
    overall: Mapping[str, Any]
    max_drop: float
    min_worst: float | None
    alpha: float
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values that ``json.dumps`` takes (no NaN)."""
        return fields_to_plain(self)


def gate(
    candidate: Audit,
    baseline: Audit,
    *,
    max_drop: float = 0.02,
    min_worst: float | None = None,
    alpha: float = 0.05,
) -> GateResult:
    """Decide whether a candidate may replace a baseline."""
    import pandas as pd

    table = compare(baseline, candidate, alpha=alpha).by_class
    failed = (table.difference < -max_drop) & (table.q_value <= alpha)
    frame = table[["class_name", "n", "baseline", "candidate", "difference", "p_value", "q_value"]].assign(
        failed=failed, reason=""
    )
    return GateResult(
        passed=not failed.any(),
        reasons=tuple(f"{name} lost" for name in table.class_name[failed]),
        power="PROVISIONAL",
        power_table=pd.DataFrame(columns=["drop", "n", "probability"]),
        by_class=frame,
        overall={},
        max_drop=max_drop,
        min_worst=min_worst,
        alpha=alpha,
        notes=(),
    )
