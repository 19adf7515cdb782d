"""Which samples: confident errors, doubted labels and typical right ones of every class, and the samples that flip between models;
and the tables beside the predictions: lists of samples out, texts, metadata, super-classes and costs in.

Doubted labels are ranked by self-confidence, the probability of the given label: the lower, the likelier a mistake in the label. That
ranking finds injected label noise better than the confident-learning flag alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin._checks import check_choice, did_you_mean
from classmargin._files import UnfitFileError, memory_budget, open_regular, read_csv_header, read_text
from classmargin._printable import printable
from classmargin.evaluation.class_diagnosis import doubted_labels
from classmargin.evaluation.input_checks import FloatArray, IntArray
from classmargin.evaluation.prediction_tables import PredictionFileError

if TYPE_CHECKING:
    import pandas as pd

    from classmargin.evaluation.audit_result import Audit

KINDS = ("error", "doubted label", "typical")
# Right samples listed of each class: enough to see what the class looks like.
MOST_TYPICAL = 5
LARGEST = 2 * 2**30
# A cell that begins with one of these is a formula to a spreadsheet.
FORMULA = ("=", "+", "-", "@", "\t", "\r")
COLUMNS = (
    "sample_id",
    "class_name",
    "kind",
    "rank",
    "predicted",
    "probability",
    "true_probability",
    "second_choice",
    "second_probability",
    "position",
)


def sample_table(audit: Audit) -> pd.DataFrame:
    """Return the samples worth a look, one row per sample and kind; see :attr:`Audit.samples`.

    A sample that is wrong *and* whose label is doubted has two rows.
    """
    lists = [_errors(audit), _doubted(audit), _typical(audit)]
    positions = np.concatenate(lists)
    kinds = np.repeat(np.arange(len(KINDS)), [len(rows) for rows in lists])
    order = np.lexsort((kinds, audit.labels[positions]))  # stable: the order within a class and kind stays
    frame = describe_samples(audit, positions[order])
    frame["kind"] = np.array(KINDS, dtype=object)[kinds[order]]
    frame["rank"] = places_in_groups(audit.labels[positions[order]], kinds[order]) + 1
    return frame[list(COLUMNS)]


def places_in_groups(*keys: IntArray) -> IntArray:
    """Return 0, 1, 2 … for the rows of each group of equal keys.

    Example:
        >>> places_in_groups(np.array([7, 3, 7])).tolist()
        [0, 0, 1]
    """
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(keys)))
    return np.asarray(frame.groupby(list(frame.columns)).cumcount(), dtype=np.int64)


def describe_samples(audit: Audit, positions: IntArray) -> pd.DataFrame:
    """Return what is known about the samples at ``positions`` ``[M]``: names of classes and their probabilities."""
    import pandas as pd

    names = np.array(audit.class_names, dtype=object)
    predicted = audit.predictions[positions]
    probability, true, second, second_probability = _choices(audit, positions)
    identity = positions if audit.sample_id is None else audit.sample_id[positions]
    return pd.DataFrame(
        {
            "sample_id": identity,
            "class_name": names[audit.labels[positions]],
            "predicted": names[predicted],
            "probability": probability,
            "true_probability": true,
            "second_choice": np.where(second < 0, "", names[np.maximum(second, 0)]),
            "second_probability": second_probability,
            "position": positions,
        }
    )


def samples_of(
    audit: Audit,
    class_name: str | None = None,
    *,
    kind: str = "error",
    predicted: str | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """Return the rows of :func:`sample_table` of one class and kind; see :meth:`Audit.samples_of`."""
    check_choice("kind", kind, KINDS)
    frame = audit.samples
    rows = frame["kind"] == kind
    for name, column, value in (
        ("class_name", "class_name", class_name),
        ("predicted", "predicted", predicted),
    ):
        if value is not None:
            class_number(audit, value, argument=name)
            rows &= frame[column] == value
    found = frame[rows]
    if class_name is None and kind != "typical":
        key, ascending = ("probability", False) if kind == "error" else ("true_probability", True)
        found = found.sort_values(key, ascending=ascending, kind="stable", na_position="last")
    return (found if top is None else found.head(top)).reset_index(drop=True)


def class_number(audit: Audit, name: str, *, argument: str = "class_name") -> int:
    """Return the number of the class called ``name``.

    Raises:
        ValueError: There is none; the message suggests the nearest name.
    """
    if name not in audit.class_names:
        raise ValueError(
            f"{argument} must be one of the class names, got {name!r}{did_you_mean(str(name), audit.class_names)}"
        )
    return audit.class_names.index(name)


def _errors(audit: Audit) -> IntArray:
    """Return the wrong samples, the most confident first."""
    wrong = np.flatnonzero(audit.labels != audit.predictions)
    probability = _choices(audit, wrong)[0]
    return wrong[np.argsort(-probability, kind="stable")]


def _doubted(audit: Audit) -> IntArray:
    """Return the samples whose label is doubted, the least believed label first."""
    if audit.scores is None:
        return np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(doubted_labels(audit.labels, audit.predictions, audit.scores, audit.num_classes))
    return rows[np.argsort(audit.scores.true_probability[rows], kind="stable")]


def _typical(audit: Audit) -> IntArray:
    """Return a few right samples of each class, those about as certain as its right samples usually are."""
    import pandas as pd

    right = np.flatnonzero(audit.labels == audit.predictions)
    if audit.scores is None or not len(right):
        return right[:0]
    frame = pd.DataFrame({"label": audit.labels[right], "own": audit.scores.true_probability[right]})
    distance = (frame["own"] - frame.groupby("label")["own"].transform("median")).abs()
    order = np.lexsort((distance.to_numpy(), frame["label"].to_numpy()))
    return right[order[places_in_groups(audit.labels[right[order]]) < MOST_TYPICAL]]


def _choices(audit: Audit, rows: IntArray) -> tuple[FloatArray, FloatArray, IntArray, FloatArray]:
    """Return the probabilities of predicted and true class, the next class (-1 if none) and its probability."""
    scores, nothing = audit.scores, np.full(len(rows), np.nan)
    if scores is None:
        return nothing, nothing, np.full(len(rows), -1, dtype=np.int64), nothing
    candidates, values = scores.candidates[rows], scores.candidate_probabilities[rows]
    predicted = audit.predictions[rows][:, None]
    among = candidates == predicted
    probability = np.where(among.any(axis=1), (values * among).sum(axis=1), np.nan)
    line = np.arange(len(rows))
    next_place = np.argmin(among, axis=1)  # the first candidate that is not the prediction
    second = np.where(among.all(axis=1), -1, candidates[line, next_place])
    second_probability = np.where(second < 0, np.nan, values[line, next_place])
    return probability, scores.true_probability[rows], second, second_probability


def flipped_samples(baseline: Audit, candidate: Audit) -> pd.DataFrame:
    """Return the samples that one of two models gets right and the other wrong.

    Args:
        baseline: Audit of the model in use.
        candidate: Audit of the new model on the same samples.

    Returns:
        One row per sample, in class order, lost ones first, the surest error of the model that is wrong first:
        ``sample_id``, ``class_name``, ``change`` ("right→wrong" or "wrong→right"), ``baseline`` and ``candidate`` (predicted
        classes), ``baseline_probability``, ``candidate_probability`` (of the predicted class, NaN without scores).

    Example:
        >>> from classmargin.evaluation import audit
        >>> old = audit([0, 1], predictions=[0, 0], class_names=["cat", "dog"], bootstrap=0)
        >>> new = audit([0, 1], predictions=[1, 1], class_names=["cat", "dog"], bootstrap=0)
        >>> flipped_samples(old, new)[["sample_id", "class_name", "change"]].to_dict("records")
        [{'sample_id': 0, 'class_name': 'cat', 'change': 'right→wrong'}, {'sample_id': 1, 'class_name': 'dog', 'change': 'wrong→right'}]
    """
    import pandas as pd

    from classmargin.evaluation.paired_tests import sample_order, shared_class_names

    names = np.array(shared_class_names([baseline, candidate]), dtype=object)
    first, second = sample_order([baseline, candidate])
    was = (baseline.labels == baseline.predictions)[first]
    now = (candidate.labels == candidate.predictions)[second]
    flipped = np.flatnonzero(was != now)
    first, second, was = first[flipped], second[flipped], was[flipped]
    probabilities = [_choices(model, rows)[0] for model, rows in ((baseline, first), (candidate, second))]
    of_the_wrong = np.where(was, probabilities[1], probabilities[0])
    frame = pd.DataFrame(
        {
            "sample_id": first if baseline.sample_id is None else baseline.sample_id[first],
            "class_name": names[baseline.labels[first]],
            "change": np.where(was, "right→wrong", "wrong→right"),
            "baseline": names[baseline.predictions[first]],
            "candidate": names[candidate.predictions[second]],
            "baseline_probability": probabilities[0],
            "candidate_probability": probabilities[1],
        }
    )
    order = np.lexsort((-of_the_wrong, ~was, baseline.labels[first]))
    return frame.iloc[order].reset_index(drop=True)


def write_samples(path: str | Path, frame: pd.DataFrame) -> Path:
    """Write samples as a table of comma-separated values, whole or not at all.

    Texts that a spreadsheet would take for a formula are prefixed with an apostrophe.

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
    frame = _read_table(Path(path))
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
            raise PredictionFileError(f"{file} must have a column 'text', got {_columns_of(frame)}")
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
    frame = _read_table(Path(path))
    if not {"class", "group"} <= set(frame.columns):
        raise PredictionFileError(
            f"{path} must have the columns 'class' and 'group', got {_columns_of(frame)}"
        )
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
    frame = _read_table(Path(path)).rename(columns=str.strip)
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


def _columns_of(frame: pd.DataFrame) -> str:
    return ", ".join(repr(printable(str(name))) for name in list(frame.columns)[:20])


def _read_table(path: Path) -> pd.DataFrame:
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
