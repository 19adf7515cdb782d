"""Which samples: confident errors, doubted labels and typical right ones of every class, and the samples that flip between models.

Doubted labels are ranked by self-confidence, the probability of the given label: the lower, the likelier a mistake in the label. That
ranking finds injected label noise better than the confident-learning flag alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from classmargin._checks import check_choice, did_you_mean
from classmargin.evaluation.class_diagnosis import doubted_labels
from classmargin.evaluation.input_checks import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

KINDS = ("error", "doubted label", "typical")
# Right samples listed of each class: enough to see what the class looks like.
MOST_TYPICAL = 5
COLUMNS = (
    "sample_id",
    "class_name",
    "kind",
    "rank",
    "predicted",
    "probability",
    "true_probability",
    "second_choice",
    "second_probability",
    "position",
)


def sample_table(audit: Audit) -> pd.DataFrame:
    """Return the samples worth a look, one row per sample and kind; see :attr:`Audit.samples`.

    A sample that is wrong *and* whose label is doubted has two rows.
    """
    lists = [_errors(audit), _doubted(audit), _typical(audit)]
    positions = np.concatenate(lists)
    kinds = np.repeat(np.arange(len(KINDS)), [len(rows) for rows in lists])
    labels = audit.labels[positions]
    order = np.lexsort((kinds, labels))  # stable: the order within a class and kind stays
    positions, kinds, labels = positions[order], kinds[order], labels[order]
    frame = describe_samples(audit, positions)
    frame.insert(2, "kind", np.array(KINDS, dtype=object)[kinds])
    frame.insert(3, "rank", _places_in_runs(labels * len(KINDS) + kinds))
    return frame[list(COLUMNS)]


def describe_samples(audit: Audit, positions: IntArray) -> pd.DataFrame:
    """Return what is known about the samples at ``positions`` ``[M]``: names of classes and their probabilities."""
    import pandas as pd

    names = np.array(audit.class_names, dtype=object)
    predicted = audit.predictions[positions]
    probability, true, second, second_probability = _choices(audit, positions)
    identity = positions if audit.sample_id is None else audit.sample_id[positions]
    return pd.DataFrame(
        {
            "sample_id": identity,
            "class_name": names[audit.labels[positions]],
            "predicted": names[predicted],
            "probability": probability,
            "true_probability": true,
            "second_choice": np.where(second < 0, "", names[np.maximum(second, 0)]),
            "second_probability": second_probability,
            "position": positions,
        }
    )


def samples_of(
    audit: Audit,
    class_name: str | None = None,
    *,
    kind: str = "error",
    predicted: str | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """Return the rows of :func:`sample_table` of one class and kind; see :meth:`Audit.samples_of`."""
    check_choice("kind", kind, KINDS)
    frame = audit.samples
    rows = frame["kind"] == kind
    for name, column, value in (
        ("class_name", "class_name", class_name),
        ("predicted", "predicted", predicted),
    ):
        if value is not None:
            class_number(audit, value, argument=name)
            rows &= frame[column] == value
    found = frame[rows]
    if class_name is None and kind != "typical":
        key, ascending = ("probability", False) if kind == "error" else ("true_probability", True)
        found = found.sort_values(key, ascending=ascending, kind="stable", na_position="last")
    return (found if top is None else found.head(top)).reset_index(drop=True)


def class_number(audit: Audit, name: str, *, argument: str = "class_name") -> int:
    """Return the number of the class called ``name``.

    Raises:
        ValueError: There is none; the message suggests the nearest name.
    """
    if name not in audit.class_names:
        raise ValueError(
            f"{argument} must be one of the class names, got {name!r}{did_you_mean(str(name), audit.class_names)}"
        )
    return audit.class_names.index(name)


def _errors(audit: Audit) -> IntArray:
    """Return the wrong samples, the most confident first."""
    wrong = np.flatnonzero(audit.labels != audit.predictions)
    probability = _choices(audit, wrong)[0]
    return wrong[np.argsort(-probability, kind="stable")]


def _doubted(audit: Audit) -> IntArray:
    """Return the samples whose label is doubted, the least believed label first."""
    if audit.scores is None:
        return np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(doubted_labels(audit.labels, audit.predictions, audit.scores, audit.num_classes))
    return rows[np.argsort(audit.scores.true_probability[rows], kind="stable")]


def _typical(audit: Audit) -> IntArray:
    """Return a few right samples of each class, those about as certain as its right samples usually are."""
    right = np.flatnonzero(audit.labels == audit.predictions)
    if audit.scores is None or not len(right):
        return right[:0]
    labels, own = audit.labels[right], audit.scores.true_probability[right]
    distance = np.abs(own - _class_medians(own, labels, audit.num_classes)[labels])
    order = np.lexsort((distance, labels))
    return right[order[_places_in_runs(labels[order]) <= MOST_TYPICAL]]


def _class_medians(values: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    order = np.lexsort((values, labels))
    counts = np.bincount(labels, minlength=num_classes)
    middle = np.cumsum(counts) - counts + np.maximum(counts - 1, 0) // 2
    medians = np.full(num_classes, np.nan)
    medians[counts > 0] = values[order[middle[counts > 0]]]
    return medians


def _places_in_runs(keys: IntArray) -> IntArray:
    """Return 1, 2, 3 … within each run of equal keys.

    Example:
        >>> _places_in_runs(np.array([7, 7, 3])).tolist()
        [1, 2, 1]
    """
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.r_[starts, len(keys)])
    return np.asarray(np.arange(len(keys)) - np.repeat(starts, lengths) + 1)


def _choices(audit: Audit, rows: IntArray) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Return the probabilities of predicted and true class, the next class (-1 if none) and its probability."""
    scores, nothing = audit.scores, np.full(len(rows), np.nan)
    if scores is None:
        return nothing, nothing, np.full(len(rows), -1, dtype=np.int64), nothing
    candidates, values = scores.candidates[rows], scores.candidate_probabilities[rows]
    predicted = audit.predictions[rows][:, None]
    among = candidates == predicted
    probability = np.where(among.any(axis=1), (values * among).sum(axis=1), np.nan)
    line = np.arange(len(rows))
    next_place = np.argmin(among, axis=1)  # the first candidate that is not the prediction
    second = np.where(among.all(axis=1), -1, candidates[line, next_place])
    second_probability = np.where(second < 0, np.nan, values[line, next_place])
    return probability, scores.true_probability[rows], second, second_probability


