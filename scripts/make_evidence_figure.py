"""Draws the summary figure of the evidence page from the records in ``results/``: ``python scripts/make_evidence_figure.py``.

One line per data set and method: change against cross-entropy on the hard and on the easy third of the classes, with its
95 % interval, and the time of a run relative to cross-entropy beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "figures" / "evidence.svg"
# File of results/ -> name in the figure, from top to bottom.
DATA_SETS = {
    "banking77_recommended_0_5": "Banking77\nMiniLM features",
    "clinc150_recommended_0_5": "CLINC150\nMiniLM features",
    "cifar100_recommended_0_5": "CIFAR-100\nEfficientNet features",
    "pets_recommended_0_5": "Pets\nEfficientNet features",
    "embedded_recommended_0_5": "Embedded data\nsmall network",
    "cifar10_10pct_resnet20_0_5": "CIFAR-10, 10 %\nResNet-20, 25 epochs",
    "banking77_10shot_fine_tuned_0_5": "Banking77, 10-shot\nMiniLM fine-tuned",
    "cifar10_10pct_lite0_fine_tuned_0_5": "CIFAR-10, 10 %\nEfficientNet fine-tuned",
}
METHODS = {
    "erm, label_smoothing=0.1": ("label smoothing alone", "#8a8f98"),
    "mr2": ("recommended (MR², with smoothing)", "#1f5fd1"),
    "mr2, label_smoothing=0": ("MR² without smoothing", "#8fb4ef"),
}
THIRDS = {"hard": "hard third", "easy": "easy third"}
# Points of either side that are shown; an arrow says that an interval goes on.
REACH = 3.0
SHIFTS = (-0.24, 0.0, 0.24)


def read_changes() -> dict[str, dict[str, Any]]:
    """Return the rows with a change, by name of the data set and by name of the row, of the records that exist."""
    found = {}
    for file, title in DATA_SETS.items():
        path = ROOT / "results" / f"{file}.json"
        if path.is_file():
            rows = json.loads(path.read_text(encoding="utf-8"))["blocks"][0]["rows"]
            found[title] = {row["title"].replace("ERM", "erm").replace("MR²", "mr2"): row for row in rows}
    return found


def draw(changes: dict[str, dict[str, Any]]) -> None:
    """Write the figure."""
    plt.rcParams["svg.hashsalt"] = "classmargin"  # the same figure gives the same file
    figure, (*panels, cost) = plt.subplots(
        1,
        3,
        figsize=(9, 0.9 + 0.75 * len(changes)),
        sharey=True,
        width_ratios=(4, 4, 1),
        layout="constrained",
    )
    for axes, (part, title) in zip(panels, THIRDS.items(), strict=True):
        for shift, (key, (label, colour)) in zip(SHIFTS, METHODS.items(), strict=True):
            for at, rows in enumerate(changes.values()):
                if key in rows:
                    value, low, high = (100 * number for number in rows[key]["change"]["crossfit"][part])
                    axes.hlines(at + shift, max(low, -REACH), min(high, REACH), color=colour, lw=2)
                    beyond = [(-REACH, "<")] * (low < -REACH) + [(REACH, ">")] * (high > REACH)
                    for edge, arrow in beyond:
                        axes.plot(edge, at + shift, arrow, color=colour, ms=6)
                    axes.plot(value, at + shift, "o", color=colour, ms=5)
            axes.plot([], [], "o-", color=colour, label=label)
        axes.set_xlim(-1.05 * REACH, 1.05 * REACH)
        axes.axvline(0, color="#444444", lw=0.8)
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel(f"change of the {title}, points")
    for shift, (key, (_, colour)) in zip(SHIFTS, METHODS.items(), strict=True):
        for at, rows in enumerate(changes.values()):
            if key in rows:
                text = f"x {rows[key]['relative_cost']:.1f}"
                cost.text(0.5, at + shift, text, color=colour, ha="center", va="center", size=8)
    cost.set_xticks([])
    cost.set_xlabel("time")
    for side in cost.spines.values():
        side.set_visible(False)
    cost.tick_params(left=False)
    panels[0].set_yticks(range(len(changes)), list(changes))
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    draw(read_changes())
