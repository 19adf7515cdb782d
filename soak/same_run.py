"""Whether two finished runs are the same, bit for bit, and whether a folder is as clean as it should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np


class BrokenPromise(AssertionError):
    """Something that must never happen; the text says what, and where to look."""


LOGS = ("metrics.jsonl", "metrics.csv", "class_accuracy.csv")


def check_same(expected: Path, found: Path) -> None:
    """Raise :class:`BrokenPromise` unless both runs are the same and killed writers left nothing behind."""
    wrong = differences(expected, found) + [f"left behind: {name}" for name in leftovers(found)]
    if wrong:
        raise BrokenPromise(f"{found} differs from {expected}: {', '.join(wrong[:6])}")


def differences(one: Path, other: Path) -> list[str]:
    """Return what differs between two runs: logs, the newest checkpoint's tensors, test predictions."""
    found = [name for name in LOGS if (one / name).read_bytes() != (other / name).read_bytes()]
    left, right = _newest(one), _newest(other)
    if left.name != right.name:
        found.append(f"newest checkpoint {left.name} and {right.name}")
    else:
        found += _different_tensors(left / "tensors.safetensors", right / "tensors.safetensors")
    found += [name for name in ("report.html", "audit.json") if (one / name).exists() != (other / name).exists()]
    return found + _different_predictions(one / "predictions.npz", other / "predictions.npz")


def _different_predictions(one: Path, other: Path) -> list[str]:
    if not one.exists() or not other.exists():  # a trial of a sweep that was not chosen is never tested
        return [] if one.exists() == other.exists() else ["only one has predictions"]
    with np.load(one) as a, np.load(other) as b:
        return [f"predictions {name}" for name in a.files if not np.array_equal(a[name], b[name])]


def _newest(run: Path) -> Path:
    return sorted((run / "checkpoint").glob("step-*"))[-1]


def _different_tensors(one: Path, other: Path) -> list[str]:
    from safetensors.numpy import load_file

    left, right = load_file(one), load_file(other)
    if left.keys() != right.keys():
        return ["the names of tensors"]
    return [name for name in left if left[name].tobytes() != right[name].tobytes()]


def leftovers(run: Path) -> list[str]:
    """Return files of a finished run that killed writers left behind."""
    hidden = [path for path in run.rglob(".*") if path.name not in (".lock",)]
    return sorted(str(path.relative_to(run)) for path in hidden)
