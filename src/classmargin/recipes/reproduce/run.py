"""``classmargin reproduce``: train what is missing of a recipe, measure it, and write the record."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from classmargin.data.catalog import data_root
from classmargin.data.errors import name_some
from classmargin.recipes.reproduce.from_runs import find_runs, group_runs, unfinished_runs
from classmargin.recipes.reproduce.measure import BlockRuns, MeasuredBlock, RowRuns, measure_block
from classmargin.recipes.reproduce.plan import Changes, PlannedBlock, in_order, plan_recipe
from classmargin.recipes.reproduce.recipe import Recipe
from classmargin.recipes.reproduce.record import CUSTOM, Record
from classmargin.recipes.run_pool import run_all
from classmargin.training.recorder import say
from classmargin.training.run_record import session

# A folder of a sweep holds dozens of runs that were never tested.
MOST_NAMES = 10


@dataclass(frozen=True)
class Outcome:
    """The record, and the comparisons behind it for pages with all classes."""

    record: Record
    measured: tuple[MeasuredBlock, ...]


def reproduce(
    recipe: Recipe,
    scale: str,
    folder: str | Path,
    *,
    seeds: int = 3,
    jobs: int = 1,
    changes: Changes | None = None,
    command: Sequence[str] = (),
    show: bool | None = None,
) -> Outcome:
    """Train the runs of a recipe that are missing, and measure all of them.

    Args:
        recipe: What to run.
        scale: ``smoke``, ``laptop`` or ``paper``.
        folder: Runs lie in ``folder/runs``; finished ones are skipped, broken ones go on.
        seeds: Runs of each row.
        jobs: Processes side by side.
        changes: What the user wants otherwise.
        command: Words of the command line, kept in the record.
        show: Force the progress bars on or off.

    Raises:
        ValueError: Bad names or settings, or no baseline could be finished.
    """
    blocks, left_out = plan_recipe(recipe, scale, seeds=seeds, folder=folder, changes=changes)
    size = recipe.scales[scale]
    if size.sample_files:
        from classmargin.recipes.reproduce.sample_files import write_sample_files

        write_sample_files(Path(folder), in_order(blocks))
    failed = run_all(in_order(blocks), jobs=jobs, show=show) if blocks else {}
    measured = measure_all(
        [_block_runs(recipe, block) for block in blocks], recipe, failed=failed, bootstrap=size.bootstrap
    )
    note = size.note + (
        " Settings were changed, see the command." if changes != Changes() and changes else ""
    )
    record = make_record(recipe, scale, note, measured, command=command)
    return Outcome(dataclasses.replace(record, left_out=left_out, failed=failed), tuple(measured))


def from_runs(
    folders: Sequence[str | Path],
    recipe: Recipe | None = None,
    *,
    note: str = "",
    bootstrap: int = 2000,
    command: Sequence[str] = (),
) -> Outcome:
    """Measure runs that exist already, made by ``compare-methods`` or ``train``.

    Args:
        folders: Where the runs lie; those below are found.
        recipe: Brings names, order and printed values; None for a comparison that the paper does not have.
        note: What was run and why, in words.
        bootstrap: Resamples behind every interval.
        command: Words of the command line, kept in the record.

    Raises:
        ValueError: No finished run there.
    """
    blocks = group_runs(find_runs(folders), recipe)
    unfinished = name_some([path.name for path in unfinished_runs(folders)], limit=MOST_NAMES)
    if unfinished:
        say(f"left out, unfinished: {unfinished}")
    measured = measure_all(blocks, recipe, failed={}, bootstrap=bootstrap)
    record = make_record(recipe, CUSTOM, note, measured, command=command)
    left_out = {unfinished: "unfinished"} if unfinished else {}
    return Outcome(dataclasses.replace(record, left_out=left_out), tuple(measured))


def measure_all(
    blocks: Sequence[BlockRuns], recipe: Recipe | None, *, failed: dict[str, str], bootstrap: int
) -> list[MeasuredBlock]:
    """Measure every block whose baseline is finished.

    Raises:
        ValueError: None is.
    """
    extras = recipe.extras if recipe is not None else None
    found = [measure_block(block, bootstrap=bootstrap, extras=extras) for block in blocks]
    measured = [block for block in found if block is not None]
    if blocks and not measured:
        raise ValueError(f"no run of a first row was finished: {'; '.join(failed.values())}")
    return measured


def make_record(
    recipe: Recipe | None,
    scale: str,
    note: str,
    measured: Sequence[MeasuredBlock],
    *,
    command: Sequence[str] = (),
) -> Record:
    """Return the record of measured blocks, with the data of the figure where the recipe draws one."""
    record = Record(
        recipe=recipe.name if recipe is not None else CUSTOM,
        source=recipe.source if recipe is not None else "a comparison that the paper does not have",
        question=recipe.question if recipe is not None else "Who is better on these data?",
        scale=scale,
        note=note,
        command=portable_command(["classmargin", *command]) if command else "",
        session={
            key: value for key, value in session().items() if key not in ("command", "resumed_from_step")
        },
        blocks=tuple(block.result for block in measured),
        doubts=recipe.doubts if recipe is not None else (),
    )
    if recipe is not None and recipe.figure is not None:
        folders = {block.result.key: block.folders for block in measured}
        record = dataclasses.replace(record, figure=dict(recipe.figure(record, folders)))
    return record


def portable_command(words: Sequence[str]) -> str:
    """Return a command that means the same on another machine: absolute paths become relative or bare names.

    Example:
        >>> portable_command(["classmargin", "reproduce", "--from-runs=/somewhere/else/runs", "--note", "two words"])
        "classmargin reproduce --from-runs=runs --note 'two words'"
    """
    return shlex.join(_portable_word(word) for word in words)


def _portable_word(word: str) -> str:
    before, equals, path = word.rpartition("=")
    if not Path(path).is_absolute():
        return word
    for place in (data_root().absolute(), Path.cwd()):  # data are looked for below their root
        if Path(path).is_relative_to(place):
            return before + equals + str(Path(path).relative_to(place))
    return before + equals + Path(path).name


def _block_runs(recipe: Recipe, block: PlannedBlock) -> BlockRuns:
    rows = tuple(
        RowRuns(row.row.key, row.title, row.runs, recipe.printed_row(block.block.key, row.row.key))
        for row in block.rows
    )
    return BlockRuns(block.block.key, block.title, rows, block.block.title)
