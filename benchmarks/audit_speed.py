"""Time and memory of an ImageNet-sized audit: 50 000 samples, 1000 classes, 2048 features.

Every case runs in a process of its own, so that its peak memory (inputs included) is its own. The limits that the audit promises are
60 seconds and 3 GiB; figures and t-SNE are not part of it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

SAMPLES, CLASSES, FEATURES = 50_000, 1_000, 2_048
LIMIT_SECONDS, LIMIT_BYTES = 60.0, 3 * 2**30
Arrays = dict[str, np.ndarray]


def _scores_only(arrays: Arrays) -> object:
    from classmargin.evaluation import audit

    return audit(arrays["labels"], logits=arrays["logits"])


def _everything(arrays: Arrays, ranking: str = "own") -> object:
    from classmargin.evaluation import audit

    given = {name: arrays[name] for name in ("logits", "features", "classifier_weight")}
    return audit(arrays["labels"], **given, ranking=ranking)


def _compared(arrays: Arrays) -> object:
    from classmargin.evaluation import audit, compare

    one, two = (audit(arrays["labels"], logits=arrays[name], bootstrap=0) for name in ("logits", "other_logits"))
    return compare(one, two)


# Name -> (what is done, what it needs in memory).
CASES: dict[str, tuple[Callable[[Arrays], object], tuple[str, ...]]] = {
    "scores only": (_scores_only, ("labels", "logits")),
    "everything": (_everything, ("labels", "logits", "features", "classifier_weight")),
    "everything, crossfit": (
        partial(_everything, ranking="crossfit"),
        ("labels", "logits", "features", "classifier_weight"),
    ),
    "two models compared": (_compared, ("labels", "logits", "other_logits")),
}


def run() -> dict[str, object]:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        _in_own_process("write", folder)
        print(f"{'case':24} {'seconds':>8} {'peak GiB':>9}   within limits")
        for case in CASES:
            result = _in_own_process("measure", folder, case)
            within = result["seconds"] <= LIMIT_SECONDS and result["peak_bytes"] <= LIMIT_BYTES
            results[case] = {**result, "within_limits": within}
            print(
                f"{case:24} {result['seconds']:8.1f} {result['peak_bytes'] / 2**30:9.2f}   {'yes' if within else 'NO'}"
            )
    return {"samples": SAMPLES, "classes": CLASSES, "features": FEATURES, "cases": results}


def _in_own_process(*words: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    return dict(json.loads(done.stdout))


def write(folder: str) -> dict[str, float]:
    """Classes of different spread around random directions; the head looks along them."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32) / np.float32(FEATURES**0.5)
    labels = np.repeat(np.arange(CLASSES), SAMPLES // CLASSES)
    spread = rng.uniform(0.5, 2.0, CLASSES).astype(np.float32)
    features = rng.standard_normal((SAMPLES, FEATURES), dtype=np.float32) * spread[labels, None] * np.float32(0.35)
    features += weight[labels]
    logits = np.concatenate([part @ weight.T for part in np.array_split(features, 50)]) * np.float32(4)
    other = logits + rng.standard_normal(logits.shape, dtype=np.float32)
    arrays = {
        "labels": labels,
        "logits": logits,
        "other_logits": other,
        "features": features,
        "classifier_weight": weight,
    }
    for name, array in arrays.items():
        np.save(Path(folder) / f"{name}.npy", array)
    return {}


def measure(folder: str, case: str) -> dict[str, float]:
    work, needed = CASES[case]
    arrays = {name: np.load(Path(folder) / f"{name}.npy") for name in needed}
    start = time.perf_counter()
    work(arrays)  # imports are part of it, as they are for the user
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    verb = {"write": write, "measure": measure}[sys.argv[1]]
    print(json.dumps(verb(*sys.argv[2:])))
