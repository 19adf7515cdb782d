"""Predictions in files: ``.npz``, ``.parquet``, ``.csv`` or a run folder -> :class:`Predictions` -> an audit.

Nothing is ever unpickled. Every problem with a file is a :class:`PredictionFileError` (a ``ValueError``) that names it. The tables
(``.parquet``, ``.csv``) are read by ``prediction_tables``.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._array_files import ArrayFileError, archive_names, read_npy_array, read_npz_arrays
from classmargin._atomic import atomic_path
from classmargin._files import memory_budget, read_text
from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit, audit_inputs
from classmargin.evaluation.input_checks import AnyArray, AuditInputs, check_inputs, to_array
from classmargin.evaluation.prediction_tables import (
    ALIASES,
    MOST_NAMED,
    PredictionFileError,
    read_csv,
    read_parquet,
)

# Predictions of more than this are asked for (--max-memory), because an audit makes copies of what it reads.
LARGEST = 8 * 2**30


def read_npz(path: Path, names: Iterable[str], *, max_bytes: int | None = None) -> dict[str, AnyArray]:
    """Return the arrays of ``path`` whose name is in ``names``; other members are not read.

    Raises:
        PredictionFileError: Not a zip, truncated, object arrays, sizes that do not fit or are too large.
    """
    try:
        limit = memory_budget(LARGEST) if max_bytes is None else max_bytes
        return read_npz_arrays(path, names, max_bytes=limit, mapped=(*SCORES, *SCORE_ALIASES))
    except ArrayFileError as error:
        raise PredictionFileError(str(error)) from error


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
SCORES = ("logits", "probabilities")
# What shows a sample rather than describes it: not for the audit, but for its report.
FACES = ("image_path", "text", "images")
TABLES = {".parquet": read_parquet, ".csv": read_csv}
SUFFIXES = (".npz", *TABLES)
# Other names of arrays; what is read by one of them is said in a note.
SCORE_ALIASES = dict.fromkeys(("probs", "proba", "y_prob", "y_proba"), "probabilities")
ARRAY_ALIASES = {alias: f"{name}s" for name, others in ALIASES.items() for alias in others}
ARRAY_ALIASES |= {**SCORE_ALIASES, "sample_ids": "sample_id"}
READ = (*ARRAYS, *FACES, *ARRAY_ALIASES)
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
        class_names: One name per class.
        sample_id: ``[N]``.
        image_path: Path of the picture of each sample ``[N]``.
        text: Text of each sample ``[N]``.
        images: Pictures ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``.
        notes: What a reader must know about how the file was read.
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
    image_path: AnyArray | None = None
    text: AnyArray | None = None
    images: AnyArray | None = None
    notes: tuple[str, ...] = ()
    # The same arrays as read_predictions checked them; not an argument, so that dataclasses.replace drops it.
    _checked: AuditInputs | None = field(default=None, init=False, repr=False, compare=False)

    def arrays(self) -> dict[str, Any]:
        """Return everything but ``source`` as keyword arguments of :func:`classmargin.audit`."""
        return {name: getattr(self, name) for name in ARRAYS}

    def audit(self, **options: Any) -> Audit:
        """Audit these predictions; ``options`` go to :func:`classmargin.audit` and win over the file."""
        given = {name: value for name, value in options.items() if value is not None}
        try:
            if self._checked is not None and not given.keys() & {*ARRAYS, "num_classes"}:
                result = audit_inputs(self._checked, **given)
            else:
                result = audit(**{**self.arrays(), **given})
            return replace(result, notes=(*self.notes, *result.notes)) if self.notes else result
        except (ValueError, TypeError) as error:
            # Large arrays are looked at only now; of several files, the one at fault must be named.
            if str(error).startswith(_ABOUT_ARRAYS):
                raise PredictionFileError(f"{self.source}: {error}") from error
            raise


def read_predictions(
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    max_bytes: int | None = None,
) -> Predictions:
    """Read predictions from a file or a run folder.

    Args:
        path: ``.npz`` with ``labels`` and one of ``logits``, ``probabilities``, ``predictions`` (optional ``features``,
            ``classifier_weight``, ``class_names``, ``sample_id``); ``.parquet`` or ``.csv`` with a column ``label`` and
            one ``p_<class>`` or ``logit_<class>`` per class, or a column ``prediction`` (optional ``sample_id``); or a folder
            that holds ``predictions.npz`` (or ``.parquet``, ``.csv``), or the arrays as ``labels.npy``, ``logits.npy`` …
            Scores of more than 256 MB are mapped rather than read, and do not count as memory unless they are compressed.
        class_names: Names in class order; they win over those of an ``.npz``.
        max_bytes: Refuse files that need more memory than this; when left out, ``CLASSMARGIN_MAX_MEMORY``, or half of
            what is free, up to 8 GiB.

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
    max_bytes = memory_budget(LARGEST) if max_bytes is None else max_bytes
    if file.suffix in TABLES:
        content = TABLES[file.suffix](file, class_names, max_bytes)
    else:
        content = _from_arrays(file, max_bytes)
        if class_names is not None:
            content["class_names"] = tuple(str(name) for name in class_names)
    predictions = Predictions(source=str(file), **content)
    if not any(name in content for name in ("logits", "probabilities", "classifier_weight", "class_names")):
        return predictions  # K is not known yet: the audit is told, or takes the classes that it sees
    try:
        checked = check_inputs(**{name: content[name] for name in ARRAYS if name in content})
    except (ValueError, TypeError) as error:
        raise PredictionFileError(f"{file}: {error}") from error
    object.__setattr__(predictions, "_checked", checked)
    return predictions


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
    """Read class names in class order from a text file (one per line) or a ``.json`` list.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "names.txt"
        >>> _ = file.write_text("cat" + chr(10) + "dog" + chr(10))
        >>> read_class_names(file)
        ('cat', 'dog')
    """
    file = Path(path)
    try:
        text = read_text(file, encoding="utf-8-sig")
        names = json.loads(text) if file.suffix == ".json" else text.splitlines()
    except (OSError, ValueError, RecursionError) as error:
        raise PredictionFileError(f"{file} cannot be read as class names ({error})") from error
    if not isinstance(names, list) or not all(isinstance(name, (str, int)) for name in names):
        raise PredictionFileError(f"{file} must hold a JSON list of names")
    stripped = tuple(str(name).strip() for name in names)
    kept = stripped[:-1] if stripped and stripped[-1] == "" else stripped
    if not kept or "" in kept:
        raise PredictionFileError(f"{file} must hold one class name per line, got an empty line or no name")
    return kept


