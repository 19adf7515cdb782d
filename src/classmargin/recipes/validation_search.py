"""Settings that are chosen on validation before the final runs, and the rows that make a comparison fair.

``reproduce --select`` tries the paper's grid of c̄ and λ for the MR² family alone. ``--equal-footing N`` gives every row N settings of
learning rate, weight decay and up to two hyper-parameters of its own, and adds cross-entropy with the compute of each costlier
method, and a null row: balanced softmax, on balanced data the same as cross-entropy, so that what it "gains" is noise. Every
setting is trained like the final runs, with one seed and a validation part held out. Nothing here looks at the test set.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._checks import check_int
from classmargin._files import read_json
from classmargin.methods import default_hyperparameters, method_info
from classmargin.recipes.recipe_plan import SELECTION_FOLDER, PlannedBlock, PlannedRow, RecipePlan, run_folder
from classmargin.recipes.run_parts import effective
from classmargin.recipes.runner import PlannedRun, run_all
from classmargin.recipes.train_run import read_evaluations, validation_accuracies
from classmargin.training.config import MethodConfig, RunConfig
from classmargin.training.config_reader import with_values
from classmargin.training.run_folder import write_json

VALIDATION = 0.1
CHOICE_FILE = "choice.json"
_C_BAR = {"mean_margin": (1.0, 2.0, 3.0)}
_LAMBDA = {"representation_weight": tuple(round(0.1 * step, 1) for step in range(1, 10))}
PAPER_GRID: Mapping[str, Mapping[str, Sequence[float]]] = {
    "mr2-uniform": _C_BAR,
    "mr2-logit": _C_BAR,
    "mr2-zero-spread": _LAMBDA,
    "mr2-representation": _LAMBDA,
    "mr2": {**_C_BAR, **_LAMBDA},
    "mr2-la": {**_C_BAR, **_LAMBDA},
}
NULL_METHOD = "balanced-softmax"
# Learning rate and weight decay are tried up to this factor above and below what was planned.
WIDEST = 5.0
MOST_OWN = 2
# A step of cross-entropy is never exactly 1.
SAME_COST = 1.05

Point = dict[str, dict[str, Any]]
"""Settings as tables, e.g. ``{"optimizer": {"learning_rate": 0.05}, "method": {"rho": 0.1}}``."""
Choice = dict[str, Point]
"""The chosen settings by ``block/row``."""


def searched(plan: RecipePlan, trials: int, **how: Any) -> RecipePlan:
    """Return the plan at the settings that are best on validation: of ``trials`` of every fair row, or (0) of the paper's grid."""
    blocks = tuple(fair_rows(block, plan.folder) for block in plan.blocks) if trials else plan.blocks
    choice = _select(blocks, plan.folder, trials, **how)

    def chosen(block: PlannedBlock, row: PlannedRow) -> PlannedRow:
        point = choice.get(f"{block.key}/{row.key}", {})
        return replace(row, runs=tuple(_changed(run, point, plan.folder, "") for run in row.runs))

    blocks = tuple(replace(block, rows=tuple(chosen(block, row) for row in block.rows)) for block in blocks)
    source = f"from {trials} settings of every row" if trials else "from the grid of the paper"
    rows = "; ".join(f"{place}: {words_of_point(point) or 'as planned'}" for place, point in choice.items())
    words = f"Chosen on validation {source} (overall accuracy, one seed): {rows}."
    return replace(plan, blocks=blocks, trials=trials, words=words)


def paper_points(row: PlannedRow) -> list[Point]:
    """Return the paper's grid for a row without what the row itself fixes; a linear probe has no representation margin."""
    config = row.runs[0].config
    left = {*row.fixed, *(("representation_weight",) if config.backbone.mode == "probe" else ())}
    grid = {n: values for n, values in PAPER_GRID.get(config.method.name, {}).items() if n not in left}
    if not grid:
        return []
    return [{"method": dict(zip(grid, values, strict=True))} for values in itertools.product(*grid.values())]


def equal_points(row: PlannedRow, trials: int) -> list[Point]:
    """Return ``trials`` settings of a row: as planned, then drawn at random for what nobody fixed.

    The factors of learning rate and weight decay are the same for every row, so that no method has luckier draws.
    """
    check_int("trials", trials, minimum=1)
    config, rates, own = row.runs[0].config, np.random.default_rng(0), np.random.default_rng(1)
    ranges = method_info(config.method.name).search
    known = default_hyperparameters(config.method.name)
    free = [name for name in ranges if name not in row.fixed and name in known][:MOST_OWN]
    points: list[Point] = [{}]
    for _ in range(trials - 1):
        rate, decay = (float(WIDEST**power) for power in rates.uniform(-1, 1, 2))
        method = {name: _draw(ranges[name], own) for name in free}
        optimizer = {
            "learning_rate": _short(config.optimizer.learning_rate * rate),
            "weight_decay": _short(config.optimizer.weight_decay * decay),
        }
        points.append({"optimizer": optimizer, **({"method": method} if method else {})})
    return points


