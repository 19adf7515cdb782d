"""How often the intervals of an audit hold the true value, in simulations where the truth is known.

For K classes and n samples per class, test sets are drawn from class accuracies of seven shapes; each is audited with
``ranking="corrected"`` (the default) and ``ranking="own"`` (as in the paper). The page ``docs/coverage.md`` is made from the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from classmargin.evaluation.class_metrics import tier_sizes
from classmargin.evaluation.headline_intervals import AuditSettings, estimate_headlines
from classmargin.evaluation.headlines import outcome_table

CLASSES = (10, 100, 1000)
SIZES = ("20", "50", "100", "unequal")
# Test sets per row; many classes of many different sizes cost ten times as much as others.
REPETITIONS, FEW_REPETITIONS = 40, 20
NAMES = ("hard", "worst", "gap")
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
Rng = np.random.Generator


def _few(rng: Rng, classes: int) -> np.ndarray:
    bad = max(1, round(0.03 * classes))
    return np.concatenate([rng.uniform(0.1, 0.4, bad), rng.beta(36, 4, classes - bad)])


# Name -> (words for the page, how the true accuracies are drawn).
SHAPES: dict[str, tuple[str, Callable[[Rng, int], np.ndarray]]] = {
    "beta": ("beta, mean 75 %, deviation 12 points", lambda rng, k: rng.beta(9, 3, k)),
    "wide": ("beta, mean 63 %, deviation 24 points", lambda rng, k: rng.beta(2, 1.2, k)),
    "equal": ("all at 80 %", lambda rng, k: np.full(k, 0.8)),
    "nearly equal": ("beta, mean 80 %, deviation 2.3 points", lambda rng, k: rng.beta(240, 60, k)),
    "two groups": ("half at 60 %, half at 90 %", lambda rng, k: np.where(np.arange(k) < k // 2, 0.6, 0.9)),
    "a few bad": ("3 % of classes at 10 to 40 %, the others near 90 %", _few),
    "near 1": ("beta, mean 97 %, deviation 1.7 points", lambda rng, k: rng.beta(97, 3, k)),
}


def class_sizes(rng: Rng, classes: int, size: str) -> np.ndarray:
    """Samples of each class; "unequal" is log-uniform from 5 to 300."""
    if size != "unequal":
        return np.full(classes, int(size))
    return np.round(np.exp(rng.uniform(np.log(5), np.log(300), classes))).astype(int)


def repetitions(classes: int, size: str) -> int:
    """Test sets per row of the table."""
    return FEW_REPETITIONS if classes >= 1000 and size == "unequal" else REPETITIONS


def true_headlines(accuracy: np.ndarray) -> np.ndarray:
    """Hard, worst and gap of the classes themselves."""
    ordered = np.sort(accuracy)
    easy, _, hard = tier_sizes(len(accuracy))
    low, high = ordered[:hard].mean(), ordered[len(ordered) - easy :].mean()
    return np.array([low, ordered[0], high - low])


def simulate(shape: str, classes: int, size: str, repetitions: int) -> dict[str, dict[str, list[float]]]:
    """Return coverage, bias and mean width of hard, worst and gap for both rankings."""
    found: dict[str, list[np.ndarray]] = {"corrected": [], "own": []}
    for repetition in range(repetitions):
        rng = np.random.default_rng([repetition, classes, SIZES.index(size), list(SHAPES).index(shape)])
        accuracy, n = SHAPES[shape][1](rng, classes), class_sizes(rng, classes, size)
        labels = np.repeat(np.arange(classes), n)
        correct = rng.random(len(labels)) < accuracy[labels]
        table, truth = outcome_table(labels, correct[:, None], classes), true_headlines(accuracy)
        for ranking, rows in found.items():
            result = estimate_headlines(table, AuditSettings(classes, ranking=ranking, bootstrap=200, seed=repetition))
            low, high = np.array([result.intervals[name] for name in NAMES]).T
            value = np.array([result.values[name] for name in NAMES])
            rows.append(np.stack([(low - 1e-9 <= truth) & (truth <= high + 1e-9), value - truth, high - low]))
    return {
        ranking: dict(zip(("coverage", "bias", "width"), np.mean(rows, axis=0).tolist(), strict=True))
        for ranking, rows in found.items()
    }


def run() -> dict[str, object]:
    start, cells = time.perf_counter(), list[dict[str, Any]]()
    print("coverage of the truth at nominal 95 %, corrected | own;  bias of the gap in points, corrected | own")
    for classes in CLASSES:
        for size in SIZES:
            for shape in SHAPES:
                result = simulate(shape, classes, size, repetitions(classes, size))
                cells.append({"classes": classes, "n": size, "shape": shape, **result})
                shown = " | ".join(" ".join(f"{c:.2f}" for c in result[r]["coverage"]) for r in ("corrected", "own"))
                bias = " | ".join(f"{100 * result[r]['bias'][2]:+.1f}" for r in ("corrected", "own"))
                print(f"{classes:5d} {size:>7} {shape:13} {shown};  {bias}", flush=True)
    PAGE.write_text(page(cells))
    lowest = min(min(cell["corrected"]["coverage"]) for cell in cells)
    print(f"lowest coverage {lowest:.2f} ({time.perf_counter() - start:.0f} s)")
    return {"lowest_coverage": lowest, "cells": cells}


def page(cells: list[dict[str, Any]]) -> str:
    """Return the result as a Markdown page."""
    covered = np.array([cell["corrected"]["coverage"] for cell in cells])
    mean = ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(NAMES, covered.mean(axis=0), strict=True))
    errors = [100 * np.sqrt(0.95 * 0.05 / count) for count in (REPETITIONS, FEW_REPETITIONS)]
    lines = [
        "# Do the intervals hold the truth?",
        "",
        "Made by `make bench BENCH=coverage`: test sets are drawn from classes whose true accuracies are known, and audited. The table",
        "says in how many percent of the audits the 95 % interval holds the true value, and how far the printed gap is off on average.",
        f"Test sets per row: {REPETITIONS} ({FEW_REPETITIONS} for 1000 classes of unequal sizes), so the coverage of a single row is known",
        f"to {errors[0]:.0f} ({errors[1]:.0f}) points (standard error).",
        "",
        '"Corrected" is `ranking="corrected"`, the default: estimates of the true class accuracies. "Own" is `ranking="own"`, as in the',
        "paper: thirds ranked by the observed accuracies, whose intervals describe what the same procedure would give on other test",
        "sets of the same size. They were never about the classes themselves, and the table shows how far apart the two are.",
        "",
        f"Corrected intervals, mean coverage over all rows: {mean}; the lowest of {covered.size} entries is {100 * covered.min():.0f} %.",
        "Where classes are few the intervals are wide, and hold the truth more often than they promise.",
        "",
        "| classes | samples per class | shape | hard | worst | gap | gap off by | own: hard | worst | gap | gap off by |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        fields = [str(cell["classes"]), cell["n"], cell["shape"]]
        for part in (cell["corrected"], cell["own"]):
            fields += [f"{100 * share:.0f} %" for share in part["coverage"]]
            fields.append(f"{100 * part['bias'][2]:+.1f}")
        lines.append("| " + " | ".join(fields) + " |")
    lines += ["", "Gaps are in percentage points. Shapes of the true accuracies:", ""]
    lines += [f"- {name}: {words}" for name, (words, _) in SHAPES.items()]
    lines += ["", "Unequal sizes are log-uniform from 5 to 300 samples per class.", ""]
    return "\n".join(lines)
