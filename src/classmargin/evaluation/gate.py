"""A release gate with a noise band: fails on drops that are large *and* supported by the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_number
from classmargin.evaluation.audit import Audit
from classmargin.evaluation.class_tests import ClassDifferences, class_differences
from classmargin.evaluation.gate_power import catch_probability, smallest_caught_drop
from classmargin.evaluation.inputs import FloatArray, check_fraction
from classmargin.evaluation.pairing import paired_correctness, shared_class_names
from classmargin.evaluation.plain import fields_to_plain
from classmargin.evaluation.significance import drop_p_values, holm

if TYPE_CHECKING:
    import pandas as pd

STATED_DROP = 0.05
POWER_DROPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
MOST_NAMED = 10  # classes in one note
_ROUNDING = 1e-12  # 0.50 - 0.48 is a little more than 0.02 in floating point


@dataclass(frozen=True)
class GateResult:
    """Decision of the gate.

    Attributes:
        passed: Whether the candidate may pass.
        reasons: Why it failed, one sentence a reason; empty when passed.
        power: What the gate could have seen, one sentence, e.g. "a 5-point drop in one class of 100 samples would be
            caught with probability 0.31".
        power_table: ``drop``, ``n``, ``probability``.
        by_class: ``class_name``, ``n``, ``baseline``, ``candidate``, ``difference``, ``p_value`` (one-sided McNemar),
            ``q_value`` (the same, adjusted for all tests by Holm), ``q_value_minimum`` (below ``min_worst``,
            adjusted; NaN without ``min_worst``), ``failed``, ``reason``.
        overall: The same for the overall accuracy.
        max_drop: Largest drop that is tolerated.
        min_worst: Accuracy below which a class fails where the data support it, or ``None``.
        alpha: Error rate after multiplicity control.
        notes: Sentences a reader must know, among them which classes are below ``min_worst`` without support.
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
    """Decide whether a candidate may replace a baseline.

    It fails if, and only if, for the overall accuracy or for a class, the drop is larger than ``max_drop`` **and** so many lost samples
    are unlikely for equally good models (one-sided exact McNemar test); or if a class is below ``min_worst`` **and** so few right
    samples are unlikely for an accuracy of ``min_worst`` (exact binomial test). All tests together are adjusted by Holm, so equally
    good models, with no class truly below ``min_worst``, fail with probability of at most ``alpha``.

    Args:
        candidate: Audit of the new model.
        baseline: Audit of the model in use, on the same samples.
        max_drop: Tolerated drop of an accuracy, in [0, 1].
        min_worst: Accuracy below which a class fails where the data support it, or ``None``; ``notes`` name those that pass
            below it.
        alpha: Chance of failing without cause.

    Raises:
        ValueError: Different samples, or numbers out of range.

    Example:
        >>> from classmargin.evaluation.audit import audit
        >>> labels = [0, 1] * 100
        >>> old = audit(labels, predictions=labels, num_classes=2, bootstrap=0)
        >>> new = audit(labels, predictions=[0, 1] * 80 + [0, 0] * 20, num_classes=2, bootstrap=0)
        >>> gate(new, old).passed, gate(old, new).passed
        (False, True)
    """
    check_number("max_drop", max_drop, minimum=0.0, maximum=1.0)
    check_fraction("alpha", alpha)
    if min_worst is not None:
        check_number("min_worst", min_worst, minimum=0.0, maximum=1.0)
    for name, value in (("candidate", candidate), ("baseline", baseline)):
        if not isinstance(value, Audit):
            raise TypeError(f"{name} must be one Audit, got {type(value).__name__}")
    labels, correct = paired_correctness([baseline, candidate])
    found = class_differences(labels, correct, (1, 1), baseline.num_classes)
    tests = _adjusted(_tests(found, min_worst))
    names = shared_class_names([candidate, baseline])
    by_class = _class_frame(found, names, tests, max_drop, min_worst, alpha)
    overall = _overall(found, tests, max_drop, alpha)
    reasons = [overall["reason"]] if overall["failed"] else []
    reasons += by_class.loc[by_class["failed"]].sort_values("difference", kind="stable")["reason"].tolist()
    power, table = _power(found, max_drop, alpha / tests.count)
    true_minimum = "" if min_worst is None else ", with no class truly below the minimum,"
    return GateResult(
        passed=not reasons,
        reasons=tuple(reasons),
        power=power,
        power_table=table,
        by_class=by_class,
        overall=overall,
        max_drop=max_drop,
        min_worst=min_worst,
        alpha=alpha,
        notes=(
            *_below_without_support(by_class, min_worst, alpha),
            f"{tests.count} tests (overall and classes"
            + (", drop and minimum" if min_worst is not None else "")
            + f"), adjusted by Holm: equally good models{true_minimum} fail with probability of at most {alpha:g}.",
            "A drop must be larger than the limit and statistically supported; smaller or unsupported drops pass.",
        ),
    )


@dataclass(frozen=True)
class _Tests:
    """One-sided p-values: overall drop, drop of each class ``[K]``, each class below the minimum ``[K]`` (NaN: no test)."""

    overall: float
    drop: FloatArray
    below: FloatArray
    raw_overall: float
    raw_drop: FloatArray
    count: int


