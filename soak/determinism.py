"""Every registered method, trained in two processes that share nothing but the seed: all results equal bit for bit.

The two processes have different hash seeds, train the methods in opposite order, and start with other random
states; whatever leaks from one run into the next, or depends on the order of a set, shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from soak.tiny_task import train_words, write_features

COMBINATIONS = ("sam+mr2", "sam+lff")


class Different(AssertionError):
    """Two runs of one seed differ."""


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Train everything twice, compare, return how many methods were compared."""
    write_features(folder / "features.npz", each=16)
    processes = [_start(folder, turn, quick) for turn in (0, 1)]
    try:
        answers = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, answers, strict=True):
        if process.returncode:
            raise Different(f"a process ended with {process.returncode}: {error[-3000:]}")
    first, second = (json.loads(answer.splitlines()[-1]) for answer, _ in answers)
    different = sorted(name for name in first if first[name] != second.get(name))
    if different or first.keys() != second.keys():
        raise Different(f"two runs of one seed differ for {', '.join(different)}")
    counts = {"methods": len(first), "identical": len(first) - len(different)}
    return {**counts, "totals": {"methods trained twice, identical": counts["identical"]}}


def _start(folder: Path, turn: int, quick: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "soak.determinism", str(folder), str(turn), str(int(quick))]
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONHASHSEED": str(1 + turn), "PYTHONPATH": root}
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    )


def method_names() -> list[str]:
    """Return every registered method and two that wrap another."""
    from classmargin.methods import list_methods

    return [info.name for info in list_methods()] + list(COMBINATIONS)


def fingerprint(run_folder: Path) -> str:
    """Return a digest of everything a run computed: logs, newest checkpoint, predictions."""
    import numpy as np

    digest = hashlib.sha256()
    for name in ("metrics.jsonl", "class_accuracy.csv"):
        digest.update((run_folder / name).read_bytes())
    newest = sorted((run_folder / "checkpoint").glob("step-*"))[-1]
    digest.update((newest / "tensors.safetensors").read_bytes())
    with np.load(run_folder / "predictions.npz") as arrays:
        for name in sorted(arrays.files):
            digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _train_all(folder: Path, turn: int, quick: bool) -> dict[str, str]:
    import torch

    from classmargin.cli.main import main

    torch.set_num_threads(1)
    names = method_names()
    found = {}
    for name in names if turn == 0 else reversed(names):
        torch.manual_seed(turn)
        random.seed(turn)
        out = folder / f"turn{turn}-{name}"
        words = train_words(folder / "features.npz", name, out, epochs=3)
        code = main(words)
        if code != 0:
            raise SystemExit(f"{name} ended with {code}")
        found[name] = fingerprint(out)
    return found


if __name__ == "__main__":
    print(json.dumps(_train_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")))
