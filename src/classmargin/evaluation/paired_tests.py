"""Two models on the same samples, class by class: pairing, exact tests and control for testing many classes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_metrics import class_means, share
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, shared_names

if TYPE_CHECKING:
    import pandas as pd


def paired_correctness(audits: Sequence[Audit]) -> tuple[IntArray, AnyArray]:
    """Return the shared labels ``[N]`` and which model is right on which sample ``[N, M]`` (bool), see :func:`sample_order`."""
    orders = sample_order(audits)
    right = [(audit.labels == audit.predictions)[order] for audit, order in zip(audits, orders, strict=True)]
    return audits[0].labels[orders[0]], np.stack(right, axis=1)


def sample_order(audits: Sequence[Audit]) -> list[IntArray]:
    """Return for each model the order ``[N]`` in which its samples are those of the others: by ``sample_id``, or else by position."""
    first = audits[0]
    shared_names([audit.class_names for audit in audits])
    with_id = [audit.sample_id is not None for audit in audits]
    if any(with_id) and not all(with_id):
        raise ValueError("sample_id must be given for all compared models or for none")
    # Numbers in one file may be text in another, and text sorts otherwise: one text makes all of them text.
    ids = [np.arange(a.num_samples) if a.sample_id is None else a.sample_id for a in audits]
    if any(each.dtype.kind in "US" for each in ids):
        ids = [each.astype(str) for each in ids]
    orders = [np.argsort(each, kind="stable") for each in ids]
    same = "the models must be evaluated on the same samples"
    for audit, each, order in zip(audits, ids, orders, strict=True):
        if audit.num_samples != first.num_samples:
            raise ValueError(f"{same}, got {first.num_samples} and {audit.num_samples} samples")
        alone = int((ids[0][orders[0]] != each[order]).sum())
        if alone:
            raise ValueError(f"{same}, but {alone} of {len(order)} values of sample_id have no partner")
        wrong = int((first.labels[orders[0]] != audit.labels[order]).sum())
        if wrong:
            hint = "" if first.sample_id is not None else " (give sample_id if only the order differs)"
            raise ValueError(f"{same}, but {wrong} of {len(order)} labels differ{hint}")
    return orders


_ROUNDING = 1e-20  # far below the variance that a single odd sample of a million leaves


def class_differences(labels: IntArray, correct: AnyArray, runs: tuple[int, int], num_classes: int) -> pd.DataFrame:
    """Compare two models class by class; ``correct`` ``[N, M]`` has the runs of the baseline first.

    Columns: ``n`` · ``baseline``, ``candidate`` accuracy (mean over runs, NaN for n = 0) · ``difference`` · ``gained``, ``lost`` samples
    that only the one gets right (expected numbers, if there are several runs) · ``p_value``, two-sided, NaN for n = 0.
    """
    import pandas as pd

    first, second = correct[:, : runs[0]], correct[:, runs[0] :]
    n = np.bincount(labels, minlength=num_classes)
    # Chance that a random run of one model is right and a random run of the other is wrong.
    mean_first, mean_second = first.mean(axis=1), second.mean(axis=1)
    gained = np.bincount(labels, weights=mean_second * (1 - mean_first), minlength=num_classes)
    lost = np.bincount(labels, weights=mean_first * (1 - mean_second), minlength=num_classes)
    if runs == (1, 1):
        gained, lost = gained.astype(np.int64), lost.astype(np.int64)
        p_value = mcnemar_p_values(gained, lost)
    else:
        p_value = _t_test(labels, first, second, n)
    baseline, candidate = (class_means(mean, labels, num_classes) for mean in (mean_first, mean_second))
    frame = pd.DataFrame({"n": n, "baseline": baseline, "candidate": candidate, "difference": candidate - baseline})
    return frame.assign(gained=gained, lost=lost, p_value=np.where(n > 0, p_value, np.nan))


def _t_test(labels: IntArray, first: AnyArray, second: AnyArray, n: IntArray) -> FloatArray:
    """Return p-values of a t-test whose variance has three parts: samples, runs of the one, runs of the other.

    A model with one run is taken to vary as much as the other. What is peculiar to a run on a sample counts twice and is subtracted once.
    Degrees of freedom by Satterthwaite. Where nothing varies it is the sign test of n equal changes, 2 / 2^n.
    """
    from scipy.special import stdtr

    num_classes = len(n)
    difference = second.mean(axis=1) - first.mean(axis=1)
    mean = class_means(difference, labels, num_classes)
    squares = np.bincount(labels, weights=(difference - mean[labels]) ** 2, minlength=num_classes)
    parts = [(np.nan_to_num(share(squares, n * np.maximum(n - 1, 1))), n - 1.0)]
    twice = np.zeros(num_classes)
    lent = max(first.shape[1], second.shape[1]) if min(first.shape[1], second.shape[1]) == 1 else 0
    for side in (first, second):
        if side.shape[1] > 1:
            variance, peculiar = _of_runs(side, labels, n)
            parts.append((variance * (1 + lent), np.full(num_classes, side.shape[1] - 1.0)))
            twice += peculiar * lent + peculiar
    largest = np.maximum.reduce([part for part, _ in parts])
    variance = np.maximum(sum(part for part, _ in parts) - twice, largest)
    spread = sum(np.divide(part**2, freedom, out=np.zeros(num_classes), where=freedom > 0) for part, freedom in parts)
    known = (variance > _ROUNDING) & (spread > 0) & (n > 1)
    freedom = np.divide(variance**2, spread, out=np.ones(num_classes), where=known)
    t = np.divide(np.abs(mean), np.sqrt(variance), out=np.zeros(num_classes), where=known)
    alike = np.where(np.abs(mean) > 0, np.exp2(1.0 - n), 1.0)
    return np.where(known, 2 * stdtr(freedom, -t), alike)


def _of_runs(side: AnyArray, labels: IntArray, n: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the variance of the mean over runs, and what of it is peculiar to a run on a sample (residual mean square over n R)."""
    runs = side.shape[1]
    by_run = np.stack([class_means(run, labels, len(n)) for run in side.T])
    variance = np.nan_to_num(by_run.var(axis=0, ddof=1)) / runs
    by_class = np.ascontiguousarray(by_run.T)
    residual = side - side.mean(axis=1, keepdims=True)
    residual = residual - (by_class - by_class.mean(axis=1, keepdims=True))[labels]
    squares = np.bincount(labels, weights=(residual**2).sum(axis=1), minlength=len(n))
    return variance, np.asarray(squares / np.maximum((runs - 1) * (n - 1) * n * runs, 1))


