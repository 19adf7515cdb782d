"""500 optimiser steps on 10 000 classes in one process: memory stays flat, for cross-entropy and for MR²."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from soak.children import fork_call, preload
from soak.long_haul import Grew, own_bytes

CLASSES, SIZE, EACH, BATCH = 10_000, 32, 6, 120
STEPS, WARM_UP, EVERY = 500, 100, 50
# One matrix of classes by classes in float32 would be 400 MB; the state of one step is below 5 MB.
MEMORY_SLACK = 16 * 2**20
METHODS = ("erm", "mr2")


def run(folder: Path, *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Train with each method in a process of its own and return how its memory moved."""
    preload()
    data = write_features(folder / "classes.npz", seed)
    numbers: dict[str, Any] = {"classes": CLASSES, "steps": STEPS}
    for method in METHODS[1:] if quick else METHODS:
        (folder / method).mkdir()
        child = fork_call(partial(_train, data, folder / method, method, seed), folder / method / "log")
        if child.wait(600) != 0:
            raise Grew(f"{method} on {CLASSES} classes ended with {child.poll()}: {child.said[-2000:]}")
        track = json.loads((folder / method / "track.json").read_text())
        numbers[f"{method}: memory by step, MB"] = {step: round(size / 2**20) for step, size in track}
        late = [size for step, size in track if step >= WARM_UP]
        half = len(late) // 2  # medians: a checkpoint being written is no growth
        growth = round(median(late[-half:]) - median(late[:half]))
        numbers[f"{method}: growth after warm-up, bytes"] = growth
        if growth > MEMORY_SLACK:
            raise Grew(
                f"{method}: memory grew by {growth} bytes between the halves of steps {WARM_UP} to {track[-1][0]}"
            )
    return {**numbers, "totals": {"steps soaked, 10 000 classes": STEPS * (1 if quick else len(METHODS))}}


def write_features(path: Path, seed: int) -> Path:
    """Write a few samples of each of many classes as a feature file with a test part."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, SIZE)).astype(np.float32)
    parts = {}
    for name, count in (("train", EACH), ("val", 1), ("test", 1)):
        labels = np.repeat(np.arange(CLASSES), count)
        parts[f"x_{name}"] = centres[labels] + rng.normal(size=(len(labels), SIZE)).astype(np.float32)
        parts[f"y_{name}"] = labels
    np.savez(path, **parts)
    return path


def _train(data: Path, folder: Path, method: str, seed: int) -> None:
    from classmargin.recipes.run_options import gather_config
    from classmargin.recipes.run_parts import build_run, effective
    from classmargin.training import devices
    from classmargin.training.loop import Loop
    from classmargin.training.recorder import Recorder
    from classmargin.training.run_folder import RunFolder
    from classmargin.training.run_progress import Watchers

    assert STEPS == CLASSES * EACH // BATCH
    flags = {
        "data": {"name": str(data)},
        "backbone": {"name": "mlp", "hidden": 32},
        "method": {"name": method},
        "loop": {
            "epochs": 1,
            "batch_size": BATCH,
            "seed": seed,
            "checkpoint_seconds": 0.0,
            "checkpoint_steps": 125,
        },
        "machine": {"accelerator": "cpu"},
    }
    config = effective(gather_config(flags=flags))
    parts = build_run(config)
    run_folder = RunFolder(folder / "run")
    run_folder.path.mkdir()
    recorder = Recorder(run_folder, config, tuple(parts.bundle.class_names))
    loop = Loop(config, parts.ingredients(), devices.start(config), recorder, Watchers())
    step, track = loop._train_step, []

    def train_step(batch: Any) -> None:
        step(batch)
        if loop.position.global_step % EVERY == 0:
            track.append((loop.position.global_step, own_bytes()))

    loop._train_step = train_step
    loop.run()
    (folder / "track.json").write_text(json.dumps(track))
