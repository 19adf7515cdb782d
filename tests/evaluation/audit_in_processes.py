"""One process of a distributed audit; run as a script by test_gathering.py.

Usage: audit_in_processes.py RANK FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from classmargin.evaluation import AuditAccumulator

# A program of its own: it has not been through tests/conftest.py.
sys.path.insert(0, str(Path(__file__).parents[1]))
from two_ranks import one_of_two

# Which samples rank 0 gets, for each case; the rest goes to rank 1.
SHARES = {
    "unequal": lambda index: index % 3 == 0,
    "empty": lambda index: index < 0,
    "plain": lambda index: index < 250,
    "repeated": lambda index: index < 250,
}


def feed(
    accumulator: AuditAccumulator, arrays: dict[str, np.ndarray], rows: np.ndarray, *, ids: bool, extra: bool
) -> None:
    for batch in np.array_split(rows, max(1, len(rows) // 64)):
        given = {"logits": arrays["logits"][batch]}
        if extra:
            given["features"] = arrays["features"][batch]
        if len(batch):
            accumulator.update(arrays["labels"][batch], **given, sample_id=batch if ids else None)


def record_of(rank: int, arrays: dict[str, np.ndarray], case: str) -> dict[str, object]:
    index = np.arange(len(arrays["labels"]))
    first = SHARES[case](index)
    rows = index[first] if rank == 0 else index[~first]
    if case == "repeated" and rank == 1:
        rows = np.append(rows, 0)  # as samplers do that fill the last batch
    accumulator = AuditAccumulator(num_classes=8)
    feed(accumulator, arrays, rows, ids=case != "plain", extra=case != "plain")
    try:
        result = accumulator.compute(classifier_weight=None if case == "plain" else arrays["weight"], bootstrap=200)
    except ValueError as error:
        return {"error": str(error)}
    kept = result.feature_sample
    return {
        "audit": result.to_dict(),
        "again": accumulator.compute(bootstrap=0).overall,
        "kept": None if kept is None else [kept.index.tolist(), float(kept.features.sum())],
    }


def main(rank: int, folder: Path) -> None:
    with one_of_two(rank, folder):
        arrays = dict(np.load(folder / "arrays.npz"))
        records = {case: record_of(rank, arrays, case) for case in SHARES}
        (folder / f"rank{rank}.json").write_text(json.dumps(records))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