def flipped_samples(baseline: Audit, candidate: Audit) -> pd.DataFrame:
    """Return the samples that one of two models gets right and the other wrong.

    Args:
        baseline: Audit of the model in use.
        candidate: Audit of the new model on the same samples.

    Returns:
        One row per sample, in class order, lost ones first, the surest error of the model that is wrong first:
        ``sample_id``, ``class_name``, ``change`` ("right→wrong" or "wrong→right"), ``baseline`` and ``candidate`` (predicted
        classes), ``baseline_probability``, ``candidate_probability`` (of the predicted class, NaN without scores).

    Example:
        >>> from classmargin.evaluation import audit
        >>> old = audit([0, 1], predictions=[0, 0], class_names=["cat", "dog"], bootstrap=0)
        >>> new = audit([0, 1], predictions=[1, 1], class_names=["cat", "dog"], bootstrap=0)
        >>> flipped_samples(old, new)[["sample_id", "class_name", "change"]].to_dict("records")
        [{'sample_id': 0, 'class_name': 'cat', 'change': 'right→wrong'}, {'sample_id': 1, 'class_name': 'dog', 'change': 'wrong→right'}]
    """
    import pandas as pd

    from classmargin.evaluation.paired_tests import sample_order, shared_class_names

    names = np.array(shared_class_names([baseline, candidate]), dtype=object)
    first, second = sample_order([baseline, candidate])
    was = (baseline.labels == baseline.predictions)[first]
    now = (candidate.labels == candidate.predictions)[second]
    flipped = np.flatnonzero(was != now)
    first, second, was = first[flipped], second[flipped], was[flipped]
    probabilities = [_choices(model, rows)[0] for model, rows in ((baseline, first), (candidate, second))]
    of_the_wrong = np.where(was, probabilities[1], probabilities[0])
    frame = pd.DataFrame(
        {
            "sample_id": first if baseline.sample_id is None else baseline.sample_id[first],
            "class_name": names[baseline.labels[first]],
            "change": np.where(was, "right→wrong", "wrong→right"),
            "baseline": names[baseline.predictions[first]],
            "candidate": names[candidate.predictions[second]],
            "baseline_probability": probabilities[0],
            "candidate_probability": probabilities[1],
        }
    )
    order = np.lexsort((-of_the_wrong, ~was, baseline.labels[first]))
    return frame.iloc[order].reset_index(drop=True)
