"""Which samples and which kinds of samples: errors, doubted labels and typical ones of every class, samples that flip between models,
slices where a model fails, and super-classes.

A slice is the samples with one value of a property (a camera, a dark image). Within a class it is compared with the other samples of
the class by the hypergeometric test; across classes the classes are strata (Mantel-Haenszel), so a slice that merely holds many samples
of hard classes is not called bad. All slices are tested together (Benjamini-Hochberg).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin._checks import check_int
from classmargin._printable import printable
from classmargin.evaluation.class_diagnosis import doubted_labels
from classmargin.evaluation.class_metrics import share, wilson_interval
from classmargin.evaluation.input_checks import (
    AnyArray,
    FloatArray,
    IntArray,
    check_fraction,
    shared_names,
)
from classmargin.evaluation.paired_tests import benjamini_hochberg, sample_order

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

KINDS = ("error", "doubted label", "typical")
# Right samples listed of each class: enough to see what the class looks like.
MOST_TYPICAL = 5
# A cell that begins with one of these is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
MINIMUM = 20
DISCOVERY_RATE = 0.1
# A property with more different values is cut into thirds if it is a number, and left out if it is not.
MOST_VALUES = 30
THIRDS = ("low", "middle", "high")
ALL_CLASSES = ""


def sample_table(audit: Audit) -> pd.DataFrame:
    """Return :attr:`Audit.samples`; a sample that is wrong *and* whose label is doubted has two rows."""
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
    frame = pd.DataFrame({"sample_id": positions if audit.sample_id is None else audit.sample_id[positions]})
    return frame.assign(
        class_name=names[audit.labels[positions]],
        kind=np.array(KINDS, dtype=object)[kinds[order]],
        rank=places_in_groups(audit.labels[positions], kinds[order]) + 1,
        predicted=names[predicted],
        probability=probability,
        true_probability=true,
        second_choice=np.where(second < 0, "", names[np.maximum(second, 0)]),
        second_probability=second_probability,
        position=positions,
    )


def places_in_groups(*keys: IntArray) -> IntArray:
    """Return 0, 1, 2 … for the rows of each group of equal keys."""
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(keys)))
    return np.asarray(frame.groupby(list(frame.columns)).cumcount(), dtype=np.int64)


def _typical(audit: Audit) -> IntArray:
    """Return a few right samples of each class, those about as certain as its right samples usually are."""
    import pandas as pd

    right = np.flatnonzero(audit.labels == audit.predictions)
    if audit.scores is None or not len(right):
        return right[:0]
    labels, own = audit.labels[right], pd.Series(audit.scores.true_probability[right])
    distance = (own - own.groupby(labels).transform("median")).abs()
    order = np.lexsort((distance.to_numpy(), labels))
    return right[order[places_in_groups(audit.labels[right[order]]) < MOST_TYPICAL]]


def _choices(audit: Audit, rows: IntArray) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Return the probabilities of predicted and true class, the next class (-1 if none) and its probability."""
    scores, nothing = audit.scores, np.full(len(rows), np.nan)
    if scores is None:
        return nothing, nothing, np.full(len(rows), -1), nothing
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

    names = np.array(shared_names([baseline.class_names, candidate.class_names]), dtype=object)
    first, second = sample_order([baseline, candidate])
    was = (baseline.labels == baseline.predictions)[first]
    now = (candidate.labels == candidate.predictions)[second]
    flipped = np.flatnonzero(was != now)
    first, second, was = first[flipped], second[flipped], was[flipped]
    probabilities = [_choices(model, rows)[0] for model, rows in ((baseline, first), (candidate, second))]
    of_the_wrong = np.where(was, probabilities[1], probabilities[0])
    frame = pd.DataFrame({"sample_id": first if baseline.sample_id is None else baseline.sample_id[first]})
    frame = frame.assign(
        class_name=names[baseline.labels[first]],
        change=np.where(was, "right→wrong", "wrong→right"),
        baseline=names[baseline.predictions[first]],
        candidate=names[candidate.predictions[second]],
        baseline_probability=probabilities[0],
        candidate_probability=probabilities[1],
    )
    order = np.lexsort((-of_the_wrong, ~was, baseline.labels[first]))
    return frame.iloc[order].reset_index(drop=True)