def _tests(found: ClassDifferences, min_worst: float | None) -> _Tests:
    from scipy.special import bdtr

    drop = np.where(found.n > 0, drop_p_values(found.gained, found.lost), np.nan)
    overall = float(drop_p_values(found.gained.sum(), found.lost.sum()))
    below = np.full(len(drop), np.nan)
    if min_worst is not None:
        right = np.rint(np.nan_to_num(found.candidate) * found.n)
        below = np.where(found.n > 0, bdtr(right, found.n, min_worst), np.nan)
    count = 1 + int((~np.isnan(drop)).sum() + (~np.isnan(below)).sum())
    return _Tests(overall, drop, below, overall, drop, count)


def _adjusted(tests: _Tests) -> _Tests:
    adjusted = holm(np.concatenate([[tests.overall], tests.drop, tests.below]))
    size = len(tests.drop)
    return replace(tests, overall=float(adjusted[0]), drop=adjusted[1 : size + 1], below=adjusted[size + 1 :])


def _class_frame(
    found: ClassDifferences,
    class_names: tuple[str, ...],
    tests: _Tests,
    max_drop: float,
    min_worst: float | None,
    alpha: float,
) -> pd.DataFrame:
    import pandas as pd

    difference = found.candidate - found.baseline
    dropped = (difference < -max_drop - _ROUNDING) & (tests.drop <= alpha)
    low = (found.candidate < (min_worst or 0.0)) & (tests.below <= alpha)
    reasons = [
        _reason(f"class {name}", found.baseline[k], found.candidate[k], tests.drop[k], max_drop)
        if dropped[k]
        else ""
        for k, name in enumerate(class_names)
    ]
    for k in np.flatnonzero(low).tolist():
        text = (
            f"class {class_names[k]} has {100 * found.candidate[k]:.1f} %, below the minimum of "
            f"{100 * (min_worst or 0.0):g} % (adjusted p {_shown(tests.below[k])})"
        )
        reasons[k] = f"{reasons[k]}; {text}" if reasons[k] else text
    return pd.DataFrame(
        {
            "class_name": list(class_names),
            "n": found.n,
            "baseline": found.baseline,
            "candidate": found.candidate,
            "difference": difference,
            "p_value": tests.raw_drop,
            "q_value": tests.drop,
            "q_value_minimum": tests.below,
            "failed": dropped | low,
            "reason": reasons,
        }
    )


def _overall(found: ClassDifferences, tests: _Tests, max_drop: float, alpha: float) -> dict[str, Any]:
    total = found.n.sum()
    before, after = (float(np.nansum(side * found.n) / total) for side in (found.baseline, found.candidate))
    failed = bool(after - before < -max_drop - _ROUNDING and tests.overall <= alpha)
    return {
        "n": int(total),
        "baseline": before,
        "candidate": after,
        "difference": after - before,
        "p_value": tests.raw_overall,
        "q_value": tests.overall,
        "failed": failed,
        "reason": _reason("overall accuracy", before, after, tests.overall, max_drop) if failed else "",
    }


def _reason(what: str, before: float, after: float, p_value: float, max_drop: float) -> str:
    return (
        f"{what} fell from {100 * before:.1f} % to {100 * after:.1f} %, more than the tolerated {100 * max_drop:g} points "
        f"(adjusted p {_shown(p_value)})"
    )


def _shown(p_value: float) -> str:
    """Return a p-value with its sign of relation; how far below 0.001 it lies decides nothing."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.3f}"


def _below_without_support(by_class: pd.DataFrame, min_worst: float | None, alpha: float) -> tuple[str, ...]:
    """Name the classes that pass below the minimum, so that nobody takes a pass for an accuracy."""
    low = by_class[(by_class["candidate"] < (min_worst or 0.0)) & (by_class["q_value_minimum"] > alpha)]
    low = low.sort_values("candidate", kind="stable")
    if low.empty:
        return ()
    named = [
        f"{row['class_name']} {100 * row['candidate']:.1f} % (n = {row['n']}, adjusted p {_shown(row['q_value_minimum'])})"
        for row in low.head(MOST_NAMED).to_dict("records")
    ]
    rest = len(low) - len(named)
    return (
        f"Below the minimum of {100 * (min_worst or 0.0):g} % but not failed for it, because so few right samples also happen to a class "
        f"at the minimum: {', '.join(named)}" + (f" and {rest} more." if rest else "."),
    )


def _power(found: ClassDifferences, max_drop: float, level: float) -> tuple[str, pd.DataFrame]:
    import pandas as pd

    n = max(int(np.median(found.n[found.n > 0])), 1)
    # Samples that change sides both ways happen between equally good models; only their balance is a drop.
    churn = 2 * float(np.minimum(found.gained, found.lost).sum() / found.n.sum())
    options = {"churn": churn, "max_drop": max_drop, "level": level}
    rows = [(drop, n, catch_probability(drop, n, **options)) for drop in POWER_DROPS]
    smallest = smallest_caught_drop(n, **options)
    reach = (
        f"the smallest drop caught with probability 0.8 is {100 * smallest:g} points"
        if smallest == smallest
        else "no drop is caught with probability 0.8"
    )
    text = (
        f"a {100 * STATED_DROP:g}-point drop in one class of {n} samples would be caught with probability "
        f"{catch_probability(STATED_DROP, n, **options):.2f}; {reach}"
    )
    return text, pd.DataFrame(rows, columns=["drop", "n", "probability"])
