"""Settings that are chosen on validation before the final runs, and the rows that make a comparison fair.

``reproduce --select`` tries the paper's grid: c̄ in {1, 2, 3} and λ in {0.1, …, 0.9}, for the rows of the MR² family alone.
``--equal-footing N`` gives every row the same budget: N settings of learning rate, weight decay and up to two
hyper-parameters of its own, the first of them the settings as planned. It also adds cross-entropy with the compute of each
costlier method (:func:`fair_rows`), and balanced softmax as a null row, which on balanced data is cross-entropy: what it
"gains" is noise.

Every setting is trained like the final runs, with one seed and a validation part held out. Nothing here looks at the test set.
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
from classmargin.recipes.out_folder import SELECTION_FOLDER
from classmargin.recipes.recipe_plan import PlannedBlock, PlannedRow, run_folder
from classmargin.recipes.run_parts import effective
from classmargin.recipes.run_sweep import read_evaluations, validation_accuracies
from classmargin.recipes.runner import PlannedRun, run_all
from classmargin.training.config import MethodConfig, RunConfig
from classmargin.training.config_reader import with_values
from classmargin.training.run_folder import write_json

VALIDATION = 0.1
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
OF_THE_PAPER = "from the grid of the paper"
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


def paper_points(row: PlannedRow) -> list[Point]:
    """Return the paper's grid for a row; empty where it has none.

    A linear probe has no representation margin to search; a hyper-parameter that the row itself fixes is not searched.
    """
    config = row.runs[0].config
    probe = config.backbone.mode == "probe"
    grid = {
        name: values
        for name, values in PAPER_GRID.get(config.method.name, {}).items()
        if name not in row.fixed and not (probe and name == "representation_weight")
    }
    if not grid:
        return []
    return [{"method": dict(zip(grid, values, strict=True))} for values in itertools.product(*grid.values())]


def equal_points(row: PlannedRow, trials: int) -> list[Point]:
    """Return ``trials`` settings of a row: as planned, then drawn at random.

    The factors of learning rate and weight decay are the same for every row, so that no method has luckier draws.

    Args:
        row: Its hyper-parameters that somebody fixed are left alone.
        trials: At least 1.
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
    """Return the block with the rows that equal footing asks for.

    Cross-entropy is trained as many times longer as each costlier method takes per epoch. The null row is added where the
    classes are balanced; without a row of cross-entropy nothing can be added.
    """
    base = next((row for row in block.rows if row.runs[0].config.method.name == "erm"), None)
    if base is None:
        return block
    costs = {round(method_info(row.runs[0].config.method.name).cost, 2): None for row in block.rows}
    more = [_longer(base, cost, folder) for cost in costs if cost > SAME_COST]
    names = {row.runs[0].config.method.name for row in block.rows}
    if NULL_METHOD not in names and base.runs[0].config.data.imbalance == 1:
        null = MethodConfig(NULL_METHOD)
        title = f"{method_info(NULL_METHOD).title} (null row)"
        runs = [replace(run, config=replace(run.config, method=null)) for run in base.runs]
        more.append(_row("null", title, runs, {}, folder))
    return replace(block, rows=(*block.rows, *more))


def _longer(base: PlannedRow, cost: float, folder: Path) -> PlannedRow:
    epochs = round(cost * base.runs[0].config.loop.epochs)
    title = f"{base.title}, {epochs} epochs"
    key, length = f"{base.key}, {epochs} epochs", {"loop": {"epochs": epochs}}
    return _row(key, title, base.runs, length, folder, base.fixed)


def _row(
    key: str,
    title: str,
    runs: Sequence[PlannedRun],
    tables: Point,
    folder: Path,
    fixed: tuple[str, ...] = (),
) -> PlannedRow:
    return PlannedRow(key, title, tuple(_changed(run, tables, folder, title) for run in runs), fixed=fixed)


def _changed(run: PlannedRun, tables: Point, folder: Path, words: str) -> PlannedRun:
    """Return a run with other settings, in the folder that these give it."""
    config = effective(with_values(run.config, tables))
    place = run_folder(config, folder, watched=run.watch_spread)
    return replace(run, title=f"{run.title}, {words}" if words else run.title, config=config, folder=place)


def select(
    blocks: Sequence[PlannedBlock],
    folder: Path,
    *,
    trials: int | None = None,
    engine: str = "local",
    jobs: int = 1,
    show: bool | None = None,
) -> Choice:
    """Train what was not tried yet, and return the best settings of each row on validation.

    The highest overall accuracy wins, the hard third breaks ties.

    Args:
        blocks: Rows with their final runs.
        folder: Of the final runs; those of the search are in ``selection``.
        trials: Settings of every row; None for the paper's grid.
        engine: As for :func:`~classmargin.recipes.runner.run_all`.
        jobs: Runs side by side.
        show: Force the progress bars on or off.

    Raises:
        ValueError: No setting of a row could be trained.
    """
    tried: dict[str, list[tuple[Point, PlannedRun]]] = {}
    for place, row in _rows_of(blocks):
        points = paper_points(row) if trials is None else equal_points(row, trials)
        if points:
            tried[place] = [(point, _trial(row.runs[0], point, folder)) for point in points]
    left = [run for runs in tried.values() for _, run in runs if not _is_trained(run)]
    failed = run_all(left, engine=engine, jobs=jobs, show=show) if left else {}
    choice = {place: _best(place, runs, failed) for place, runs in tried.items()}
    if trials is not None:
        write_json(folder / SELECTION_FOLDER / "choice.json", {"trials": trials, "rows": choice})
    return choice


