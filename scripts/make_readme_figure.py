"""Draws the figure of the README from a finished demo: ``python scripts/make_readme_figure.py [runs/demo]``.

One dot a class and method: accuracy on the test set, mean over the seeds, with the range over seeds as a line.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import tomllib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

TARGET = Path(__file__).resolve().parents[1] / "docs" / "figures" / "demo_classes.svg"
COLOURS = {"erm": "#8a8f98", "mr2": "#1f5fd1"}
TITLES = {"erm": "cross-entropy (ERM)", "mr2": "MR²"}


def class_accuracies(folder: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return class names and, for each method, accuracies ``[seeds, K]`` of the finished runs below ``folder``."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    names: list[str] = []
    for mark in sorted(folder.glob("**/done")):
        run = mark.parent
        method = tomllib.loads((run / "config.toml").read_text())["method"]["name"]
        with np.load(run / "predictions.npz", allow_pickle=False) as arrays:
            labels, logits = arrays["labels"], arrays["logits"]
            names = [str(name) for name in arrays["class_names"]]
        right = logits.argmax(1) == labels
        found[method].append(
            np.bincount(labels, right, len(names)) / np.bincount(labels, minlength=len(names))
        )
    return names, {method: np.stack(rows) for method, rows in found.items()}


def draw(names: list[str], accuracies: dict[str, np.ndarray]) -> None:
    """Write the figure."""
    order = np.argsort(-accuracies["erm"].mean(0))
    plt.rcParams["svg.hashsalt"] = "classmargin"  # the same figure gives the same file
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for shift, (method, rows) in zip((-0.14, 0.14), sorted(accuracies.items()), strict=True):
        at = np.arange(len(names)) + shift
        axes.vlines(
            at, 100 * rows.min(0)[order], 100 * rows.max(0)[order], color=COLOURS[method], lw=2, alpha=0.5
        )
        axes.plot(at, 100 * rows.mean(0)[order], "o", color=COLOURS[method], label=TITLES[method])
    axes.set_xticks(range(len(names)), [names[k] for k in order], rotation=30, ha="right")
    axes.set_ylabel("test accuracy, %")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    draw(*class_accuracies(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")))