def mcnemar_p_values(gained: AnyArray, lost: AnyArray) -> FloatArray:
    """Return two-sided p-values of the exact McNemar test."""
    from scipy.special import bdtr

    return np.asarray(np.minimum(1.0, 2.0 * bdtr(np.minimum(gained, lost), gained + lost, 0.5)))


def margin_p_values(gained: Any, lost: Any, n: Any, margin: float) -> FloatArray:
    """Return one-sided p-values of "the true drop is at most ``margin``" for each class; without a margin they are McNemar's.

    The tail of ``lost - gained`` is exact, at the gain that is likeliest if the drop is ``margin`` (Lloyd's estimated p-value). "The true
    drop is at least x", for non-inferiority, is the mirror image: ``margin_p_values(lost, gained, n, -x)``.
    """
    from scipy.special import bdtr

    gained, lost, n = (np.atleast_1d(np.asarray(part)) for part in (gained, lost, n))
    if margin == 0:
        return np.where(n > 0, bdtr(gained, gained + lost, 0.5), np.nan)
    p_values = np.where(n > 0, 1.0, np.nan)
    for k in np.flatnonzero((lost - gained > margin * n + _SLACK) & (n > 0)):
        gain = float(likeliest_gain(int(gained[k]), int(lost[k]), int(n[k]), margin))
        most = np.arange(n[k] + 1) - (lost[k] - gained[k])
        p_values[k] = chance_of_few_gains(most, gain, gain + margin)
    return p_values