def write_samples(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write samples as a ``.csv``, whole or not at all; texts that a spreadsheet would take for a formula begin with an apostrophe."""
    safe = frame.copy()
    for name in safe.columns:
        if safe[name].dtype.kind not in "iufb":
            texts = [printable(str(value)) for value in safe[name].tolist()]
            safe[name] = [f"'{text}" if text.startswith(FORMULA) else text for text in texts]
    with atomic_path(path) as temporary:
        safe.to_csv(temporary, index=False, lineterminator="\n")
    return Path(path)


def find_slices(
    audit: Audit, metadata: pd.DataFrame, *, minimum: int = MINIMUM, alpha: float = DISCOVERY_RATE
) -> pd.DataFrame:
    """Return the slices in which the model is worse than in the rest.

    Args:
        audit: Whose samples they are.
        metadata: One row per sample, one column per property; columns of numbers with many values are cut into thirds.
        minimum: Fewest samples of a slice, and of the rest that it is compared with.
        alpha: False discovery rate: about this share of the slices called ``found`` are chance.

    Returns:
        One row per tested slice that is worse than the rest, the surest first: ``class_name`` ("" for all classes), ``property``,
        ``value``, ``n``, ``accuracy``, ``low``, ``high`` (Wilson), ``elsewhere`` (accuracy of the rest; across classes, what the
        accuracies of its classes predict), ``p_value``, ``q_value``, ``found``.

    Example:
        >>> import pandas as pd
        >>> from classmargin.evaluation import audit
        >>> labels, light = np.repeat([0, 1], 100), np.tile(["dark", "bright"], 100)
        >>> predictions = np.where((labels == 0) & (light == "dark"), 1, labels)
        >>> found = find_slices(audit(labels, predictions=predictions, bootstrap=0), pd.DataFrame({"light": light}))
        >>> found[["class_name", "value", "n", "accuracy", "elsewhere"]].to_dict("records")[0]
        {'class_name': '0', 'value': 'dark', 'n': 50, 'accuracy': 0.0, 'elsewhere': 1.0}
    """
    import pandas as pd

    check_int("minimum", minimum, minimum=2)
    check_fraction("alpha", alpha)
    if len(metadata) != audit.num_samples:
        raise ValueError(f"metadata must have one row per sample ({audit.num_samples}), got {len(metadata)} rows")
    correct = audit.labels == audit.predictions
    rows: list[tuple[Any, ...]] = []
    for name in metadata.columns:
        codes, values = _values(metadata[name])
        if len(values) > 1:
            rows += _tests_of(audit, correct, str(name), codes, values, minimum)
    columns = ["class_name", "property", "value", "n", "accuracy", "elsewhere", "p_value"]
    frame = pd.DataFrame(rows, columns=columns)
    n, accuracy, p_value = (frame[name].to_numpy(dtype=np.float64) for name in ("n", "accuracy", "p_value"))
    low, high = wilson_interval(np.round(accuracy * n), n, audit.confidence)
    frame.insert(5, "low", low)
    frame.insert(6, "high", high)
    frame["q_value"] = benjamini_hochberg(p_value)
    frame["found"] = frame["q_value"] <= alpha
    worse = frame[frame["accuracy"] < frame["elsewhere"]]
    return worse.sort_values(["q_value", "p_value"], kind="stable").reset_index(drop=True)


def _values(column: pd.Series[Any]) -> tuple[IntArray, list[str]]:
    """Return the value of each sample as a number (-1: none) and the values in words."""
    import pandas as pd

    texts = column.astype(str).str.strip()
    codes, different = pd.factorize(texts.where(~column.isna() & (texts != ""), None), sort=True)
    if len(different) <= MOST_VALUES:
        return np.asarray(codes, dtype=np.int64), [str(value) for value in different]
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    known = np.isfinite(numbers)
    if known.mean() < 0.9:
        return np.full(len(column), -1), []  # names or free texts: no slices
    edges = np.quantile(numbers[known], [1 / 3, 2 / 3])
    codes = np.where(known, np.searchsorted(edges, np.where(known, numbers, 0.0)), -1)
    bounds = (f"≤ {edges[0]:.3g}", f"{edges[0]:.3g} to {edges[1]:.3g}", f"> {edges[1]:.3g}")
    return codes, [f"{third} ({words})" for third, words in zip(THIRDS, bounds, strict=True)]


def _tests_of(
    audit: Audit, correct: AnyArray, name: str, codes: IntArray, values: list[str], minimum: int
) -> list[tuple[Any, ...]]:
    from scipy.stats import hypergeom, norm

    num_classes, count = audit.num_classes, len(values)
    known = codes >= 0
    cell = audit.labels[known] * count + codes[known]
    n = np.bincount(cell, minlength=num_classes * count).reshape(num_classes, count)
    right = np.bincount(cell, weights=correct[known], minlength=n.size).reshape(n.shape).astype(np.int64)
    totals, rights = n.sum(axis=1, keepdims=True), right.sum(axis=1, keepdims=True)
    p_value = np.asarray(hypergeom.cdf(right, totals, rights, n))
    rows: list[tuple[Any, ...]] = []

    def add(name_of_class: str, v: Any, size: Any, hits: Any, elsewhere: Any, p: Any) -> None:
        rows.append((name_of_class, name, values[v], int(size), float(hits / size), float(elsewhere), float(p)))

    for k, v in zip(*np.nonzero((n >= minimum) & (totals - n >= minimum)), strict=True):
        rest = (rights[k, 0] - right[k, v]) / (totals[k, 0] - n[k, v])
        add(audit.class_names[k], v, n[k, v], right[k, v], rest, p_value[k, v])
    # All classes at once: errors beyond what the accuracy of each class predicts.
    pairs = np.maximum(totals - 1, 1)
    spread = n * (totals - n) * share(rights * (totals - rights), totals**2) / pairs
    expected, variance = (
        np.array([np.nansum(column) for column in each.T]) for each in (n * share(rights, totals), spread)
    )
    sizes, hits = n.sum(axis=0), right.sum(axis=0)
    tested = (sizes >= minimum) & (sizes.sum() - sizes >= minimum) & (variance > 0)
    for v in np.flatnonzero(tested):
        z = (hits[v] - expected[v] + 0.5) / np.sqrt(variance[v])
        add(ALL_CLASSES, v, sizes[v], hits[v], expected[v] / sizes[v], norm.cdf(z))
    return rows


def group_accuracies(audit: Audit, groups: Sequence[str]) -> pd.DataFrame:
    """Return the accuracy of super-classes, the worst first.

    Args:
        audit: Whose classes they are.
        groups: Super-class of each class ``[K]``.

    Returns:
        ``group``, ``classes``, ``n``, ``accuracy`` (of its classes), ``low``, ``high``, ``group_accuracy`` (the right super-class is
        enough), ``inside`` (share of its errors that stay in the super-class).

    Example:
        >>> from classmargin.evaluation import audit
        >>> result = audit([0, 1, 2, 2], predictions=[0, 0, 2, 1], class_names=["cat", "lynx", "dog"], bootstrap=0)
        >>> group_accuracies(result, ["feline", "feline", "canine"])[["group", "accuracy", "group_accuracy"]].to_dict("records")
        [{'group': 'canine', 'accuracy': 0.5, 'group_accuracy': 0.5}, {'group': 'feline', 'accuracy': 0.5, 'group_accuracy': 1.0}]
    """
    import pandas as pd

    if len(groups) != audit.num_classes:
        raise ValueError(f"groups must have one entry per class ({audit.num_classes}), got {len(groups)}")
    codes, names = pd.factorize(np.asarray([str(group) for group in groups], dtype=object), sort=True)
    truth, predicted = codes[audit.labels], codes[audit.predictions]
    correct, same = audit.labels == audit.predictions, truth == predicted

    def count(mask: AnyArray) -> IntArray:
        return np.bincount(truth[mask], minlength=len(names))

    n, right, inside = count(np.ones(len(truth), dtype=bool)), count(correct), count(same & ~correct)
    low, high = wilson_interval(right, n, audit.confidence)
    classes = np.bincount(codes, minlength=len(names))
    frame = pd.DataFrame({"group": list(map(str, names)), "classes": classes, "n": n, "accuracy": share(right, n)})
    frame = frame.assign(low=low, high=high, group_accuracy=share(count(same), n), inside=share(inside, n - right))
    return frame.sort_values("accuracy", kind="stable").reset_index(drop=True)