def _rows_of(blocks: Sequence[PlannedBlock]) -> list[tuple[str, PlannedRow]]:
    return [(f"{block.key}/{row.key}", row) for block in blocks for row in block.rows]


def _trial(final: PlannedRun, point: Point, folder: Path) -> PlannedRun:
    held_out: Point = {
        "data": {"validation": final.config.data.validation or VALIDATION},
        "machine": {"report": False},
    }
    bare = replace(final, test=False, watch_spread=False)
    return _changed(
        bare, {**point, **held_out}, folder / SELECTION_FOLDER, words_of_point(point) or "as planned"
    )


def _is_trained(run: PlannedRun) -> bool:
    """Whether a run of the search has come to its last evaluation; it is never tested, and so never ``done``."""
    found = read_evaluations(run.folder.path)
    return bool(found) and int(found[-1].get("epoch", 0)) >= run.config.loop.epochs


def _best(place: str, tried: Sequence[tuple[Point, PlannedRun]], failed: Mapping[str, str]) -> Point:
    known = [
        (point, validation_accuracies(run.folder.path)) for point, run in tried if run.title not in failed
    ]
    if not known:
        raise ValueError(f"no setting of {place} could be trained: {'; '.join(failed.values())}")
    return max(known, key=lambda found: (found[1]["overall"], found[1].get("hard", 0.0)))[0]


def with_choice(blocks: Sequence[PlannedBlock], choice: Choice, folder: Path) -> tuple[PlannedBlock, ...]:
    """Return the blocks with the final runs at the chosen settings."""

    def chosen(block: PlannedBlock, row: PlannedRow) -> PlannedRow:
        point = choice.get(f"{block.key}/{row.key}", {})
        return replace(row, runs=tuple(_changed(run, point, folder, "") for run in row.runs))

    return tuple(replace(block, rows=tuple(chosen(block, row) for row in block.rows)) for block in blocks)


def words_of(choice: Choice, how: str) -> str:
    """Return the choice in a sentence for the page.

    Example:
        >>> words_of({"cifar100/mr2": {"method": {"mean_margin": 2.0}}}, OF_THE_PAPER)
        'Chosen on validation from the grid of the paper (overall accuracy, one seed): cifar100/mr2: mean_margin=2.'
    """
    words = [f"{place}: {words_of_point(point) or 'as planned'}" for place, point in choice.items()]
    return f"Chosen on validation {how} (overall accuracy, one seed): {'; '.join(words)}."


def words_of_point(point: Point) -> str:
    """Return settings in words.

    Example:
        >>> words_of_point({"optimizer": {"learning_rate": 0.05}, "method": {"mode": "joint"}})
        'learning_rate=0.05, mode=joint'
    """
    pairs = [pair for table in point.values() for pair in table.items()]
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in pairs
    )


def on_equal_footing(
    blocks: Sequence[PlannedBlock], folder: Path, trials: int, **how: Any
) -> tuple[tuple[PlannedBlock, ...], str]:
    """Return blocks with fair rows at the settings that are best on validation, and the choice in a sentence.

    Args:
        blocks: As planned.
        folder: Of the command.
        trials: Settings of every row.
        **how: ``engine``, ``jobs`` and ``show`` of :func:`select`.
    """
    fair = [fair_rows(block, folder) for block in blocks]
    choice = select(fair, folder, trials=trials, **how)
    return with_choice(fair, choice, folder), words_of(choice, f"from {trials} settings of every row")


def searched_trials(folders: Sequence[str | Path]) -> int:
    """Return how many settings every row had in finished comparisons; 0 where one had no equal search."""
    found = []
    for folder in folders:
        try:
            found.append(int(read_json(Path(folder) / SELECTION_FOLDER / "choice.json")["trials"]))
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            found.append(0)
    return min(found, default=0)


def footing_lacks(configs: Sequence[RunConfig], trials: int) -> tuple[str, ...]:
    """Return what a table of these rows lacks to compare methods on an equal footing; empty if nothing.

    Args:
        configs: Of each row of a block, the baseline first.
        trials: Settings that every row tried on validation.
    """
    lacks = [] if trials > 1 else ["the same search on validation for every method"]
    length = max((c.loop.epochs for c in configs if c.method.name == "erm"), default=0)
    costly = {
        info.title: None
        for config in configs
        if (info := method_info(config.method.name)).cost > SAME_COST
        and length < round(round(info.cost, 2) * config.loop.epochs)
    }
    if costly:
        lacks.append(f"cross-entropy with the compute of {', '.join(costly)}")
    null = [c for c in configs if c.method.name == NULL_METHOD and c.data.imbalance == 1]
    return tuple(lacks if null else [*lacks, "a null row"])
