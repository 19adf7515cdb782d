"""Which samples: confident errors, doubted labels and typical right ones of every class, and the samples that flip between models.

Doubted labels are ranked by self-confidence, the probability of the given label: the lower, the likelier a mistake in the label. That
ranking finds injected label noise better than the confident-learning flag alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from classmargin._atomic import atomic_path
from classmargin._checks import check_choice
from classmargin._printable import printable
from classmargin.evaluation.class_diagnosis import doubted_labels
from classmargin.evaluation.input_checks import FloatArray, IntArray, class_number, shared_names

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

KINDS = ("error", "doubted label", "typical")
# Right samples listed of each class: enough to see what the class looks like.
MOST_TYPICAL = 5
# A cell that begins with one of these is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def sample_table(audit: Audit) -> pd.DataFrame:
    """Return the samples worth a look, one row per sample and kind; see :attr:`Audit.samples`.

    A sample that is wrong *and* whose label is doubted has two rows.
    """
    import pandas as pd

    wrong = np.flatnonzero(audit.labels != audit.predictions)
    most_confident_first = np.argsort(-_choices(audit, wrong)[0], kind="stable")
    doubted, scores = wrong[:0], audit.scores
    if scores is not None:
        doubted = np.flatnonzero(doubted_labels(audit.labels, audit.predictions, scores, audit.num_classes))
        doubted = doubted[np.argsort(scores.true_probability[doubted], kind="stable")]  # the least believed first
    lists = [wrong[most_confident_first], doubted, _typical(audit)]
    positions = np.concatenate(lists)
    kinds = np.repeat(np.arange(len(KINDS)), [len(rows) for rows in lists])
    order = np.lexsort((kinds, audit.labels[positions]))  # stable: the order within a class and kind stays
    positions = positions[order]
    predicted = audit.predictions[positions]
    probability, true, second, second_probability = _choices(audit, positions)
    names = np.array(audit.class_names, dtype=object)
    return pd.DataFrame(
        {
            "sample_id": positions if audit.sample_id is None else audit.sample_id[positions],
            "class_name": names[audit.labels[positions]],
            "kind": np.array(KINDS, dtype=object)[kinds[order]],
            "rank": places_in_groups(audit.labels[positions], kinds[order]) + 1,
            "predicted": names[predicted],
            "probability": probability,
            "true_probability": true,
            "second_choice": np.where(second < 0, "", names[np.maximum(second, 0)]),
            "second_probability": second_probability,
            "position": positions,
        }
    )


def places_in_groups(*keys: IntArray) -> IntArray:
    """Return 0, 1, 2 … for the rows of each group of equal keys."""
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(keys)))
    return np.asarray(frame.groupby(list(frame.columns)).cumcount(), dtype=np.int64)


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
    for column, value in (("class_name", class_name), ("predicted", predicted)):
        if value is not None:
            class_number(audit.class_names, value, column)
            rows &= frame[column] == value
    found = frame[rows]
    if class_name is None and kind != "typical":
        key, ascending = ("probability", False) if kind == "error" else ("true_probability", True)
        found = found.sort_values(key, ascending=ascending, kind="stable", na_position="last")
    return (found if top is None else found.head(top)).reset_index(drop=True)


def _typical(audit: Audit) -> IntArray:
    """Return a few right samples of each class, those about as certain as its right samples usually are."""
    import pandas as pd

    right = np.flatnonzero(audit.labels == audit.predictions)
    if audit.scores is None or not len(right):
        return right[:0]
    frame = pd.DataFrame({"label": audit.labels[right], "own": audit.scores.true_probability[right]})
    distance = (frame["own"] - frame.groupby("label")["own"].transform("median")).abs()
    order = np.lexsort((distance.to_numpy(), frame["label"].to_numpy()))
    return right[order[places_in_groups(audit.labels[right[order]]) < MOST_TYPICAL]]


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

    from classmargin.evaluation.paired_tests import sample_order

    names = np.array(shared_names([baseline.class_names, candidate.class_names]), dtype=object)
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


def write_samples(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write samples as a table of comma-separated values, whole or not at all.

    Texts that a spreadsheet would take for a formula are prefixed with an apostrophe.
    """
    safe = frame.copy()
    for name in safe.columns:
        if safe[name].dtype.kind not in "iufb":
            texts = [printable(str(value)) for value in safe[name].tolist()]
            safe[name] = [f"'{text}" if text.startswith(FORMULA) else text for text in texts]
    with atomic_path(path) as temporary:
        safe.to_csv(temporary, index=False, lineterminator="\n")
    return Path(path)