_SLACK = 1e-9  # 0.50 - 0.48 is a little more than 0.02 in floating point


def likeliest_gain(gained: AnyArray | int, lost: AnyArray | int, n: AnyArray | int, margin: float) -> FloatArray:
    """Return the likeliest chance of a gain if that of a loss is larger by the margin: a quadratic equation (Tango 1998)."""
    linear = 2 * (n - lost - gained) * margin - (lost + gained) * (1 - margin) + 2 * gained * margin
    root = np.sqrt(np.maximum(linear**2 + 8.0 * n * gained * margin * (1 - margin), 0.0))
    return np.asarray(np.clip((root - linear) / (4 * n), max(0.0, -margin), (1 - margin) / 2))


def chance_of_few_gains(most: IntArray, gain: float, loss: float) -> float:
    """Return the probability that at most ``most[k]`` of n samples are gained where k are lost, over all k."""
    from scipy.special import bdtr

    n = len(most) - 1
    lost = np.arange(n + 1)
    chance, rest = np.diff(bdtr(lost, n, loss), prepend=0.0), n - lost
    share_of_rest = min(1.0, gain / (1 - loss)) if loss < 1 else 0.0
    few_gains = np.where(most >= rest, 1.0, bdtr(np.clip(most, 0, rest), rest, share_of_rest))
    return float(np.clip((chance * np.where(most >= 0, few_gains, 0.0)).sum(), 0.0, 1.0))


def benjamini_hochberg(p_values: FloatArray) -> FloatArray:
    """Return q-values: the smallest false discovery rate at which each test is called; NaN stays NaN."""
    return _stepped(p_values, lambda count: count / np.arange(1, count + 1), from_largest=True)


def holm(p_values: FloatArray) -> FloatArray:
    """Return Holm-adjusted p-values, which keep the chance of any false call below alpha; NaN stays NaN."""
    return _stepped(p_values, lambda count: np.arange(count, 0, -1.0), from_largest=False)


def _stepped(p_values: FloatArray, factors: Callable[[int], FloatArray], *, from_largest: bool) -> FloatArray:
    flat = np.asarray(p_values, dtype=np.float64).reshape(-1)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    scaled = flat[order] * factors(len(order))
    scaled = np.minimum.accumulate(scaled[::-1])[::-1] if from_largest else np.maximum.accumulate(scaled)
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(scaled, 1.0)
    return adjusted.reshape(np.shape(p_values))


class ModelPair(NamedTuple):
    """Two models on shared samples."""

    labels: IntArray  # true classes [N]
    correct: AnyArray  # which run is right on which sample [N, M], the runs of the baseline first
    runs: tuple[int, int]  # number of runs of baseline and candidate
    class_names: tuple[str, ...]  # one name per class
    differences: pd.DataFrame  # class by class, see class_differences


def paired_models(baseline: Audit | Sequence[Audit], candidate: Audit | Sequence[Audit]) -> ModelPair:
    """Bring two models to the same samples."""
    sides = []
    for name, audits in (("baseline", baseline), ("candidate", candidate)):
        several = [audits] if isinstance(audits, Audit) else list(audits)
        if not several or not all(isinstance(run, Audit) for run in several):
            raise TypeError(f"{name} must be an Audit or a non-empty list of them, got {type(audits).__name__}")
        sides.append(several)
    every, runs = [*sides[0], *sides[1]], (len(sides[0]), len(sides[1]))
    labels, correct = paired_correctness(every)
    names = shared_names([audit.class_names for audit in every])
    return ModelPair(labels, correct, runs, names, class_differences(labels, correct, runs, len(names)))
