"""Predictions in files: ``.npz``, ``.parquet``, ``.csv`` or a run folder -> :class:`Predictions` -> an audit.

Nothing is ever unpickled. Every problem with a file is a :class:`PredictionFileError` (a ``ValueError``) that names it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin.evaluation.audit import Audit, audit
from classmargin.evaluation.inputs import AnyArray, check_inputs, to_array
from classmargin.evaluation.npz_reader import DEFAULT_MAX_BYTES, PredictionFileError, read_npz
from classmargin.evaluation.table_reader import read_csv, read_parquet

__all__ = ["PredictionFileError", "Predictions", "read_class_names", "read_predictions", "write_predictions"]

ARRAYS = (
    "labels",
    "logits",
    "probabilities",
    "predictions",
    "features",
    "classifier_weight",
    "class_names",
    "sample_id",
)
SUFFIXES = (".npz", ".parquet", ".csv")
MAX_NAME_BYTES = 64 * 2**20
# How messages about the arrays begin; all others are about options of the caller.
_ABOUT_ARRAYS = (*(f"{name} " for name in ARRAYS), "the number of classes ")


@dataclass(frozen=True)
class Predictions:
    """Contents of a prediction file; what was not in it is ``None``.

    Attributes:
        source: The file that was read.
        labels: True classes ``[N]``.
        logits: ``[N, K]``.
        probabilities: ``[N, K]``.
        predictions: ``[N]``.
        features: ``[N, d]``.
        classifier_weight: ``[K, d]``.
        class_names: One name a class.
        sample_id: ``[N]``.
    """

    source: str
    labels: AnyArray
    logits: AnyArray | None = None
    probabilities: AnyArray | None = None
    predictions: AnyArray | None = None
    features: AnyArray | None = None
    classifier_weight: AnyArray | None = None
    class_names: tuple[str, ...] | None = None
    sample_id: AnyArray | None = None

    def arrays(self) -> dict[str, Any]:
        """Return everything but ``source`` as keyword arguments of :func:`classmargin.audit`."""
        return {name: getattr(self, name) for name in ARRAYS}

    def audit(self, **options: Any) -> Audit:
        """Audit these predictions; ``options`` go to :func:`classmargin.audit` and win over the file."""
        given = {**self.arrays(), **{name: value for name, value in options.items() if value is not None}}
        try:
            return audit(**given)
        except (ValueError, TypeError) as error:
            # Large arrays are looked at only now; of several files, the one at fault must be named.
            if str(error).startswith(_ABOUT_ARRAYS):
                raise PredictionFileError(f"{self.source}: {error}") from error
            raise


def read_predictions(
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Predictions:
    """Read predictions from a file or a run folder.

    Args:
        path: ``.npz`` with ``labels`` and one of ``logits``, ``probabilities``, ``predictions`` (optional ``features``,
            ``classifier_weight``, ``class_names``, ``sample_id``); ``.parquet`` or ``.csv`` with a column ``label`` and
            one ``p_<class>`` or ``logit_<class>`` a class, or a column ``prediction`` (optional ``sample_id``); or a folder
            that holds ``predictions.npz`` (or ``.parquet``, ``.csv``).
        class_names: Names in class order; they win over those of an ``.npz``.
        max_bytes: Refuse files that need more memory than this.

    Raises:
        PredictionFileError: The file is missing, of another kind, truncated, malicious or incomplete.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "predictions.npz"
        >>> np.savez(file, labels=[0, 1], logits=[[2.0, 1.0], [3.0, 0.0]])
        >>> read_predictions(file).audit(bootstrap=100).overall
        0.5
    """
    file = _find(Path(path))
    if file.suffix == ".npz":
        content = _from_npz(file, max_bytes)
        if class_names is not None:
            content["class_names"] = tuple(str(name) for name in class_names)
    else:
        reader = read_csv if file.suffix == ".csv" else read_parquet
        content = reader(file, class_names, max_bytes)
    if not any(name in content for name in ("logits", "probabilities", "predictions")):
        raise PredictionFileError(f"{file} must hold logits, probabilities or predictions, got none of them")
    if not any(name in content for name in ("logits", "probabilities", "classifier_weight", "class_names")):
        return Predictions(source=str(file), **content)  # K is not known yet: the audit is told and checks
    try:
        check_inputs(**content)
    except (ValueError, TypeError) as error:
        raise PredictionFileError(f"{file}: {error}") from error
    return Predictions(source=str(file), **content)


def write_predictions(path: str | os.PathLike[str], labels: Any, **arrays: Any) -> Path:
    """Write an ``.npz`` that :func:`read_predictions` reads; atomic, checked first.

    Args:
        path: Target, ending in ``.npz``.
        labels: True classes ``[N]``.
        arrays: Any of the other arrays of :class:`Predictions`.
    """
    unknown = sorted(set(arrays) - set(ARRAYS))
    if unknown:
        raise ValueError(f"arrays must be among {', '.join(ARRAYS)}; got {unknown[0]!r}")
    target = Path(path)
    if target.suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {target}")
    inputs = check_inputs(labels, **arrays)
    scores_name = "logits" if inputs.scores_are_logits else "probabilities"
    content: dict[str, Any] = {
        "labels": inputs.labels,
        scores_name: inputs.scores,
        "predictions": inputs.predictions,
        "features": inputs.features,
        "classifier_weight": inputs.classifier_weight,
        "class_names": np.array(inputs.class_names),
        "sample_id": inputs.sample_id,
    }
    with atomic_path(target) as temporary:
        np.savez(temporary, **{name: value for name, value in content.items() if value is not None})
    return target


def read_class_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read class names in class order from a text file (one a line) or a ``.json`` list.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "names.txt"
        >>> _ = file.write_text("cat" + chr(10) + "dog" + chr(10))
        >>> read_class_names(file)
        ('cat', 'dog')
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_NAME_BYTES:
            raise PredictionFileError(f"{file} is too large for a list of class names")
        text = file.read_text(encoding="utf-8-sig")
        names = json.loads(text) if file.suffix == ".json" else text.splitlines()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PredictionFileError(f"{file} cannot be read as class names ({error})") from error
    if not isinstance(names, list) or not all(isinstance(name, (str, int)) for name in names):
        raise PredictionFileError(f"{file} must hold a JSON list of names")
    stripped = tuple(str(name).strip() for name in names)
    kept = stripped[:-1] if stripped and stripped[-1] == "" else stripped
    if not kept or "" in kept:
        raise PredictionFileError(f"{file} must hold one class name a line, got an empty line or no name")
    return kept


def _find(path: Path) -> Path:
    if path.is_dir():
        for suffix in SUFFIXES:
            if (path / f"predictions{suffix}").is_file():
                return path / f"predictions{suffix}"
        raise PredictionFileError(_why_no_predictions(path))
    if not path.is_file():
        raise PredictionFileError(f"{path} does not exist")
    if path.suffix not in SUFFIXES:
        raise PredictionFileError(f"{path} must end in {', '.join(SUFFIXES)} or be a run folder")
    return path


def _why_no_predictions(folder: Path) -> str:
    # A run folder is known by its config.toml and is finished when it has a "done" (training/run_folder.py).
    quoted = shlex.quote(str(folder))
    if not (folder / "config.toml").is_file():
        return f"{folder} is a folder without a predictions.npz, predictions.parquet or predictions.csv"
    if not (folder / "done").is_file():
        return (
            f"{folder} holds an unfinished run, which has no predictions yet; "
            f"finish it with: classmargin train --out {quoted} --resume"
        )
    return (
        f"{folder} holds a finished run without predictions.npz; make predictions with: "
        f"classmargin predict {quoted} DATA, and give the file that it writes"
    )


def _from_npz(file: Path, max_bytes: int) -> dict[str, Any]:
    content: dict[str, Any] = read_npz(file, ARRAYS, max_bytes=max_bytes)
    if "labels" not in content:
        raise PredictionFileError(
            f"{file} must hold an array 'labels' (and logits, probabilities or predictions)"
        )
    if "class_names" in content:
        names = content["class_names"]
        if names.ndim != 1 or names.dtype.kind not in "US":
            raise PredictionFileError(
                f"{file}: class_names must be a list of texts, got {names.dtype} {names.shape}"
            )
        try:
            content["class_names"] = tuple(to_array("class_names", names).tolist())
        except ValueError as error:
            raise PredictionFileError(f"{file}: {error}") from error
    if "logits" in content and "probabilities" in content:
        del content["probabilities"]  # they say the same; logits say it more precisely
    return content
