"""``reproduce --select``: the paper's grid of c̄ and λ, tried on validation before the final runs.

The appendix searches c̄ in {1, 2, 3} and λ in {0.1, …, 0.9}. Each row of the MR² family tries the part of the grid that it
has, with one seed, trained like its final runs but with a validation part held out; nothing here looks at the test set.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from classmargin.recipes.out_folder import SELECTION_FOLDER
from classmargin.recipes.recipe_plan import RecipePlan, run_folder
from classmargin.recipes.run_parts import effective
from classmargin.recipes.run_sweep import read_evaluations, validation_accuracies
from classmargin.recipes.runner import PlannedRun, run_all
from classmargin.training.config_reader import with_values

MEAN_MARGINS = (1.0, 2.0, 3.0)
WEIGHTS = tuple(round(0.1 * step, 1) for step in range(1, 10))
VALIDATION = 0.1
_C_BAR = {"mean_margin": MEAN_MARGINS}
_LAMBDA = {"representation_weight": WEIGHTS}
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mr2-uniform": _C_BAR,
    "mr2-logit": _C_BAR,
    "mr2-zero-spread": _LAMBDA,
    "mr2-representation": _LAMBDA,
    "mr2": {**_C_BAR, **_LAMBDA},
    "mr2-la": {**_C_BAR, **_LAMBDA},
}
Chosen = dict[str, dict[str, float]]


def grid_runs(plan: RecipePlan) -> dict[str, list[tuple[dict[str, float], PlannedRun]]]:
    """Return the points of the grid and their runs for each ``block/row`` that has a grid.

    A linear probe has no representation margin to search; a hyper-parameter that the row itself fixes is not searched.
    """
    found: dict[str, list[tuple[dict[str, float], PlannedRun]]] = {}
    rows = {(block.key, row.key): row for block in plan.blocks for row in block.rows}
    fixed = {(b.key, row.key): row.options for b in plan.recipe.blocks for row in b.rows}
    for place, row in rows.items():
        first = row.runs[0]
        probe = first.config.backbone.mode == "probe"
        grid = {
            name: values
            for name, values in GRIDS.get(first.config.method.name, {}).items()
            if name not in fixed.get(place, {}) and not (probe and name == "representation_weight")
        }
        points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        if grid:
            found["/".join(place)] = [(point, _run(first, point, plan.folder)) for point in points]
    return found


def _run(final: PlannedRun, point: Mapping[str, float], folder: Path) -> PlannedRun:
    validation = final.config.data.validation or VALIDATION
    tables: dict[str, dict[str, Any]] = {
        "method": dict(point),
        "data": {"validation": validation},
        "machine": {"report": False},
    }
    config = effective(with_values(final.config, tables))
    words = ", ".join(f"{name}={value:g}" for name, value in point.items())
    place = run_folder(config, folder / SELECTION_FOLDER)
    return replace(
        final, title=f"{final.title}, {words}", config=config, folder=place, test=False, watch_spread=False
    )


def select(plan: RecipePlan, *, engine: str = "local", jobs: int = 1, show: bool | None = None) -> Chosen:
    """Train the grid where it is not trained yet, and return the best point of each row on validation.

    The highest overall accuracy wins, the hard third breaks ties.

    Raises:
        ValueError: No run of a row's grid could be trained.
    """
    grids = grid_runs(plan)
    left = [run for tried in grids.values() for _, run in tried if not _is_trained(run)]
    failed = run_all(left, engine=engine, jobs=jobs, show=show) if left else {}
    chosen: Chosen = {}
    for place, tried in grids.items():
        known = [
            (point, validation_accuracies(run.folder.path)) for point, run in tried if run.title not in failed
        ]
        if not known:
            raise ValueError(f"no run of the grid of {place} was finished: {'; '.join(failed.values())}")
        best = max(known, key=lambda found: (found[1]["overall"], found[1].get("hard", 0.0)))
        chosen[place] = best[0]
    return chosen


def _is_trained(run: PlannedRun) -> bool:
    """Whether a run of the grid has come to its last evaluation; it is never tested, and so never ``done``."""
    found = read_evaluations(run.folder.path)
    return bool(found) and int(found[-1].get("epoch", 0)) >= run.config.loop.epochs


def words_of(chosen: Mapping[str, Mapping[str, float]]) -> str:
    """Return the choice in a sentence for the page.

    Example:
        >>> words_of({"cifar100/mr2": {"mean_margin": 2.0}})
        'Chosen on validation from the grid of the paper (overall accuracy, one seed): cifar100/mr2: mean_margin=2.'
    """
    words = [
        f"{place}: {', '.join(f'{name}={value:g}' for name, value in point.items())}"
        for place, point in chosen.items()
    ]
    return (
        f"Chosen on validation from the grid of the paper (overall accuracy, one seed): {'; '.join(words)}."
    )
