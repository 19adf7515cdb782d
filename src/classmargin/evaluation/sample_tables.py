"""Tables beside the predictions: texts, metadata, super-classes and costs in, lists of samples out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin._files import UnfitFileError, memory_budget, open_regular, read_csv_header, read_text
from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.input_checks import FloatArray
from classmargin.evaluation.prediction_tables import PredictionFileError

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 2 * 2**30
# A cell that begins with one of these is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_samples(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write samples as a table of comma-separated values, whole or not at all.

    Texts that a spreadsheet would take for a formula get an apostrophe before them.

    Example:
        >>> import tempfile, pandas as pd
        >>> file = write_samples(Path(tempfile.mkdtemp()) / "s.csv", pd.DataFrame({"sample_id": ["=1+1", "a"]}))
        >>> file.read_text("utf-8").split()
        ['sample_id', "'=1+1", 'a']
    """
    safe = frame.copy()
    for name in safe.columns:
        if safe[name].dtype.kind not in "iufb":
            safe[name] = [_harmless(str(value)) for value in safe[name].tolist()]
    with atomic_path(path) as temporary:
        safe.to_csv(temporary, index=False, lineterminator="\n")
    return Path(path)


def _harmless(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text


def read_sample_table(path: str | Path, audit: Audit) -> pd.DataFrame:
    """Return a table of comma-separated values with one row per sample, in the order of the samples of ``audit``.

    Rows are matched by a column ``sample_id``; a table without one must have a row per sample, in order.

    Raises:
        PredictionFileError: Not such a table, a sample without a row, or two rows for one sample.
    """
    frame = _read(Path(path))
    if len(frame) == 0:
        raise PredictionFileError(f"{path} must hold at least one row, got none")
    if "sample_id" not in frame.columns:
        if len(frame) != audit.num_samples:
            raise PredictionFileError(
                f"{path} must have a column 'sample_id', or one row per sample ({audit.num_samples}), got {len(frame)} rows"
            )
        return frame
    identity = np.arange(audit.num_samples) if audit.sample_id is None else audit.sample_id
    rows = {name: row for row, name in enumerate(frame["sample_id"].tolist())}
    if len(rows) < len(frame):
        twice = frame["sample_id"][frame["sample_id"].duplicated()].iloc[0]
        raise PredictionFileError(
            f"{path} must name every sample once, got sample_id {twice!r} more than once"
        )
    wanted = [str(name) for name in identity.tolist()]
    missing = next((name for name in wanted if name not in rows), None)
    if missing is not None:
        raise PredictionFileError(
            f"{path} must have a row for every sample, got none for sample_id {missing!r}"
        )
    found = frame.iloc[[rows[name] for name in wanted]].reset_index(drop=True)
    return found.drop(columns="sample_id")


def read_texts(path: str | Path, audit: Audit) -> list[str]:
    """Return one text per sample from a ``.csv`` (columns ``sample_id`` and ``text``), a ``.json`` list or a line each."""
    file = Path(path)
    if file.suffix == ".csv":
        frame = read_sample_table(file, audit)
        if "text" not in frame.columns:
            raise PredictionFileError(f"{file} must have a column 'text', got {_listed(frame)}")
        return [str(text) for text in frame["text"]]
    try:
        words = read_text(file, encoding="utf-8-sig")
        lines = json.loads(words) if file.suffix == ".json" else words.splitlines()
    except (OSError, ValueError, RecursionError) as error:
        raise PredictionFileError(f"{file} cannot be read as texts ({error})") from error
    if not isinstance(lines, list) or len(lines) != audit.num_samples:
        count = len(lines) if isinstance(lines, list) else "no list"
        raise PredictionFileError(f"{file} must hold one text per sample ({audit.num_samples}), got {count}")
    return [str(line) for line in lines]


def read_groups(path: str | Path, audit: Audit) -> tuple[str, ...]:
    """Return the super-class of each class, in class order, from a ``.csv`` with the columns ``class`` and ``group``.

    Raises:
        PredictionFileError: Other columns, an unknown class, or a class without a group.
    """
    frame = _read(Path(path))
    if not {"class", "group"} <= set(frame.columns):
        raise PredictionFileError(f"{path} must have the columns 'class' and 'group', got {_listed(frame)}")
    groups = dict(zip(frame["class"].tolist(), frame["group"].tolist(), strict=True))
    unknown = next((name for name in groups if name not in audit.class_names), None)
    if unknown is not None:
        raise PredictionFileError(
            f"{path} must name the classes of the predictions, got {unknown!r}, which is none of them"
        )
    missing = next((name for name in audit.class_names if name not in groups), None)
    if missing is not None:
        raise PredictionFileError(f"{path} must have a group for every class, got none for {missing!r}")
    return tuple(groups[name] for name in audit.class_names)


def read_costs(path: str | Path, class_names: Sequence[str] | None) -> FloatArray:
    """Return the cost of taking a class (row) for another (column) ``[K, K]`` from a ``.csv``.

    The first row and the first column hold the names of the classes, in any order.

    Args:
        path: The table.
        class_names: One name per class, in class order; ``None`` takes the order of the table.

    Raises:
        PredictionFileError: A class without a row or a column, or an entry that is no finite number.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "costs.csv"
        >>> _ = file.write_text(chr(10).join([",dog,cat", "cat,5,0", "dog,0,1"]))
        >>> read_costs(file, ["cat", "dog"]).tolist()
        [[0.0, 5.0], [1.0, 0.0]]
    """
    frame = _read(Path(path)).rename(columns=str.strip)
    frame = frame.set_index(frame.iloc[:, 0].str.strip()).iloc[:, 1:]
    wanted = list(frame.columns if class_names is None else class_names)
    lacking = next((name for name in wanted if name not in frame.columns or name not in frame.index), None)
    if lacking is not None or frame.index.has_duplicates:
        name = lacking if lacking is not None else frame.index[frame.index.duplicated()][0]
        raise PredictionFileError(
            f"{path}: costs must have one row and one column for every class, not so {name!r}"
        )
    try:
        costs = frame.loc[wanted, wanted].to_numpy().astype(np.float64)
    except ValueError as error:
        raise PredictionFileError(f"{path}: costs must be numbers ({error})") from error
    if not np.isfinite(costs).all():
        raise PredictionFileError(f"{path}: costs must be finite numbers")
    return np.asarray(costs)


def _listed(frame: pd.DataFrame) -> str:
    return ", ".join(repr(printable(str(name))) for name in list(frame.columns)[:20])


def _read(path: Path) -> pd.DataFrame:
    """Return a table of texts, exactly as they are written."""
    import pandas as pd

    options: dict[str, Any] = {
        "compression": None,
        "keep_default_na": False,
        "skipinitialspace": True,
        "dtype": str,
    }
    try:
        read_csv_header(path, max_bytes=memory_budget(LARGEST))
        with open_regular(path) as file:
            frame: pd.DataFrame = pd.read_csv(file, **options)
    except UnfitFileError as error:
        raise PredictionFileError(str(error)) from error
    except (OSError, ValueError) as error:
        raise PredictionFileError(f"{path} is not a readable .csv table ({error})") from error
    if len(set(frame.columns)) < len(frame.columns):
        raise PredictionFileError(f"{path} must have every column once")
    return frame
