"""Classes that are named and not numbered: text labels, and frames of scores whose columns carry the class names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    """Return the class names that all models know; a model whose classes are only numbered goes along with the others.

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
                f"the models must have the same class_names, got {len(first)} and {len(other)} classes"
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
            from classmargin._checks import did_you_mean  # it brings torch, which an audit does not need

            raise ValueError(
                f"{name} must hold names of class_names, got {entry!r}{did_you_mean(entry, known)}"
            )
    numbers: NDArray[np.int64] = np.array([position[entry] for entry in different.tolist()], dtype=np.int64)
    return numbers[inverse]
