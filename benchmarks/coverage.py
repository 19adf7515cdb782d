"""How often the intervals of an audit hold the true value, in simulations where the truth is known.

For K classes and n samples per class, test sets are drawn from class accuracies of seven shapes; each is audited with
``ranking="corrected"`` (the default) and ``ranking="own"`` (as in the paper). The page ``docs/coverage.md`` is made from the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from classmargin.evaluation.headline_intervals import check_settings, estimate_headlines
from classmargin.evaluation.headlines import outcome_table
from classmargin.evaluation.tiers import tier_sizes

CLASSES = (10, 100, 1000)
SIZES = ("20", "50", "100", "unequal")
# Large numbers of classes vary less from test set to test set, and cost more.
REPETITIONS = {10: 40, 100: 40, 1000: 10}
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
            result = estimate_headlines(
                table, check_settings(classes, ranking=ranking, bootstrap=200, seed=repetition)
            )
            low, high = np.array([result.intervals[name] for name in NAMES]).T
            value = np.array([result.values[name] for name in NAMES])
            rows.append(np.stack([(low - 1e-9 <= truth) & (truth <= high + 1e-9), value - truth, high - low]))
    return {
        ranking: dict(zip(("coverage", "bias", "width"), np.mean(rows, axis=0).tolist(), strict=True))
        for ranking, rows in found.items()
    }


def run() -> dict[str, object]:
    start, cells = time.perf_counter(), []
    print(
        "coverage of the truth at nominal 95 %, corrected | own;  bias of the gap in points, corrected | own"
    )
    for classes in CLASSES:
        for size in SIZES:
            for shape in SHAPES:
                result = simulate(shape, classes, size, REPETITIONS[classes])
                cells.append({"classes": classes, "n": size, "shape": shape, **result})
                shown = " | ".join(
                    " ".join(f"{c:.2f}" for c in result[r]["coverage"]) for r in ("corrected", "own")
                )
                bias = " | ".join(f"{100 * result[r]['bias'][2]:+.1f}" for r in ("corrected", "own"))
                print(f"{classes:5d} {size:>7} {shape:13} {shown};  {bias}", flush=True)
    worst = min(min(cell["corrected"]["coverage"]) for cell in cells)  # type: ignore[index]
    result = {"repetitions": REPETITIONS, "lowest_coverage": worst, "cells": cells}
    PAGE.write_text(page(result))
    print(f"lowest coverage {worst:.2f} ({time.perf_counter() - start:.0f} s)")
    return result


def page(result: dict[str, object]) -> str:
    """Return the result as a Markdown page."""
    sets = ", ".join(f"{count} with {classes} classes" for classes, count in REPETITIONS.items())
    error = 100 * np.sqrt(0.95 * 0.05 / min(REPETITIONS.values()))
    lines = [
        "# Do the intervals hold the truth?",
        "",
        "Made by `make bench BENCH=coverage`: test sets are drawn from classes whose true accuracies are known, and audited. The table",
        "says in how many percent of the audits the 95 % interval holds the true value, and how far the printed gap is off on average.",
        f"Test sets per row: {sets}; a coverage of 95 % is known to {error:.0f} points",
        "or better (standard error).",
        "",
        '"Corrected" is `ranking="corrected"`, the default: estimates of the true class accuracies. "Own" is `ranking="own"`, as in the',
        "paper: thirds ranked by the observed accuracies, whose intervals describe what the same procedure would give on other test",
        "sets of the same size. They were never about the classes themselves, and the table shows how far apart the two are.",
        "",
        f"Lowest coverage of a corrected interval: {100 * float(result['lowest_coverage']):.0f} %.",  # type: ignore[arg-type]
        "",
        "| classes | samples per class | shape | hard | worst | gap | gap off by | own: hard | worst | gap | gap off by |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:  # type: ignore[attr-defined]
        new, old = cell["corrected"], cell["own"]
        covered = [[f"{100 * value:.0f} %" for value in part["coverage"]] for part in (new, old)]
        bias = [f"{100 * part['bias'][2]:+.1f}" for part in (new, old)]
        fields = [
            str(cell["classes"]),
            cell["n"],
            cell["shape"],
            *covered[0],
            bias[0],
            *covered[1],
            bias[1],
        ]
        lines.append("| " + " | ".join(fields) + " |")
    lines += ["", "Gaps are in percentage points. Shapes of the true accuracies:", ""]
    lines += [f"- {name}: {words}" for name, (words, _) in SHAPES.items()]
    lines += ["", "Unequal sizes are log-uniform from 5 to 300 samples per class.", ""]
    return "\n".join(lines)
