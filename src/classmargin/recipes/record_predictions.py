"""What every run of a record answered, small enough to travel with it: labels, logits in half precision, ids of the samples.

``classmargin compare`` on these files gives the numbers of the record, so that a reader can check them without the runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin._atomic import atomic_path
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.measure_runs import MeasuredBlock

# Logits of more numbers (200 classes on 50 000 samples: 20 MB) stay in the run folders.
LARGEST = 10_000_000
_HALF = np.finfo(np.float16)


def write_record_predictions(measured: Sequence[MeasuredBlock], folder: Path) -> list[Path]:
    """Write ``BLOCK/ROW-seedS.npz`` for every finished run of every row; return the files."""
    written = []
    for block in measured:
        for row in block.result.rows:
            for run, score in zip(block.folders[row.key], row.runs, strict=True):
                arrays = read_predictions(run.predictions_file)
                logits = arrays.logits
                if logits is None or logits.size > LARGEST:
                    continue
                path = folder / block.result.key / f"{_file_name(row.key)}-seed{score.seed}.npz"
                path.parent.mkdir(parents=True, exist_ok=True)
                content: dict[str, Any] = {
                    "labels": arrays.labels,
                    "logits": half_precision(logits),
                    "sample_id": arrays.sample_id,
                    "class_names": np.array(arrays.class_names),
                }
                with atomic_path(path) as temporary, temporary.open("wb") as stream:
                    np.savez_compressed(
                        stream, **{name: value for name, value in content.items() if value is not None}
                    )
                written.append(path)
    return written


def half_precision(logits: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return logits below a largest one of 0 as float16; the class that is chosen stays the same.

    Example:
        >>> half_precision(np.array([[9000.0, 9000.1, -1e9]])).tolist()
        [[-0.0999755859375, 0.0, -65504.0]]
        >>> half_precision(np.array([[1.0, 1.0 + 1e-9]])).argmax()
        np.int64(1)
    """
    chosen = logits.argmax(axis=1)
    below = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    half: npt.NDArray[np.float16] = np.clip(below, _HALF.min, 0.0).astype(np.float16)
    # What rounds to a tie with the largest goes just below it.
    half[half == 0.0] = -_HALF.smallest_subnormal
    half[np.arange(len(half)), chosen] = 0.0
    return half


def _file_name(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", key).strip("-")[:150]
