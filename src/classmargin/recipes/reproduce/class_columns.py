"""Columns of the class tables that runs keep in ``audit.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin.evaluation.tiers import TIERS, tier_codes
from classmargin.training.run_folder import RunFolder

Values = npt.NDArray[np.float64]


def class_column(runs: Sequence[RunFolder], name: str) -> Values:
    """Return a column of the class table, mean over runs ``[K]``; NaN where a run does not tell."""
    found = []
    for run in runs:
        rows = read_audit_part(run, "by_class")
        found.append([np.nan if row[name] is None else float(row[name]) for row in rows])
    return np.asarray(np.mean(found, axis=0))


def read_audit_part(run: RunFolder, part: str) -> Any:
    """Return one part of the audit that a run keeps.

    Raises:
        ValueError: The file is missing or damaged.
    """
    try:
        return json.loads(run.audit_file.read_text(encoding="utf-8"))[part]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{run.audit_file} cannot be read as an audit ({error!r})") from error


def thirds_of(accuracy: Values) -> dict[str, npt.NDArray[np.int64]]:
    """Return the classes of each third, ranked by accuracy."""
    codes = tier_codes(accuracy)
    return {name: np.flatnonzero(codes == code) for code, name in enumerate(TIERS)}


def third_means(values: Values, accuracy: Values) -> dict[str, float | None]:
    """Return the mean of a class value over each third; None where a third has no class."""
    means = {}
    for name, classes in thirds_of(accuracy).items():
        known = values[classes][~np.isnan(values[classes])]
        means[name] = float(known.mean()) if len(known) else None
    return means
