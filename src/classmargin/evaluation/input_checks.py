"""Arrays that a caller hands over, checked once and turned into NumPy arrays.

They may come from NumPy, torch, pandas, polars or lists. Nothing large is copied: logits and features keep their type and memory and
are read in chunks later. Classes may be named rather than numbered, by text labels or by the columns of a frame of scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from classmargin._checks import check_number
from classmargin.evaluation.naming import (
    AnyArray,
    FloatArray,
    IntArray,
    check_class_names,
    class_numbers,
    column_names,
    match_columns,
    shared_names,
    to_array,
)

__all__ = ["AnyArray", "FloatArray", "IntArray", "check_class_names", "shared_names", "to_array"]

# Rows and values handled at once: 4096 x 1000 logits in float64 are 32 MB.
CHUNK_ROWS = 4096
CHUNK_VALUES = CHUNK_ROWS * 1000
# Counts of all pairs of classes take 8 GiB then; one row of scores, some kilobytes in a file, could ask for terabytes.
MOST_CLASSES = 32_768
# Largest distance of a row of probabilities from one; half precision rows of 1000 classes stay below it.
PROBABILITY_TOLERANCE = 1e-2
# … unless they were rounded to two or three decimals, as tables of probabilities often are. The first rows tell.
ROWS_TO_SEE_ROUNDING = 1000
MOST_ROUNDING = 0.5


@dataclass(frozen=True)
class AuditInputs:
    """Checked arrays of one test set.

    Attributes:
        labels: True classes ``[N]``, int64, in ``[0, K)``.
        scores: Logits or probabilities ``[N, K]`` in the caller's floating type, or ``None``.
        scores_are_logits: Which of the two ``scores`` are.
        predictions: Predicted classes ``[N]``, or ``None`` (then they are the largest score).
        features: Penultimate features ``[N, d]``, or ``None``.
        classifier_weight: Weights of the linear head ``[K, d]``, or ``None``.
        class_names: One name per class, length ``K``.
        sample_id: One identity per sample ``[N]`` (integers or text), or ``None``.
        tolerance: Largest distance of a row of probabilities from one.
        notes: What a reader must know about how the arrays were taken.
    """

    labels: IntArray
    scores: AnyArray | None
    scores_are_logits: bool
    predictions: IntArray | None
    features: AnyArray | None
    classifier_weight: AnyArray | None
    class_names: tuple[str, ...]
    sample_id: AnyArray | None
    tolerance: float = PROBABILITY_TOLERANCE
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.class_names)


def check_inputs(
    labels: Any,
    *,
    logits: Any = None,
    probabilities: Any = None,
    predictions: Any = None,
    features: Any = None,
    classifier_weight: Any = None,
    class_names: Sequence[str] | None = None,
    num_classes: int | None = None,
    sample_id: Any = None,
) -> AuditInputs:
    """Check everything about one test set that can be checked without touching the large arrays.

    Raises:
        ValueError: Shapes that do not fit, labels out of range, unknown number of classes.
        TypeError: Values of the wrong kind.
    """
    if class_names is not None and not isinstance(class_names, str):
        class_names = to_array("class_names", class_names).tolist()  # names in bytes are names as well
    logits, class_names = match_columns("logits", logits, class_names)
    probabilities, class_names = match_columns("probabilities", probabilities, class_names)
    scores = _scores(logits, probabilities, predictions)
    weight = None if classifier_weight is None else _weight(classifier_weight)
    tolerance, notes = _rounding(probabilities, scores)
    if class_names is None and num_classes is None and scores is None and weight is None:
        labels, predictions, class_names = _seen_classes(labels, predictions)
        notes = (*notes, seen_classes_note(len(class_names)))
    count = _num_classes(scores, logits is not None, weight, class_names, num_classes)
    label_array = _classes("labels", labels, count, class_names)
    total = label_array.shape[0]
    if total == 0:
        raise ValueError("labels must hold at least one sample, got none")
    _same_rows("logits" if logits is not None else "probabilities", scores, total)
    predicted = None if predictions is None else _classes("predictions", predictions, count, class_names)
    _same_rows("predictions", predicted, total)
    feature_array = None if features is None else _floating("features", features, 2)
    _same_rows("features", feature_array, total)
    if weight is not None:
        _check_weight_shape(weight, count, None if feature_array is None else feature_array.shape[1])
    return AuditInputs(
        labels=label_array,
        scores=scores,
        scores_are_logits=logits is not None,
        predictions=predicted,
        features=feature_array,
        classifier_weight=weight,
        class_names=check_class_names(class_names, count),
        sample_id=_sample_id(sample_id, total),
        tolerance=tolerance,
        notes=notes,
    )


def _seen_classes(labels: Any, predictions: Any) -> tuple[AnyArray, AnyArray, tuple[str, ...]]:
    """Return labels and predictions as class numbers and the names of the classes that are seen in them."""
    arrays = [
        _integers(name, array) if array.dtype.kind != "U" else array
        for name, array in (
            ("labels", _one_dimension("labels", labels)),
            ("predictions", _one_dimension("predictions", predictions)),
        )
    ]
    if len({array.dtype.kind == "U" for array in arrays}) > 1:
        raise TypeError("labels and predictions must both be numbers or both be names, got one of each")
    different = np.unique(np.concatenate(arrays))
    if len(different) and different.dtype.kind != "U" and different[0] < 0:
        raise ValueError(f"labels and predictions must hold classes of at least 0, got {different[0]}")
    numbers = [np.searchsorted(different, array) for array in arrays]
    return numbers[0], numbers[1], tuple(str(name) for name in different.tolist())


def seen_classes_note(count: int) -> str:
    """Return the note for classes that nobody listed."""
    return (
        f"The {count} classes are those seen in labels and predictions; a class that is absent from both is unknown "
        "(give num_classes or class_names to name all)."
    )


def _rounding(probabilities: Any, scores: AnyArray | None) -> tuple[float, tuple[str, ...]]:
    """Return the tolerance for rows of probabilities, larger where they were written with two or three decimals."""
    if probabilities is None or scores is None or not len(scores):
        return PROBABILITY_TOLERANCE, ()
    first = np.asarray(scores[:ROWS_TO_SEE_ROUNDING], dtype=np.float64)
    for decimals in (2, 3):
        step = 10.0**-decimals
        allowed = step / 2 * scores.shape[1] + 1e-6
        rounded = np.abs(first - np.round(first, decimals)).max() < 1e-6
        if rounded and allowed > PROBABILITY_TOLERANCE and np.abs(first.sum(axis=1) - 1).max() > 1e-6:
            return min(allowed, MOST_ROUNDING), (
                f"The probabilities have {decimals} decimals and miss a sum of 1 by rounding; rows were scaled to 1.",
            )
    return PROBABILITY_TOLERANCE, ()


def check_weight(classifier_weight: Any, num_classes: int, feature_dim: int | None) -> AnyArray | None:
    """Return the weights of the head as a finite array ``[K, d]``, or ``None``."""
    if classifier_weight is None:
        return None
    weight = _weight(classifier_weight)
    _check_weight_shape(weight, num_classes, feature_dim)
    return weight


def _check_weight_shape(weight: AnyArray, num_classes: int, feature_dim: int | None) -> None:
    if weight.shape[0] != num_classes:
        raise ValueError(
            f"classifier_weight must have one row per class ({num_classes}), got shape {weight.shape}"
        )
    if feature_dim is not None and weight.shape[1] != feature_dim:
        raise ValueError(
            f"classifier_weight must have as many columns as features ({feature_dim}), got shape {weight.shape}"
        )


def row_chunks(total: int, rows: int = CHUNK_ROWS) -> Iterator[slice]:
    """Yield slices that cover ``range(total)`` in pieces of at most ``rows``.

    Example:
        >>> [s.stop for s in row_chunks(5, 2)]
        [2, 4, 5]
    """
    for start in range(0, total, rows):
        yield slice(start, min(start + rows, total))


def rows_at_once(columns: int) -> int:
    """Return how many rows of so many columns are handled at once, fewer where they are wide.

    Example:
        >>> rows_at_once(10), rows_at_once(1000), rows_at_once(10_000)
        (4096, 4096, 409)
    """
    return max(64, min(CHUNK_ROWS, CHUNK_VALUES // columns))


def _scores(logits: Any, probabilities: Any, predictions: Any) -> AnyArray | None:
    if logits is not None and probabilities is not None:
        raise ValueError("give either logits or probabilities, got both")
    if logits is None and probabilities is None:
        if predictions is None:
            raise ValueError("give one of logits, probabilities or predictions, got none of them")
        return None
    name, values = ("logits", logits) if logits is not None else ("probabilities", probabilities)
    scores = _floating(name, values, 2)
    if scores.shape[1] == 0:
        raise ValueError(f"{name} must have one column per class, got shape {scores.shape}")
    return scores


def _weight(classifier_weight: Any) -> AnyArray:
    weight = _floating("classifier_weight", classifier_weight, 2)
    if not np.isfinite(weight).all():
        raise ValueError("classifier_weight must be finite, got NaN or infinite values")
    return weight


def _floating(name: str, values: Any, dim: int) -> AnyArray:
    array = to_array(name, values)
    if array.dtype.kind in "iu":
        array = array.astype(np.float32)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim != dim:
        raise ValueError(f"{name} must have {dim} dimensions, got shape {array.shape}")
    return array


def _num_classes(
    scores: AnyArray | None,
    are_logits: bool,
    weight: AnyArray | None,
    class_names: Sequence[str] | None,
    num_classes: int | None,
) -> int:
    """Take K from the head or the caller, never from the labels: a class may be absent from them."""
    claims = {
        "num_classes": num_classes,
        "logits" if are_logits else "probabilities": None if scores is None else scores.shape[1],
        "classifier_weight": None if weight is None else weight.shape[0],
        "class_names": None if class_names is None else len(class_names),
    }
    known = {name: value for name, value in claims.items() if value is not None}
    if not known:
        raise ValueError("give num_classes or class_names, got neither")
    if len(set(known.values())) > 1:
        raise ValueError(
            "the number of classes must be the same everywhere, got "
            + ", ".join(f"{value} from {name}" for name, value in known.items())
        )
    count = next(iter(known.values()))
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ValueError(f"num_classes must be a positive int, got {count!r}")
    if count > MOST_CLASSES:
        raise ValueError(
            f"{next(iter(known))} must stand for at most {MOST_CLASSES} classes, got {count}: an audit counts every "
            "pair of them"
        )
    return int(count)


def _classes(name: str, values: Any, num_classes: int, class_names: Sequence[str] | None = None) -> IntArray:
    array = _one_dimension(name, values)
    if array.dtype.kind == "U" and array.size:
        array = class_numbers(name, array, class_names)
    array = _integers(name, array)
    if array.size and (int(array.min()) < 0 or int(array.max()) >= num_classes):
        low, high = int(array.min()), int(array.max())
        hint = " (counted from 1? subtract 1)" if low == 1 and high == num_classes else ""
        raise ValueError(f"{name} must lie in [0, {num_classes}), got values from {low} to {high}{hint}")
    return array


def _one_dimension(name: str, values: Any) -> AnyArray:
    array = to_array(name, values)
    if array.ndim == 2 and array.shape[1] == 1 and column_names(values) is not None:
        array = array[:, 0]  # a frame of one column
    if array.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {array.shape}")
    return array


def _integers(name: str, array: AnyArray) -> IntArray:
    if not array.size:
        return np.zeros(0, dtype=np.int64)
    # Data frames turn integers into floats easily.
    whole = array.dtype.kind == "f" and bool(np.isfinite(array).all() and np.all(np.mod(array, 1) == 0))
    if array.dtype.kind not in "iu" and not whole:
        raise TypeError(f"{name} must hold integer classes, got dtype {array.dtype}{_first_broken(array)}")
    return array.astype(np.int64, copy=False)


def _first_broken(array: AnyArray) -> str:
    """Say which value of a floating array is no whole number; nothing about other arrays."""
    if array.dtype.kind != "f":
        return ""
    row = int(np.argmax(~np.isfinite(array) | (np.mod(np.where(np.isfinite(array), array, 0), 1) != 0)))
    hint = " (a missing label? leave out such rows)" if np.isnan(array[row]) else ""
    return f" with {array[row]} in row {row}{hint}"


def _same_rows(name: str, array: AnyArray | None, total: int) -> None:
    if array is not None and array.shape[0] != total:
        raise ValueError(f"{name} must have as many rows as labels ({total}), got shape {array.shape}")


def _sample_id(values: Any, total: int) -> AnyArray | None:
    if values is None:
        return None
    array = to_array("sample_id", values)
    if array.shape != (total,):
        raise ValueError(f"sample_id must have shape ({total},), got {array.shape}")
    if array.dtype.kind not in "iuUS":
        raise TypeError(f"sample_id must hold integers or text, got dtype {array.dtype}")
    if np.unique(array).shape[0] != total:
        raise ValueError("sample_id must name every sample once, got repeated values")
    return array


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1."""
    return check_number(name, value, above=0.0, below=1.0)
