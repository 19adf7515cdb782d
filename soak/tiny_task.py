"""The smallest training that has everything worth breaking: batch norm, dropout, memory bank, checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CLASSES, SIZE, EACH = 5, 8, 36


def write_features(path: Path, *, each: int = EACH, seed: int = 0) -> Path:
    """Write overlapping Gaussian classes as a feature file with a test part."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, SIZE)) * 1.5
    parts = {}
    for name, count in (("train", each), ("val", 8), ("test", 12)):
        labels = np.repeat(np.arange(CLASSES), count)
        spread = 0.5 + labels[:, None] / CLASSES
        parts[f"x_{name}"] = (centres[labels] + spread * rng.normal(size=(len(labels), SIZE))).astype(np.float32)
        parts[f"y_{name}"] = labels
    np.savez(path, **parts)
    return path


def train_words(data: Path, method: str, out: Path, *, epochs: int = 5, extra: tuple[str, ...] = ()) -> list[str]:
    """Return the words of ``classmargin train`` for a run of about 55 steps; the same words resume it."""
    settings = [
        "backbone.hidden=16", "backbone.batch_norm=true", "backbone.dropout=0.1",
        "loop.batch_size=16", "loop.checkpoint_steps=4", "loop.checkpoint_seconds=0",
        "optimizer.learning_rate=0.05",
        "machine.accelerator=cpu", "machine.report=false", *extra,
    ]  # fmt: skip
    words = ["train", "--data", str(data), "--backbone", "mlp", "--method", method, "--epochs", str(epochs)]
    words += ["--out", str(out), "--resume"]
    return words + [word for setting in settings for word in ("--set", setting)]
