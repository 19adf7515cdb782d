"""Two models on the same samples, class by class: pairing, exact tests and control for testing many classes at once.

One run of each model is tested by the exact McNemar test, several by Welch's t with the noise of samples and of runs. scipy.special has
the tails as vectorised functions; its import is late because an audit of one model does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_metrics import class_means, share
from classmargin.evaluation.input_checks import AnyArray, FloatArray, IntArray, shared_names


def paired_correctness(audits: Sequence[Audit]) -> tuple[IntArray, AnyArray]:
    """Return the shared labels ``[N]`` and which model is right on which sample ``[N, M]`` (bool).

    Samples are matched by ``sample_id`` where every audit has them, by position where none has.

    Raises:
        ValueError: Different classes, different samples, or different labels for the same sample.
    """
    orders = sample_order(audits)
    right = [(audit.labels == audit.predictions)[order] for audit, order in zip(audits, orders, strict=True)]
    return audits[0].labels[orders[0]], np.stack(right, axis=1)


def sample_order(audits: Sequence[Audit]) -> list[IntArray]:
    """Return for each model the order ``[N]`` in which its samples are those of the others.

    Raises:
        ValueError: Different classes, different samples, or different labels for the same sample.
    """
    first = audits[0]
    shared_class_names(audits)
    with_id = [audit.sample_id is not None for audit in audits]
    if any(with_id) and not all(with_id):
        raise ValueError("sample_id must be given for all compared models or for none")
    # Numbers in one file may be text in another, and text sorts otherwise: one text makes all of them text.
    as_text = any(audit.sample_id is not None and audit.sample_id.dtype.kind in "US" for audit in audits)
    orders = [_order(audit, as_text=as_text) for audit in audits]
    for audit, order in zip(audits, orders, strict=True):
        _check_same_samples(first, orders[0], audit, order)
    return orders


def shared_class_names(audits: Sequence[Audit]) -> tuple[str, ...]:
    """Return the names of the classes that all models know; a model without names adopts those of the others.

    Raises:
        ValueError: Another number of classes, or other names.
    """
    return shared_names([audit.class_names for audit in audits])


def _order(audit: Audit, *, as_text: bool) -> IntArray:
    if audit.sample_id is None:
        return np.arange(audit.num_samples)
    return np.argsort(audit.sample_id.astype(str) if as_text else audit.sample_id, kind="stable")


def _check_same_samples(first: Audit, first_order: IntArray, other: Audit, order: IntArray) -> None:
    if other.num_samples != first.num_samples:
        raise ValueError(
            f"the models must be evaluated on the same samples, got {first.num_samples} and {other.num_samples} samples"
        )
    if first.sample_id is not None and other.sample_id is not None:
        same = first.sample_id[first_order].astype(str) == other.sample_id[order].astype(str)
        if not same.all():
            raise ValueError(
                f"the models must be evaluated on the same samples, but {int((~same).sum())} of {len(same)} "
                "values of sample_id have no partner"
            )
    wrong = first.labels[first_order] != other.labels[order]
    if wrong.any():
        raise ValueError(
            f"the models must be evaluated on the same samples, but {int(wrong.sum())} of {len(wrong)} labels differ"
            + ("" if first.sample_id is not None else " (give sample_id if only the order differs)")
        )


_ROUNDING = 1e-20  # far below the variance that a single odd sample of a million leaves


@dataclass(frozen=True)
class ClassDifferences:
    """Everything about the classes of a pair of models; arrays are ``[K]``.

    Attributes:
        n: Samples.
        baseline: Accuracy (mean over runs), NaN for n = 0.
        candidate: Accuracy (mean over runs), NaN for n = 0.
        gained: Samples that only the candidate gets right (expected number, if there are several runs).
        lost: Samples that only the baseline gets right.
        p_value: Two-sided, NaN for n = 0.
    """

    n: IntArray
    baseline: FloatArray
    candidate: FloatArray
    gained: AnyArray
    lost: AnyArray
    p_value: FloatArray


def class_differences(
    labels: IntArray, correct: AnyArray, runs: tuple[int, int], num_classes: int
) -> ClassDifferences:
    """Compare two models class by class.

    Args:
        labels: True classes ``[N]``.
        correct: Which run is right on which sample ``[N, M]``, the runs of the baseline first.
        runs: Number of runs of baseline and candidate; they sum to M.
        num_classes: Number of classes K.
    """
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
    return ClassDifferences(
        n=n,
        baseline=class_means(mean_first, labels, num_classes),
        candidate=class_means(mean_second, labels, num_classes),
        gained=gained,
        lost=lost,
        p_value=np.where(n > 0, p_value, np.nan),
    )


def _t_test(labels: IntArray, first: AnyArray, second: AnyArray, n: IntArray) -> FloatArray:
    """Return p-values of a t-test whose variance has three parts: samples, runs of the one, runs of the other.

    A model with one run is taken to vary from run to run as much as the other.

    Runs and samples are crossed, so what is peculiar to a run on a sample counts in the variance over samples and in that over runs; it
    is subtracted once. Degrees of freedom by Satterthwaite. Where nothing varies (all runs of one model wrong, all of the other right) or
    there is only one sample, it is the sign test of n equal changes, 2 / 2^n.
    """
    from scipy.special import stdtr

    num_classes = len(n)
    difference = second.mean(axis=1) - first.mean(axis=1)
    mean = class_means(difference, labels, num_classes)
    parts = [(_variance_of_mean(difference, labels, mean, n), n - 1.0)]
    parts += _run_parts(first, second, labels, num_classes)
    largest = np.maximum.reduce([part for part, _ in parts])
    twice = _interactions(first, second, labels, n)
    variance = np.maximum(sum(part for part, _ in parts) - twice, largest)
    spread = sum(
        np.divide(part**2, freedom, out=np.zeros(num_classes), where=freedom > 0) for part, freedom in parts
    )
    known = (variance > _ROUNDING) & (spread > 0) & (n > 1)
    freedom = np.divide(variance**2, spread, out=np.ones(num_classes), where=known)
    t = np.divide(np.abs(mean), np.sqrt(variance), out=np.zeros(num_classes), where=known)
    alike = np.where(np.abs(mean) > 0, np.exp2(1.0 - n), 1.0)
    return np.where(known, 2 * stdtr(freedom, -t), alike)


def _variance_of_mean(values: FloatArray, labels: IntArray, mean: FloatArray, n: IntArray) -> FloatArray:
    squares = np.bincount(labels, weights=(values - mean[labels]) ** 2, minlength=len(n))
    return np.nan_to_num(share(squares, n * np.maximum(n - 1, 1)))


def _run_parts(
    first: AnyArray, second: AnyArray, labels: IntArray, num_classes: int
) -> list[tuple[FloatArray, FloatArray]]:
    """Return variance and degrees of freedom of the runs of both sides, as one part where one side borrows from the other."""
    alone = [side.shape[1] == 1 for side in (first, second)]
    if not any(alone):
        return [_run_variance(side, labels, num_classes) for side in (first, second)]
    several = second if alone[0] else first
    variance, freedom = _run_variance(several, labels, num_classes)
    return [(variance * (1 + several.shape[1]), freedom)]


def _interactions(first: AnyArray, second: AnyArray, labels: IntArray, n: IntArray) -> FloatArray:
    """Return what :func:`_interaction` finds on both sides; one run is again like one of the other side."""
    found = [_interaction(side, labels, n) for side in (first, second)]
    if first.shape[1] == 1:
        found[0] = found[1] * second.shape[1]
    elif second.shape[1] == 1:
        found[1] = found[0] * first.shape[1]
    return found[0] + found[1]


def _run_variance(side: AnyArray, labels: IntArray, num_classes: int) -> tuple[FloatArray, FloatArray]:
    runs = side.shape[1]
    if runs == 1:
        return np.zeros(num_classes), np.ones(num_classes)
    accuracy = np.stack([class_means(run, labels, num_classes) for run in side.T])
    return np.nan_to_num(accuracy.var(axis=0, ddof=1)) / runs, np.full(num_classes, runs - 1.0)


def _interaction(side: AnyArray, labels: IntArray, n: IntArray) -> FloatArray:
    """Return the variance that the mean owes to what is peculiar to a run on a sample (residual mean square over n R)."""
    runs = side.shape[1]
    if runs == 1:
        return np.zeros(len(n))
    by_run = np.stack([class_means(run, labels, len(n)) for run in side.T], axis=1)
    residual = side - side.mean(axis=1, keepdims=True) - (by_run - by_run.mean(axis=1, keepdims=True))[labels]
    squares = np.bincount(labels, weights=(residual**2).sum(axis=1), minlength=len(n))
    return np.asarray(squares / np.maximum((runs - 1) * (n - 1) * n * runs, 1))


def mcnemar_p_values(gained: AnyArray, lost: AnyArray) -> FloatArray:
    """Return two-sided p-values of the exact McNemar test.

    Args:
        gained: Samples that only the second model gets right, any shape.
        lost: Samples that only the first model gets right, same shape.

    Returns:
        ``min(1, 2 P(X <= min(gained, lost)))`` with X binomial(gained + lost, 1/2); 1 where both are 0.

    Example:
        >>> mcnemar_p_values(np.array([0, 8]), np.array([5, 8])).round(4).tolist()
        [0.0625, 1.0]
    """
    from scipy.special import bdtr

    gained, lost = np.asarray(gained), np.asarray(lost)
    return np.asarray(np.minimum(1.0, 2.0 * bdtr(np.minimum(gained, lost), gained + lost, 0.5)))


def drop_p_values(gained: AnyArray, lost: AnyArray) -> FloatArray:
    """Return one-sided exact McNemar p-values: how likely so many losses are if nothing got worse.

    Example:
        >>> drop_p_values(np.array([0]), np.array([5])).tolist()
        [0.03125]
    """
    from scipy.special import bdtr

    gained, lost = np.asarray(gained), np.asarray(lost)
    return np.asarray(bdtr(gained, gained + lost, 0.5))


def margin_p_values(gained: AnyArray, lost: AnyArray, n: AnyArray, margin: float) -> FloatArray:
    """Return one-sided p-values of "the true drop is at most ``margin``" for each class; large drops give small ones.

    The tail of ``lost - gained`` is exact, at the gain that is likeliest if the drop is ``margin`` (Lloyd's estimated p-value). In
    simulations with a true drop of ``margin`` the test stays below its level. Without a margin it is McNemar's. "The true drop is at
    least x", for non-inferiority, is the mirror image: ``margin_p_values(lost, gained, n, -x)``.

    Args:
        gained: Samples that only the candidate gets right ``[K]``.
        lost: Samples that only the baseline gets right ``[K]``.
        n: Samples ``[K]``.
        margin: Largest true drop under the hypothesis, in (-1, 1).

    Returns:
        P-values ``[K]``; 1 where the observed drop is within the margin, NaN for n = 0.

    Example:
        >>> margin_p_values(np.array([0, 0, 2]), np.array([5, 1, 12]), np.full(3, 100), 0.02).round(3).tolist()
        [0.081, 1.0, 0.019]
    """
    gained, lost, n = (np.atleast_1d(np.asarray(part)) for part in (gained, lost, n))
    if margin == 0:
        return np.where(n > 0, drop_p_values(gained, lost), np.nan)
    p_values = np.where(n > 0, 1.0, np.nan)
    for k in np.flatnonzero((lost - gained > margin * n + _SLACK) & (n > 0)):
        p_values[k] = _margin_tail(int(gained[k]), int(lost[k]), int(n[k]), margin)
    return p_values


_SLACK = 1e-9  # 0.50 - 0.48 is a little more than 0.02 in floating point


def _margin_tail(gained: int, lost: int, n: int, margin: float) -> float:
    gain = float(likeliest_gain(gained, lost, n, margin))
    return chance_of_few_gains(np.arange(n + 1) - (lost - gained), gain, gain + margin)


def likeliest_gain(
    gained: AnyArray | int, lost: AnyArray | int, n: AnyArray | int, margin: float
) -> FloatArray:
    """Return the likeliest chance of a gain if that of a loss is larger by the margin: a quadratic equation (Tango 1998)."""
    linear = 2 * (n - lost - gained) * margin - (lost + gained) * (1 - margin) + 2 * gained * margin
    root = np.sqrt(np.maximum(linear**2 + 8.0 * n * gained * margin * (1 - margin), 0.0))
    return np.asarray(np.clip((root - linear) / (4 * n), max(0.0, -margin), (1 - margin) / 2))


def chance_of_few_gains(most: IntArray, gain: float, loss: float) -> float:
    """Return the probability that at most ``most[k]`` of n samples are gained where k are lost, over all k.

    Args:
        most: Largest number of gained samples for 0, 1, … n lost ones ``[n + 1]``; below 0 for none.
        gain: Chance of a gain.
        loss: Chance of a loss.

    Example:
        >>> round(chance_of_few_gains(np.arange(101) - 5, 0.0, 0.02), 3)
        0.051
    """
    from scipy.special import bdtr

    n = len(most) - 1
    lost = np.arange(n + 1)
    chance, rest = np.diff(bdtr(lost, n, loss), prepend=0.0), n - lost
    share_of_rest = min(1.0, gain / (1 - loss)) if loss < 1 else 0.0
    few_gains = np.where(most >= rest, 1.0, bdtr(np.clip(most, 0, rest), rest, share_of_rest))
    return float(np.clip((chance * np.where(most >= 0, few_gains, 0.0)).sum(), 0.0, 1.0))


def benjamini_hochberg(p_values: FloatArray) -> FloatArray:
    """Return q-values: the smallest false discovery rate at which each test is called; NaN stays NaN.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, np.nan])).round(3).tolist()
        [0.03, 0.04, 0.04, nan]
    """
    return _stepped(p_values, lambda count: count / np.arange(1, count + 1), from_largest=True)


def holm(p_values: FloatArray) -> FloatArray:
    """Return Holm-adjusted p-values, which keep the chance of any false call below alpha; NaN stays NaN.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03])).round(3).tolist()
        [0.03, 0.06, 0.06]
    """
    return _stepped(p_values, lambda count: np.arange(count, 0, -1.0), from_largest=False)


def _stepped(p_values: FloatArray, factors: object, *, from_largest: bool) -> FloatArray:
    assert callable(factors)
    shape = np.shape(p_values)
    flat = np.asarray(p_values, dtype=np.float64).reshape(-1)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    scaled = flat[order] * factors(len(order))
    if from_largest:
        scaled = np.minimum.accumulate(scaled[::-1])[::-1]
    else:
        scaled = np.maximum.accumulate(scaled)
    adjusted = np.full(flat.shape, np.nan)
    adjusted[order] = np.minimum(scaled, 1.0)
    return adjusted.reshape(shape)


@dataclass(frozen=True)
class ModelPair:
    """Two models on shared samples.

    Attributes:
        labels: True classes ``[N]``.
        correct: Which run is right on which sample ``[N, M]``, the runs of the baseline first.
        runs: Number of runs of baseline and candidate.
        class_names: One name per class.
        differences: Class by class.
    """

    labels: IntArray
    correct: AnyArray
    runs: tuple[int, int]
    class_names: tuple[str, ...]
    differences: ClassDifferences

    @classmethod
    def of(cls, baseline: Audit | Sequence[Audit], candidate: Audit | Sequence[Audit]) -> ModelPair:
        """Bring two models to the same samples."""
        left, right = _runs("baseline", baseline), _runs("candidate", candidate)
        labels, correct = paired_correctness([*left, *right])
        runs = len(left), len(right)
        names = shared_class_names([*left, *right])
        return cls(labels, correct, runs, names, class_differences(labels, correct, runs, len(names)))


def _runs(name: str, audits: Audit | Sequence[Audit]) -> list[Audit]:
    runs = [audits] if isinstance(audits, Audit) else list(audits)
    if not runs or not all(isinstance(run, Audit) for run in runs):
        raise TypeError(f"{name} must be an Audit or a non-empty list of them, got {type(audits).__name__}")
    return runs
