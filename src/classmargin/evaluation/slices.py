"""Groups and slices: where inside a class, or across classes, a model fails; and accuracies of super-classes.

A slice is the samples with one value of a property (a camera, a dark image). Within a class it is compared with the other samples of
the class by the hypergeometric test; across classes the classes are strata (Mantel-Haenszel), so a slice that merely holds many samples
of hard classes is not called bad. All slices are tested together and the false discovery rate is controlled (Benjamini-Hochberg).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._checks import check_int
from classmargin.evaluation.class_metrics import share
from classmargin.evaluation.input_checks import AnyArray, IntArray, check_fraction
from classmargin.evaluation.intervals import wilson_interval
from classmargin.evaluation.paired_tests import benjamini_hochberg

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

MINIMUM = 20
DISCOVERY_RATE = 0.1
# A property with more different values is cut into thirds if it is a number, and left out if it is not.
MOST_VALUES = 30
THIRDS = ("low", "middle", "high")
ALL_CLASSES = ""


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
        >>> wrong = (labels == 0) & (light == "dark")
        >>> found = find_slices(
        ...     audit(labels, predictions=np.where(wrong, 1, labels), class_names=["cat", "dog"], bootstrap=0),
        ...     pd.DataFrame({"light": light}),
        ... )
        >>> found[["class_name", "value", "n", "accuracy", "elsewhere"]].to_dict("records")[0]
        {'class_name': 'cat', 'value': 'dark', 'n': 50, 'accuracy': 0.0, 'elsewhere': 1.0}
    """
    import pandas as pd

    check_int("minimum", minimum, minimum=2)
    check_fraction("alpha", alpha)
    if len(metadata) != audit.num_samples:
        raise ValueError(f"metadata must have one row per sample ({audit.num_samples}), got {len(metadata)} rows")
    correct = audit.labels == audit.predictions
    rows: list[dict[str, Any]] = []
    for name in metadata.columns:
        codes, values = _values(metadata[name])
        if len(values) > 1:
            rows += _tests_of(audit, correct, str(name), codes, values, minimum)
    columns = ["class_name", "property", "value", "n", "accuracy", "elsewhere", "p_value"]
    frame = pd.DataFrame(rows, columns=columns)
    right = np.round(frame["accuracy"].to_numpy(dtype=np.float64) * frame["n"].to_numpy(dtype=np.float64))
    low, high = wilson_interval(right, frame["n"].to_numpy(dtype=np.float64), audit.confidence)
    frame.insert(5, "low", low)
    frame.insert(6, "high", high)
    frame["q_value"] = benjamini_hochberg(frame["p_value"].to_numpy(dtype=np.float64))
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
) -> list[dict[str, Any]]:
    from scipy.stats import hypergeom, norm

    num_classes, count = audit.num_classes, len(values)
    known = codes >= 0
    cell = audit.labels[known] * count + codes[known]
    n = np.bincount(cell, minlength=num_classes * count).reshape(num_classes, count)
    right = np.bincount(cell, weights=correct[known], minlength=n.size).reshape(n.shape).astype(np.int64)
    totals, rights = n.sum(axis=1, keepdims=True), right.sum(axis=1, keepdims=True)
    p_value = np.asarray(hypergeom.cdf(right, totals, rights, n))
    rows: list[dict[str, Any]] = []

    def add(name_of_class: str, v: Any, size: Any, hits: Any, elsewhere: Any, p: Any) -> None:
        found = {"class_name": name_of_class, "property": name, "value": values[v], "n": int(size)}
        rows.append(found | {"accuracy": float(hits / size), "elsewhere": float(elsewhere), "p_value": float(p)})

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
    frame = pd.DataFrame(
        {
            "group": [str(name) for name in names],
            "classes": np.bincount(codes, minlength=len(names)),
            "n": n,
            "accuracy": share(right, n),
            "low": low,
            "high": high,
            "group_accuracy": share(count(same), n),
            "inside": share(inside, n - right),
        }
    )
    return frame.sort_values("accuracy", kind="stable").reset_index(drop=True)
