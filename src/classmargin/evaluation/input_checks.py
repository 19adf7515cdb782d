"""Arrays of NumPy, torch, pandas, polars or lists that a caller hands over, checked once and turned into NumPy arrays.

Nothing large is copied: logits and features keep their type and memory and are read in chunks later. Classes may be named rather than
numbered, by text labels or by the columns of a frame of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import check_int, check_number, did_you_mean

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
AnyArray = NDArray[Any]

# Rows and values handled at once: 4096 x 1000 logits in float64 are 32 MB.
CHUNK_ROWS = 4096
CHUNK_VALUES = CHUNK_ROWS * 1000
# Counts of all pairs of classes take 8 GiB then; one row of scores, some kilobytes in a file, could ask for terabytes.
MOST_CLASSES = 32_768
# Largest distance of a row of probabilities from one; half precision rows of 1000 classes stay below it.
PROBABILITY_TOLERANCE = 1e-2
# … unless they were rounded to two or three decimals, as tables of probabilities often are. The first rows tell.
ROWS_TO_SEE_ROUNDING, MOST_ROUNDING = 1000, 0.5
SEEN_CLASSES_NOTE = (
    "The {} classes are those seen in labels and predictions; a class that is absent from both is unknown "
    "(give num_classes or class_names to name all)."
)


class AuditInputs(NamedTuple):
    """Checked arrays of one test set."""

    labels: IntArray  # true classes [N], int64, in [0, K)
    scores: AnyArray | None  # logits or probabilities [N, K] in the caller's floating type, or None
    scores_are_logits: bool  # which of the two scores are
    predictions: IntArray | None  # predicted classes [N], or None (then they are the largest score)
    features: AnyArray | None  # penultimate features [N, d], or None
    classifier_weight: AnyArray | None  # weights of the linear head [K, d], or None
    class_names: tuple[str, ...]  # one name per class, length K
    sample_id: AnyArray | None  # one identity per sample [N] (integers or text), or None
    tolerance: float = PROBABILITY_TOLERANCE  # largest distance of a row of probabilities from one
    notes: tuple[str, ...] = ()  # what a reader must know about how the arrays were taken

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
    """Check everything about one test set that can be checked without touching the large arrays."""
    if class_names is not None and not isinstance(class_names, str):
        class_names = to_array("class_names", class_names).tolist()  # names in bytes are names as well
    logits, class_names = match_columns("logits", logits, class_names)
    probabilities, class_names = match_columns("probabilities", probabilities, class_names)
    if logits is not None and probabilities is not None:
        raise ValueError("give either logits or probabilities, got both")
    if logits is None and probabilities is None and predictions is None:
        raise ValueError("give one of logits, probabilities or predictions, got none of them")
    scores_name, given = ("probabilities", probabilities) if logits is None else ("logits", logits)
    scores, feature_array = _floating(scores_name, given), _floating("features", features)
    if scores is not None and scores.shape[1] == 0:
        raise ValueError(f"{scores_name} must have one column per class, got shape {scores.shape}")
    weight = check_weight(classifier_weight, None, None if feature_array is None else feature_array.shape[1])
    tolerance, notes = _rounding(probabilities, scores)
    if class_names is None and num_classes is None and scores is None and weight is None:
        labels, predictions, class_names = _seen_classes(labels, predictions)
        notes = (*notes, SEEN_CLASSES_NOTE.format(len(class_names)))
    # K is taken from the head or the caller, never from the labels: a class may be absent from them.
    claims = {
        "num_classes": num_classes,
        scores_name: None if scores is None else scores.shape[1],
        "classifier_weight": None if weight is None else weight.shape[0],
        "class_names": None if class_names is None else len(class_names),
    }
    count = _num_classes({name: value for name, value in claims.items() if value is not None})
    label_array = _classes("labels", labels, count, class_names)
    if not len(label_array):
        raise ValueError("labels must hold at least one sample, got none")
    predicted = None if predictions is None else _classes("predictions", predictions, count, class_names)
    for name, array in ((scores_name, scores), ("predictions", predicted), ("features", feature_array)):
        if array is not None and len(array) != len(label_array):
            raise ValueError(f"{name} must have as many rows as labels ({len(label_array)}), got shape {array.shape}")
    names, identity = check_class_names(class_names, count), _sample_id(sample_id, len(label_array))
    are_logits = logits is not None
    return AuditInputs(
        label_array, scores, are_logits, predicted, feature_array, weight, names, identity, tolerance, notes
    )


def _seen_classes(labels: Any, predictions: Any) -> tuple[AnyArray, AnyArray, tuple[str, ...]]:
    """Return labels and predictions as class numbers and the names of the classes that are seen in them."""
    given = {"labels": _one_dimension("labels", labels), "predictions": _one_dimension("predictions", predictions)}
    arrays = [array if array.dtype.kind == "U" else _integers(name, array) for name, array in given.items()]
    if len({array.dtype.kind == "U" for array in arrays}) > 1:
        raise TypeError("labels and predictions must both be numbers or both be names, got one of each")
    different = np.unique(np.concatenate(arrays))
    if len(different) and different.dtype.kind != "U" and different[0] < 0:
        raise ValueError(f"labels and predictions must hold classes of at least 0, got {different[0]}")
    numbers = [np.searchsorted(different, array) for array in arrays]
    return numbers[0], numbers[1], tuple(str(name) for name in different.tolist())


def _rounding(probabilities: Any, scores: AnyArray | None) -> tuple[float, tuple[str, ...]]:
    """Return the tolerance for rows of probabilities, larger where they were written with two or three decimals."""
    if probabilities is None or scores is None or not len(scores):
        return PROBABILITY_TOLERANCE, ()
    first = np.asarray(scores[:ROWS_TO_SEE_ROUNDING], dtype=np.float64)
    for decimals in (2, 3):
        allowed = 10.0**-decimals / 2 * scores.shape[1] + 1e-6
        rounded = np.abs(first - np.round(first, decimals)).max() < 1e-6
        if rounded and allowed > PROBABILITY_TOLERANCE and np.abs(first.sum(axis=1) - 1).max() > 1e-6:
            note = f"The probabilities have {decimals} decimals and miss a sum of 1 by rounding; rows were scaled to 1."
            return min(allowed, MOST_ROUNDING), (note,)
    return PROBABILITY_TOLERANCE, ()


def check_weight(classifier_weight: Any, num_classes: int | None, feature_dim: int | None) -> AnyArray | None:
    """Return the weights of the head as a finite array ``[K, d]``, or ``None``."""
    weight = _floating("classifier_weight", classifier_weight)
    if weight is None:
        return None
    if not np.isfinite(weight).all():
        raise ValueError("classifier_weight must be finite, got NaN or infinite values")
    got = f"got shape {weight.shape}"
    if num_classes is not None and weight.shape[0] != num_classes:
        raise ValueError(f"classifier_weight must have one row per class ({num_classes}), {got}")
    if feature_dim is not None and weight.shape[1] != feature_dim:
        raise ValueError(f"classifier_weight must have as many columns as features ({feature_dim}), {got}")
    return weight


def row_chunks(total: int, rows: int = CHUNK_ROWS) -> Iterator[slice]:
    """Yield slices that cover ``range(total)`` in pieces of at most ``rows``."""
    for start in range(0, total, rows):
        yield slice(start, min(start + rows, total))


def _floating(name: str, values: Any) -> AnyArray | None:
    if values is None:
        return None
    array = to_array(name, values)
    if array.dtype.kind in "iu":
        array = array.astype(np.float32)
    if array.dtype.kind != "f":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim != 2:
        raise ValueError(f"{name} must have 2 dimensions, got shape {array.shape}")
    return array


def _num_classes(claims: dict[str, int]) -> int:
    """Return the number of classes on which all agree."""
    if len(set(claims.values())) > 1:
        words = ", ".join(f"{value} from {name}" for name, value in claims.items())
        raise ValueError(f"the number of classes must be the same everywhere, got {words}")
    first, count = next(iter(claims.items()))
    count = check_int(first, count, minimum=1)
    if count > MOST_CLASSES:
        raise ValueError(
            f"{first} must stand for at most {MOST_CLASSES} classes, got {count}: an audit counts every pair of them"
        )
    return count


def _classes(name: str, values: Any, num_classes: int, class_names: Sequence[str] | None = None) -> IntArray:
    array = _one_dimension(name, values)
    if array.dtype.kind == "U" and array.size:
        array = _numbers_of_names(name, array, class_names)
    array = _integers(name, array)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low < 0 or high >= num_classes:
        hint = " (counted from 1? subtract 1)" if low == 1 and high == num_classes else ""
        raise ValueError(f"{name} must lie in [0, {num_classes}), got values from {low} to {high}{hint}")
    return array


def _numbers_of_names(name: str, values: AnyArray, class_names: Sequence[str] | None) -> IntArray:
    if class_names is None:
        raise TypeError(
            f"{name} must hold integer classes, or names together with class_names (in class order), got text alone: give class_names"
        )
    known = [str(entry) for entry in class_names]
    if len(set(known)) < len(known):
        raise ValueError(f"{name} names its classes, which needs class_names without repetition")
    position = {entry: k for k, entry in enumerate(known)}
    different, inverse = np.unique(values, return_inverse=True)
    odd = next((entry for entry in different.tolist() if entry not in position), None)
    if odd is not None:
        raise ValueError(f"{name} must hold names of class_names, got {odd!r}{did_you_mean(odd, known)}")
    return np.array([position[entry] for entry in different.tolist()], dtype=np.int64)[inverse]


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
        where = ""
        if array.dtype.kind == "f":  # which value is no whole number
            row = int(np.argmax(np.nan_to_num(array, nan=0.5, posinf=0.5, neginf=0.5) % 1 != 0))
            hint = " (a missing label? leave out such rows)" if np.isnan(array[row]) else ""
            where = f" with {array[row]} in row {row}{hint}"
        raise TypeError(f"{name} must hold integer classes, got dtype {array.dtype}{where}")
    return array.astype(np.int64, copy=False)


def _sample_id(values: Any, total: int) -> AnyArray | None:
    if values is None:
        return None
    array = to_array("sample_id", values)
    if array.shape != (total,):
        raise ValueError(f"sample_id must have shape ({total},), got {array.shape}")
    if array.dtype.kind not in "iuUS":
        raise TypeError(f"sample_id must hold integers or text, got dtype {array.dtype}")
    if len(np.unique(array)) != total:
        raise ValueError("sample_id must name every sample once, got repeated values")
    return array


def check_fraction(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1."""
    return check_number(name, value, above=0.0, below=1.0)