def _find(path: Path) -> Path:
    if path.is_dir():
        for suffix in SUFFIXES:
            if (path / f"predictions{suffix}").is_file():
                return path / f"predictions{suffix}"
        if (path / "labels.npy").is_file():
            return path
        raise PredictionFileError(_why_no_predictions(path))
    if not path.is_file():
        words = "must be a regular file" if path.exists() else "does not exist"
        raise PredictionFileError(f"{path} {words}")
    if path.suffix == ".npy":
        raise PredictionFileError(
            f"{path} is one array: give the folder that holds labels.npy and logits.npy, probabilities.npy or predictions.npy"
        )
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


def _from_arrays(file: Path, max_bytes: int) -> dict[str, Any]:
    """Return the content of an ``.npz``, or of a folder of ``.npy`` files."""
    found = _read_folder(file, max_bytes) if file.is_dir() else read_npz(file, READ, max_bytes=max_bytes)
    content: dict[str, Any] = {name: values for name, values in found.items() if name not in ARRAY_ALIASES}
    notes = []
    for alias in [name for name in found if name in ARRAY_ALIASES]:
        name = ARRAY_ALIASES[alias]
        if name not in content:
            content[name] = found[alias]
            notes.append(f"{file}: the array {alias!r} was read as {name!r}.")
    if "labels" not in content or not content.keys() & {*SCORES, "predictions"}:
        wanted = "an array 'labels' (and logits, probabilities or predictions)"
        lacking = wanted if "labels" not in content else "logits, probabilities or predictions"
        raise PredictionFileError(f"{file} must hold {lacking}, got {_members(file)}")
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
    for name in FACES:
        if name in content and len(content[name]) != len(content["labels"]):
            raise PredictionFileError(
                f"{file}: {name} must have as many rows as labels ({len(content['labels'])}), got {content[name].shape}"
            )
    if "logits" in content and "probabilities" in content:
        del content["probabilities"]  # they say the same; logits say it more precisely
    return {**content, "notes": tuple(notes)}


def _read_folder(folder: Path, max_bytes: int) -> dict[str, AnyArray]:
    found: dict[str, AnyArray] = {}
    try:
        for name in READ:
            if (folder / f"{name}.npy").exists():
                path, mapped = folder / f"{name}.npy", ARRAY_ALIASES.get(name, name) in SCORES
                found[name] = read_npy_array(path, max_bytes=max_bytes, mapped=mapped)
                max_bytes -= 0 if mapped else found[name].nbytes
    except ArrayFileError as error:
        raise PredictionFileError(str(error)) from error
    return found


def _members(file: Path) -> str:
    members = sorted(path.name for path in file.iterdir()) if file.is_dir() else archive_names(file)
    names = [printable(name.removesuffix(".npy")) for name in members]
    rest = len(names) - MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"the arrays {', '.join(names[:MOST_NAMED])}{more}" if names else "no arrays"
