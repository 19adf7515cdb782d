"""Predictions in files: ``.npz``, ``.parquet``, ``.csv`` or a run folder -> :class:`Predictions` -> an audit; and the tables beside them:
class names, texts, metadata, super-classes and costs.

Nothing is ever unpickled. Every problem with a file is a :class:`PredictionFileError` that names it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._array_files import archive_names, read_npy_array, read_npz_arrays
from classmargin._atomic import atomic_path
from classmargin._checks import check_choice
from classmargin._files import memory_budget, open_regular, read_csv_header, read_text
from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.input_checks import AnyArray, FloatArray, check_inputs, to_array
from classmargin.evaluation.prediction_tables import (
    ALIASES,
    CSV_OPTIONS,
    PredictionFileError,
    listed,
    read_csv,
    read_parquet,
    refused_as,
)

if TYPE_CHECKING:
    import pandas as pd

# Predictions of more than this are asked for (--max-memory), because an audit makes copies of what it reads.
LARGEST = 8 * 2**30
LARGEST_TABLE = 2 * 2**30  # of what stands beside the predictions
SCORES = ("logits", "probabilities")
ARRAYS = ("labels", *SCORES, "predictions", "features", "classifier_weight", "class_names", "sample_id")
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

    def arrays(self) -> dict[str, Any]:
        """Return everything but ``source`` as keyword arguments of :func:`classmargin.audit`."""
        return {name: getattr(self, name) for name in ARRAYS}

    def audit(self, **options: Any) -> Audit:
        """Audit these predictions; ``options`` go to :func:`classmargin.audit` and win over the file."""
        given = {name: value for name, value in options.items() if value is not None}
        try:
            result = audit(**{**self.arrays(), **given})
            return replace(result, notes=(*self.notes, *result.notes)) if self.notes else result
        except (ValueError, TypeError) as error:
            # Large arrays are looked at only now; of several files, the one at fault must be named.
            if str(error).startswith(_ABOUT_ARRAYS):
                raise PredictionFileError(f"{self.source}: {error}") from error
            raise


def read_predictions(
    path: str | os.PathLike[str], *, class_names: Sequence[str] | None = None, max_bytes: int | None = None
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
    # Else K is not known yet: the audit is told, or takes the classes that it sees.
    if content.keys() & {"logits", "probabilities", "classifier_weight", "class_names"}:
        try:
            check_inputs(**{name: content[name] for name in ARRAYS if name in content})
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
    for name in arrays:
        check_choice("arrays", name, ARRAYS)
    target = Path(path)
    if target.suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {target}")
    inputs = check_inputs(labels, **arrays)
    scores_name = "logits" if inputs.scores_are_logits else "probabilities"
    same = ("labels", "predictions", "features", "classifier_weight", "sample_id")
    content: dict[str, Any] = {scores_name: inputs.scores, "class_names": np.array(inputs.class_names)}
    content |= {name: getattr(inputs, name) for name in same}
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
    names = _read_lines(Path(path), "class names")
    if not isinstance(names, list) or not all(isinstance(name, (str, int)) for name in names):
        raise PredictionFileError(f"{path} must hold a JSON list of names")
    stripped = tuple(str(name).strip() for name in names)
    kept = stripped[:-1] if stripped and stripped[-1] == "" else stripped
    if not kept or "" in kept:
        raise PredictionFileError(f"{path} must hold one class name per line, got an empty line or no name")
    return kept


def _read_lines(file: Path, what: str) -> Any:
    """Return the lines of a text file, or what a ``.json`` holds."""
    try:
        text = read_text(file, encoding="utf-8-sig")
        return json.loads(text) if file.suffix == ".json" else text.splitlines()
    except (OSError, ValueError, RecursionError) as error:
        raise PredictionFileError(f"{file} cannot be read as {what} ({error})") from error


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
    if path.suffix not in SUFFIXES:
        raise PredictionFileError(
            f"{path} must end in {', '.join(SUFFIXES)} or be a folder, that of a run or one with labels.npy and logits.npy"
        )
    return path


def _why_no_predictions(folder: Path) -> str:
    # A run folder is known by its config.toml and is finished when it has a "done" (training/run_folder.py).
    quoted = shlex.quote(str(folder))
    if not (folder / "config.toml").is_file():
        return f"{folder} is a folder without a predictions.npz, predictions.parquet or predictions.csv"
    if not (folder / "done").is_file():
        return f"{folder} holds an unfinished run; finish it with: classmargin train --out {quoted} --resume"
    return f"{folder} holds a finished run without predictions.npz; make predictions with: classmargin predict {quoted} DATA"


def _from_arrays(file: Path, max_bytes: int) -> dict[str, Any]:
    """Return the content of an ``.npz``, or of a folder of ``.npy`` files."""
    mapped = (*SCORES, *SCORE_ALIASES)
    with refused_as():
        if not file.is_dir():
            found = read_npz_arrays(file, READ, max_bytes=max_bytes, mapped=mapped)
        else:
            found = {}
            for name in [name for name in READ if (file / f"{name}.npy").exists()]:
                found[name] = read_npy_array(file / f"{name}.npy", max_bytes=max_bytes, mapped=name in mapped)
                max_bytes -= 0 if name in mapped else found[name].nbytes
    content: dict[str, Any] = {name: values for name, values in found.items() if name not in ARRAY_ALIASES}
    notes = []
    for alias in [name for name in found if name in ARRAY_ALIASES]:
        name = ARRAY_ALIASES[alias]
        if name not in content:
            content[name] = found[alias]
            notes.append(f"{file}: the array {alias!r} was read as {name!r}.")
    if "labels" not in content or not content.keys() & {*SCORES, "predictions"}:
        lacking = "logits, probabilities or predictions"
        lacking = lacking if "labels" in content else f"an array 'labels' (and {lacking})"
        members = sorted(path.name for path in file.iterdir()) if file.is_dir() else archive_names(file)
        names = [printable(name.removesuffix(".npy")) for name in members]
        got = f"the arrays {listed(names)}" if names else "no arrays"
        raise PredictionFileError(f"{file} must hold {lacking}, got {got}")
    if "class_names" in content:
        given = content["class_names"]
        if given.ndim != 1 or given.dtype.kind not in "US":
            raise PredictionFileError(f"{file}: class_names must be a list of texts, got {given.dtype} {given.shape}")
        try:
            content["class_names"] = tuple(to_array("class_names", given).tolist())
        except ValueError as error:
            raise PredictionFileError(f"{file}: {error}") from error
    total = len(content["labels"])
    for name in FACES:
        if name in content and len(content[name]) != total:
            got = content[name].shape
            raise PredictionFileError(f"{file}: {name} must have as many rows as labels ({total}), got {got}")
    if "logits" in content and "probabilities" in content:
        del content["probabilities"]  # they say the same; logits say it more precisely
    return {**content, "notes": tuple(notes)}


def read_sample_table(path: str | Path, audit: Audit) -> pd.DataFrame:
    """Return a ``.csv`` with one row per sample, matched by a column ``sample_id`` where there is one, in the order of ``audit``."""
    import pandas as pd

    frame = _read_table(Path(path))
    if "sample_id" not in frame.columns:
        if len(frame) != audit.num_samples:
            wanted = f"a column 'sample_id', or one row per sample ({audit.num_samples})"
            raise PredictionFileError(f"{path} must have {wanted}, got {len(frame)} rows")
        return frame
    identity = np.arange(audit.num_samples) if audit.sample_id is None else audit.sample_id
    index = pd.Index([str(name) for name in identity.tolist()])
    for name in frame["sample_id"][frame["sample_id"].duplicated()]:
        raise PredictionFileError(f"{path} must name every sample once, got sample_id {name!r} more than once")
    for name in index[~index.isin(frame["sample_id"])]:
        raise PredictionFileError(f"{path} must have a row for every sample, got none for sample_id {name!r}")
    return frame.set_index("sample_id").loc[index].reset_index(drop=True)


def read_texts(path: str | Path, audit: Audit) -> list[str]:
    """Return one text per sample from a ``.csv`` (columns ``sample_id`` and ``text``), a ``.json`` list or a line each."""
    file = Path(path)
    if file.suffix == ".csv":
        frame = read_sample_table(file, audit)
        if "text" not in frame.columns:
            raise PredictionFileError(f"{file} must have a column 'text', got {_columns_of(frame)}")
        return [str(text) for text in frame["text"]]
    lines = _read_lines(file, "texts")
    if not isinstance(lines, list) or len(lines) != audit.num_samples:
        count = len(lines) if isinstance(lines, list) else "no list"
        raise PredictionFileError(f"{file} must hold one text per sample ({audit.num_samples}), got {count}")
    return [str(line) for line in lines]


def read_groups(path: str | Path, audit: Audit) -> tuple[str, ...]:
    """Return the super-class of each class, in class order, from a ``.csv`` with the columns ``class`` and ``group``."""
    frame = _read_table(Path(path))
    if not {"class", "group"} <= set(frame.columns):
        raise PredictionFileError(f"{path} must have the columns 'class' and 'group', got {_columns_of(frame)}")
    groups = dict(zip(frame["class"].tolist(), frame["group"].tolist(), strict=True))
    for name in [name for name in groups if name not in audit.class_names]:
        raise PredictionFileError(
            f"{path} must name the classes of the predictions, got {name!r}, which is none of them"
        )
    for name in [name for name in audit.class_names if name not in groups]:
        raise PredictionFileError(f"{path} must have a group for every class, got none for {name!r}")
    return tuple(groups[name] for name in audit.class_names)


def read_costs(path: str | Path, class_names: Sequence[str] | None) -> FloatArray:
    """Return the cost of taking a class (row) for another (column) ``[K, K]`` from a ``.csv`` with names in first row and column."""
    frame = _read_table(Path(path)).rename(columns=str.strip)
    frame = frame.set_index(frame.iloc[:, 0].str.strip()).iloc[:, 1:]
    wanted = list(frame.columns if class_names is None else class_names)
    lacking = [name for name in wanted if name not in frame.columns or name not in frame.index]
    for name in [*lacking, *frame.index[frame.index.duplicated()]]:
        raise PredictionFileError(f"{path}: costs must have one row and one column for every class, not so {name!r}")
    with refused_as(f"{path}: costs must be numbers"):
        costs = frame.loc[wanted, wanted].to_numpy().astype(np.float64)
    if not np.isfinite(costs).all():
        raise PredictionFileError(f"{path}: costs must be finite numbers")
    return np.asarray(costs)


def _columns_of(frame: pd.DataFrame) -> str:
    return ", ".join(repr(printable(str(name))) for name in list(frame.columns)[:20])


def _read_table(path: Path) -> pd.DataFrame:
    """Return a table of texts, exactly as they are written."""
    import pandas as pd

    with refused_as(f"{path} is not a readable .csv table"):
        read_csv_header(path, max_bytes=memory_budget(LARGEST_TABLE))
        with open_regular(path) as file:
            frame: pd.DataFrame = pd.read_csv(file, dtype=str, **CSV_OPTIONS)
    if len(set(frame.columns)) < len(frame.columns):
        raise PredictionFileError(f"{path} must have every column once")
    return frame
