"""Costs of mistakes in a file: which mistakes hurt more than others."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence

import numpy as np

from classmargin.evaluation.input_checks import FloatArray

_MOST_BYTES = 64 * 2**20


def read_costs(path: str | os.PathLike[str], class_names: Sequence[str] | None) -> FloatArray:
    """Read the cost of taking a class (row) for another (column).

    The first row and the first column hold the names of the classes, in any order; every class of ``class_names`` must be there.

    Args:
        path: A CSV file.
        class_names: One name per class, in class order; ``None`` takes the order of the file.

    Returns:
        Costs ``[K, K]``.

    Raises:
        ValueError: A missing class, another shape, or an entry that is no finite number.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "costs.csv"
        >>> _ = file.write_text(chr(10).join([",dog,cat", "cat,5,0", "dog,0,1"]))
        >>> read_costs(file, ["cat", "dog"]).tolist()
        [[0.0, 5.0], [1.0, 0.0]]
    """
    if os.path.getsize(path) > _MOST_BYTES:
        raise ValueError(
            f"{os.fspath(path)}: a table of costs must be smaller than {_MOST_BYTES // 2**20} MiB"
        )
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(
            f"{os.fspath(path)}: costs need a first row and a first column of class names, and rows of one length"
        )
    columns = {name.strip(): place for place, name in enumerate(rows[0]) if place}
    by_name = {row[0].strip(): row for row in rows[1:]}
    wanted = list(class_names) if class_names is not None else list(columns)
    for name in wanted:
        if name not in columns or name not in by_name:
            raise ValueError(
                f"{os.fspath(path)}: costs must have a row and a column for every class, {name!r} lacks one"
            )
    try:
        costs = np.array([[float(by_name[one][columns[other]]) for other in wanted] for one in wanted])
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: costs must be numbers ({error})") from error
    if not np.isfinite(costs).all():
        raise ValueError(f"{os.fspath(path)}: costs must be finite numbers")
    return costs