def _draw(values: Sequence[Any], rng: np.random.Generator) -> Any:
    """Return one of the values, or a number from the range ``(low, high, "log")``."""
    if values[-1] == "log":
        return _short(float(np.exp(rng.uniform(np.log(values[0]), np.log(values[1])))))
    return values[int(rng.integers(len(values)))]


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def fair_rows(block: PlannedBlock, folder: Path) -> PlannedBlock:
    """Return the block with the null row and cross-entropy trained as many times longer as each costlier method takes per epoch."""
    configs = [row.runs[0].config for row in block.rows]
    base = next((row for row in block.rows if row.runs[0].config.method.name == "erm"), None)
    if base is None:
        return block
    more, planned = [], base.runs[0].config
    costs = dict.fromkeys(round(method_info(config.method.name).cost, 2) for config in configs)
    for epochs in [round(cost * planned.loop.epochs) for cost in costs if cost > SAME_COST]:
        title, longer = f"{base.title}, {epochs} epochs", {"loop": {"epochs": epochs}}
        runs = tuple(_changed(run, longer, folder, title) for run in base.runs)
        more.append(PlannedRow(f"{base.key}, {epochs} epochs", title, runs, fixed=base.fixed))
    if NULL_METHOD not in [config.method.name for config in configs] and planned.data.imbalance == 1:
        title, method = f"{method_info(NULL_METHOD).title} (null row)", MethodConfig(NULL_METHOD)
        null = [replace(run, config=replace(run.config, method=method)) for run in base.runs]
        more.append(PlannedRow("null", title, tuple(_changed(run, {}, folder, title) for run in null)))
    return replace(block, rows=(*block.rows, *more))


def _changed(run: PlannedRun, tables: Point, folder: Path, words: str) -> PlannedRun:
    """Return a run with other settings, in the folder that these give it."""
    config = effective(with_values(run.config, tables))
    place = run_folder(config, folder, watched=run.watch_spread)
    return replace(run, title=f"{run.title}, {words}" if words else run.title, config=config, folder=place)


def _select(blocks: Sequence[PlannedBlock], folder: Path, trials: int, **how: Any) -> Choice:
    """Train what was not tried yet, and return the best settings of each row: overall accuracy, then the hard third."""
    tried: dict[str, list[tuple[Point, PlannedRun]]] = {}
    for place, row in {f"{block.key}/{row.key}": row for block in blocks for row in block.rows}.items():
        bare = replace(row.runs[0], test=False, watch_spread=False)
        held_out: Point = {"data": {"validation": bare.config.data.validation or VALIDATION}}
        for point in equal_points(row, trials) if trials else paper_points(row):
            tables, words = {**point, **held_out, "machine": {"report": False}}, words_of_point(point)
            run = _changed(bare, tables, folder / SELECTION_FOLDER, words or "as planned")
            tried.setdefault(place, []).append((point, run))
    left = [run for runs in tried.values() for _, run in runs if not _is_trained(run)]
    failed = run_all(left, **how) if left else {}
    choice = {}
    for place, runs in tried.items():
        known = [(point, validation_accuracies(run.folder.path)) for point, run in runs if run.title not in failed]
        if not known:
            raise ValueError(f"no setting of {place} could be trained: {'; '.join(failed.values())}")
        choice[place] = max(known, key=lambda found: (found[1]["overall"], found[1].get("hard", 0.0)))[0]
    if trials:
        write_json(folder / SELECTION_FOLDER / CHOICE_FILE, {"trials": trials, "rows": choice})
    return choice


def _is_trained(run: PlannedRun) -> bool:
    """Whether a run of the search has come to its last evaluation; it is never tested, and so never ``done``."""
    last = read_evaluations(run.folder.path)[-1:]
    return any(int(found.get("epoch", 0)) >= run.config.loop.epochs for found in last)


def words_of_point(point: Point) -> str:
    """Return settings in words, like ``learning_rate=0.05, mode=joint``."""
    pairs = [pair for table in point.values() for pair in table.items()]
    return ", ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in pairs)


def searched_trials(folders: Sequence[str | Path]) -> int:
    """Return how many settings every row had in finished comparisons; 0 where one had no equal search."""
    try:
        found = [int(read_json(Path(folder) / SELECTION_FOLDER / CHOICE_FILE)["trials"]) for folder in folders]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return min(found, default=0)


def footing_lacks(configs: Sequence[RunConfig], trials: int) -> tuple[str, ...]:
    """Return what a table of these rows, each with so many ``trials``, lacks to compare methods on an equal footing."""
    lacks = [] if trials > 1 else ["the same search on validation for every method"]
    length = max((c.loop.epochs for c in configs if c.method.name == "erm"), default=0)
    infos = [(method_info(config.method.name), config.loop.epochs) for config in configs]
    costly = dict.fromkeys(
        info.title for info, epochs in infos if info.cost > SAME_COST and length < round(round(info.cost, 2) * epochs)
    )
    if costly:
        lacks.append(f"cross-entropy with the compute of {', '.join(costly)}")
    if not any(c.method.name == NULL_METHOD and c.data.imbalance == 1 for c in configs):
        lacks.append("a null row")
    return tuple(lacks)
