"""Values of a caller as NumPy arrays, and classes by name: which names there are, in which order, and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from classmargin._checks import did_you_mean

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
AnyArray = NDArray[Any]


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
    """Return the column names of a pandas or polars frame; None for anything else, and for columns only numbered.

    Example:
        >>> import pandas as pd
        >>> column_names(pd.DataFrame({"cat": [0.1], "dog": [0.9]})), column_names(np.zeros((1, 2)))
        (('cat', 'dog'), None)
    """
    columns = getattr(values, "columns", None)
    if columns is None:
        return None
    names = tuple(columns)
    numbered = all(
        name == f"column_{k}" for k, name in enumerate(names)
    )  # what polars calls nameless columns
    if numbered or not all(isinstance(name, str) for name in names):
        return None
    return names


def match_columns(
    name: str, values: Any, class_names: Sequence[str] | None
) -> tuple[Any, Sequence[str] | None]:
    """Return scores with their columns in class order, and the class names.

    Args:
        name: What the scores are called.
        values: Scores ``[N, K]``, perhaps a frame.
        class_names: Names in class order; where there are none, those of the columns serve.

    Raises:
        ValueError: Columns and class names that name different classes.
    """
    columns = column_names(values)
    if columns is None:
        return values, class_names
    if class_names is None:
        return values, columns
    wanted = [str(entry) for entry in class_names]
    if list(columns) == wanted:
        return values, class_names
    if sorted(columns) != sorted(wanted):
        odd = sorted(set(columns) ^ set(wanted))
        raise ValueError(
            f"the columns of {name} and class_names must name the same classes"
            + (f", got {odd[0]!r} in only one of them" if odd else "")
        )
    return values[wanted], class_names


def shared_names(models: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the class names that all models know; a model with numbered classes adopts those of the others.

    Args:
        models: Class names of each model.

    Raises:
        ValueError: Another number of classes, or other names.

    Example:
        >>> shared_names([("0", "1"), ("cat", "dog")])
        ('cat', 'dog')
    """
    first = models[0]
    for other in models[1:]:
        if len(other) != len(first):
            raise ValueError(
                f"the models must have the same class_names, got {len(first)} and {len(other)} classes; where a model "
                "brings none, those it has seen were taken: give num_classes or class_names"
            )
    numbers = tuple(str(k) for k in range(len(first)))
    named = [names for names in models if names != numbers]
    for other_names in named[1:]:
        for k, (ours, theirs) in enumerate(zip(named[0], other_names, strict=True)):
            if ours != theirs:
                raise ValueError(
                    f"the models must have the same class_names in the same order, but class {k} is {ours!r} in one "
                    f"and {theirs!r} in another"
                )
    return named[0] if named else numbers


def class_numbers(name: str, values: NDArray[Any], class_names: Sequence[str] | None) -> NDArray[np.int64]:
    """Turn class names ``[N]`` into class numbers ``[N]``.

    Raises:
        TypeError: No class names are known.
        ValueError: A label is none of them.

    Example:
        >>> class_numbers("labels", np.array(["dog", "cat"]), ["cat", "dog"]).tolist()
        [1, 0]
    """
    if class_names is None:
        raise TypeError(
            f"{name} must hold integer classes, or names together with class_names (all of them, in class order: a class may "
            "be absent from the labels), got text alone: give class_names"
        )
    known = [str(entry) for entry in class_names]
    if len(set(known)) < len(known):
        raise ValueError(f"{name} names its classes, which needs class_names without repetition")
    position = {entry: k for k, entry in enumerate(known)}
    different, inverse = np.unique(values, return_inverse=True)
    for entry in different.tolist():
        if entry not in position:
            raise ValueError(
                f"{name} must hold names of class_names, got {entry!r}{did_you_mean(entry, known)}"
            )
    numbers: NDArray[np.int64] = np.array([position[entry] for entry in different.tolist()], dtype=np.int64)
    return numbers[inverse]
