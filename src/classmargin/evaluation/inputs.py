"""What the caller hands over, turned into checked NumPy arrays.

Arrays may come from NumPy, torch, pandas, polars or plain lists. Nothing large is copied: logits and features
keep their type and memory, and are read in chunks later on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import check_number
from classmargin.evaluation.named_classes import class_numbers, column_names, match_columns

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
AnyArray = NDArray[Any]

# Rows handled at once: 4096 x 1000 logits in float64 are 32 MB.
CHUNK_ROWS = 4096
# Counts of all pairs of classes take 8 GiB then; one row of scores, some kilobytes in a file, could ask for terabytes.
MOST_CLASSES = 32_768
# Largest distance of a row of probabilities from one; half precision rows of 1000 classes stay below it.
PROBABILITY_TOLERANCE = 1e-2


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
        class_names: One name a class, length ``K``.
        sample_id: One identity a sample ``[N]`` (integers or text), or ``None``.
    """

    labels: IntArray
    scores: AnyArray | None
    scores_are_logits: bool
    predictions: IntArray | None
    features: AnyArray | None
    classifier_weight: AnyArray | None
    class_names: tuple[str, ...]
    sample_id: AnyArray | None

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return len(self.class_names)


def to_array(name: str, values: Any) -> AnyArray:
    """Return ``values`` as a NumPy array without copying where that is possible.

    Example:
        >>> to_array("labels", [0, 1])
        array([0, 1])
    """
    if hasattr(values, "detach"):  # a torch tensor, perhaps on another device and in bfloat16
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
        return np.asarray(values.numpy())
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be a rectangular array, got rows of different length") from error
    if array.dtype == object:
        array = _without_objects(name, array)
    return _decoded(name, array) if array.dtype.kind == "S" else array


def _decoded(name: str, array: AnyArray) -> AnyArray:
    """Return text for bytes, which HDF5 and old files hold in its place."""
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must hold text in UTF-8, got other bytes ({error})") from error


def _without_objects(name: str, array: AnyArray) -> AnyArray:
    if all(isinstance(value, str) for value in array.flat):
        return array.astype(str)
    if all(isinstance(value, (int, float, np.number)) for value in array.flat):
        return np.asarray(array.tolist())
    # The odd one out: a missing value among names or numbers, which may stand anywhere.
    kind = str if isinstance(array.flat[0], str) else (int, float, np.number)
    odd, place = next((value, k) for k, value in enumerate(array.flat) if not isinstance(value, kind))
    raise TypeError(
        f"{name} must hold numbers or text, got Python objects such as {odd!r} (position {place})"
    )


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
    if class_names is None and num_classes is None and scores is None:
        _refuse_text(labels=labels, predictions=predictions)  # a number of classes would be asked for in vain
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
    check_weight(weight, count, None if feature_array is None else feature_array.shape[1])
    return AuditInputs(
        labels=label_array,
        scores=scores,
        scores_are_logits=logits is not None,
        predictions=predicted,
        features=feature_array,
        classifier_weight=weight,
        class_names=check_class_names(class_names, count),
        sample_id=_sample_id(sample_id, total),
    )


def check_class_names(class_names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """Return one name a class; without names the class numbers serve."""
    if class_names is None:
        return tuple(str(k) for k in range(num_classes))
    if isinstance(class_names, str):
        raise TypeError("class_names must be a sequence with one name a class, got a single string")
    names = tuple(str(name) for name in to_array("class_names", class_names).tolist())
    if len(names) != num_classes:
        raise ValueError(f"class_names must have {num_classes} names, got {len(names)}")
    if len(set(names)) == len(names):
        return names
    # ImageNet has two cranes: equal names get their class number, so that one row can be told from another.
    times = Counter(names)
    return tuple(f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(names))


def check_weight(classifier_weight: Any, num_classes: int, feature_dim: int | None) -> AnyArray | None:
    """Return the weights of the head as a finite array ``[K, d]``, or ``None``."""
    if classifier_weight is None:
        return None
    weight = _weight(classifier_weight)
    if weight.shape[0] != num_classes:
        raise ValueError(
            f"classifier_weight must have one row a class ({num_classes}), got shape {weight.shape}"
        )
    if feature_dim is not None and weight.shape[1] != feature_dim:
        raise ValueError(
            f"classifier_weight must have as many columns as features ({feature_dim}), got shape {weight.shape}"
        )
    return weight


def row_chunks(total: int, rows: int = CHUNK_ROWS) -> Iterator[slice]:
    """Yield slices that cover ``range(total)`` in pieces of at most ``rows``.

    Example:
        >>> [s.stop for s in row_chunks(5, 2)]
        [2, 4, 5]
    """
    for start in range(0, total, rows):
        yield slice(start, min(start + rows, total))


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
        raise ValueError(f"{name} must have one column a class, got shape {scores.shape}")
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
    """Take K from the head or the caller; the labels seen are never asked (a class may be absent)."""
    claims = {
        "num_classes": num_classes,
        "logits" if are_logits else "probabilities": None if scores is None else scores.shape[1],
        "classifier_weight": None if weight is None else weight.shape[0],
        "class_names": None if class_names is None else len(class_names),
    }
    known = {name: value for name, value in claims.items() if value is not None}
    if not known:
        raise ValueError(
            "the number of classes is not known from predictions alone (a class may be absent from the labels): "
            "give num_classes or class_names"
        )
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
    array = to_array(name, values)
    if array.ndim == 2 and array.shape[1] == 1 and column_names(values) is not None:
        array = array[:, 0]  # a frame of one column
    if array.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {array.shape}")
    if array.dtype.kind == "U" and array.size:
        array = class_numbers(name, array, class_names)
    # Data frames turn integers into floats easily.
    whole = array.dtype.kind == "f" and bool(np.isfinite(array).all() and np.all(np.mod(array, 1) == 0))
    if array.dtype.kind not in "iu" and not whole and array.size:
        raise TypeError(f"{name} must hold integer classes, got dtype {array.dtype}{_first_broken(array)}")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= num_classes):
        raise ValueError(
            f"{name} must lie in [0, {num_classes}), got values from {int(array.min())} to {int(array.max())}"
        )
    return array.astype(np.int64, copy=False) if array.size else np.zeros(0, dtype=np.int64)


def _first_broken(array: AnyArray) -> str:
    """Say which value of a floating array is no whole number; nothing about other arrays."""
    if array.dtype.kind != "f":
        return ""
    row = int(np.argmax(~np.isfinite(array) | (np.mod(np.where(np.isfinite(array), array, 0), 1) != 0)))
    return f" with {array[row]} in row {row}"


def _refuse_text(**arrays: Any) -> None:
    for name, values in arrays.items():
        array = to_array(name, values)
        if array.dtype.kind == "U" and array.size:
            class_numbers(name, array, None)


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