def to_array(name: str, values: Any) -> AnyArray:
    """Return ``values`` as a NumPy array without copying where that is possible."""
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
    try:  # HDF5 and old files hold bytes in place of text
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
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
    raise TypeError(f"{name} must hold numbers or text, got Python objects such as {odd!r} (position {place})")


def check_class_names(class_names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """Return one name per class; without names the class numbers serve."""
    if class_names is None:
        return tuple(str(k) for k in range(num_classes))
    if isinstance(class_names, str):
        raise TypeError("class_names must be a sequence with one name per class, got a single string")
    names = tuple(str(name) for name in to_array("class_names", class_names).tolist())
    if len(names) != num_classes:
        raise ValueError(f"class_names must have {num_classes} names, got {len(names)}")
    if len(set(names)) == len(names):
        return names
    # ImageNet has two cranes: equal names get their class number, so that one row can be told from another.
    times = Counter(names)
    return tuple(f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(names))


def column_names(values: Any) -> tuple[str, ...] | None:
    """Return the column names of a pandas or polars frame; None for anything else, and for columns only numbered."""
    names = tuple(getattr(values, "columns", ()))
    numbered = all(name == f"column_{k}" for k, name in enumerate(names))  # nameless ones in polars
    return None if numbered or not all(isinstance(name, str) for name in names) else names


def match_columns(name: str, values: Any, class_names: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """Return scores with their columns in class order, and the class names."""
    columns = column_names(values)
    if columns is None:
        return values, class_names
    if class_names is None:
        return values, columns
    wanted = [str(entry) for entry in class_names]
    if sorted(columns) != sorted(wanted):
        odd = sorted(set(columns) ^ set(wanted))
        words = f", got {odd[0]!r} in only one of them" if odd else ""
        raise ValueError(f"the columns of {name} and class_names must name the same classes{words}")
    return (values if list(columns) == wanted else values[wanted]), class_names


def shared_names(models: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the class names that all models know; a model with numbered classes adopts those of the others."""
    count = len(models[0])
    other = next((len(names) for names in models if len(names) != count), count)
    if other != count:
        raise ValueError(
            f"the models must have the same class_names, got {count} and {other} classes (give num_classes or class_names)"
        )
    numbers = tuple(str(k) for k in range(count))
    named = [names for names in models if names != numbers]
    for names in named[1:]:
        if names != named[0]:
            k = next(k for k, name in enumerate(names) if name != named[0][k])
            words = f"class {k} is {named[0][k]!r} in one and {names[k]!r} in another"
            raise ValueError(f"the models must have the same class_names in the same order, but {words}")
    return named[0] if named else numbers


def class_number(class_names: tuple[str, ...], name: str, argument: str) -> int:
    """Return the number of the class called ``name``."""
    if name not in class_names:
        hint = did_you_mean(str(name), class_names)
        raise ValueError(f"{argument} must be one of the class names, got {name!r}{hint}")
    return class_names.index(name)
