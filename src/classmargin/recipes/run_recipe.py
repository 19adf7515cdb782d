"""``classmargin reproduce``: train what is missing of a recipe, measure it, and write the record."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classmargin.data.catalog import data_root
from classmargin.data.raw import name_some
from classmargin.recipes.existing_runs import find_runs, group_runs, unfinished_runs
from classmargin.recipes.measure_runs import MeasuredBlock, measure_block
from classmargin.recipes.recipe import SCALES, Recipe, Scale
from classmargin.recipes.recipe_plan import PlannedBlock, RecipePlan
from classmargin.recipes.record import CUSTOM, Record
from classmargin.recipes.runner import run_all
from classmargin.recipes.validation_search import searched_trials
from classmargin.training.config import RunConfig
from classmargin.training.run_folder import session
from classmargin.training.run_progress import say

# A folder of a sweep holds dozens of runs that were never tested.
MOST_NAMES = 10
BOOTSTRAP = 2000
COLLAPSE = (
    "the printed objective can collapse on features that are not normalised: with 5 epochs of ResNet-20 on CIFAR-10 at 10 % "
    "and one seed, cross-entropy reached 41.2 % overall and 24.3 % on the hard third, the printed objective 16.5 % and 0.1 %. "
    "--objective paper,release,recommended runs the three side by side."
)

COMPARISON = Recipe(
    name=CUSTOM,
    source="a comparison that the paper does not have",
    question="Who is better on these data?",
    blocks=(),
    scales=dict.fromkeys((*SCALES, CUSTOM), Scale("")),
)


@dataclass(frozen=True)
class Outcome:
    """The record, and the comparisons behind it for pages with all classes."""

    record: Record
    measured: tuple[MeasuredBlock, ...]


def reproduce(
    plan: RecipePlan,
    *,
    engine: str = "local",
    jobs: int = 1,
    command: Sequence[str] = (),
    show: bool | None = None,
) -> Outcome:
    """Train the runs of a recipe that are missing, and measure all of them.

    Args:
        plan: From :func:`~classmargin.recipes.recipe_plan.plan_recipe`.
        engine: As for :func:`~classmargin.recipes.runner.run_all`.
        jobs: Runs side by side.
        command: Words of the command line, kept in the record.
        show: Force the progress bars on or off.

    Raises:
        ValueError: No baseline could be finished.
    """
    recipe, size = plan.recipe, plan.recipe.scales[plan.scale]
    if size.sample_files:
        from classmargin.recipes.sample_files import write_sample_files

        write_sample_files(plan.folder, plan.runs)
    failed = run_all(plan.runs, engine=engine, jobs=jobs, show=show) if plan.blocks else {}
    measured = measure_all(plan.blocks, recipe, failed=failed, bootstrap=size.bootstrap, trials=plan.trials)
    changed = "Settings were changed, see the command." if plan.changed else ""
    note = " ".join(filter(None, [size.note, *plan.words, changed]))
    record = make_record(recipe, plan.scale, note, measured, command=command)
    if any(_may_collapse(run.config) for run in plan.runs):
        record = dataclasses.replace(record, doubts=(*record.doubts, COLLAPSE))
    return Outcome(dataclasses.replace(record, left_out=plan.left_out, failed=failed), tuple(measured))


def _may_collapse(config: RunConfig) -> bool:
    """Whether a run minimises the printed objective on features that nothing normalises."""
    return config.method.preset == "paper" and not config.backbone.options.get("normalize_features")


def compare_methods(block: PlannedBlock, *, trials: int = 0, words: str = "", **how: Any) -> Outcome:
    """Do the same for the one block of ``compare-methods``.

    Args:
        block: From :func:`~classmargin.recipes.recipe_plan.plan_comparison`.
        trials: Settings that every row tried on validation.
        words: What a reader must know about the choice of settings.
        **how: As for :func:`reproduce`.

    Raises:
        ValueError: No run of the first method could be finished.
    """
    plan = RecipePlan(COMPARISON, CUSTOM, Path(), (block,), trials=trials, words=(words,))
    return reproduce(plan, **how)


def from_runs(
    folders: Sequence[str | Path],
    recipe: Recipe | None = None,
    *,
    note: str = "",
    bootstrap: int = BOOTSTRAP,
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
    trials = searched_trials(folders)
    measured = measure_all(blocks, recipe or COMPARISON, failed={}, bootstrap=bootstrap, trials=trials)
    record = make_record(recipe or COMPARISON, CUSTOM, note, measured, command=command)
    left_out = {unfinished: "unfinished"} if unfinished else {}
    return Outcome(dataclasses.replace(record, left_out=left_out), tuple(measured))


def measure_all(
    blocks: Sequence[PlannedBlock],
    recipe: Recipe,
    *,
    failed: dict[str, str],
    bootstrap: int,
    trials: int = 0,
) -> list[MeasuredBlock]:
    """Measure every block whose baseline is finished.

    Raises:
        ValueError: None is.
    """
    found = [
        measure_block(block, bootstrap=bootstrap, extras=recipe.extras, trials=trials) for block in blocks
    ]
    measured = [block for block in found if block is not None]
    if blocks and not measured:
        first = blocks[0].rows[0].title if len(blocks) == 1 else "a first row"
        raise ValueError(f"no run of {first} was finished: {'; '.join(failed.values())}")
    return measured


def make_record(
    recipe: Recipe,
    scale: str,
    note: str,
    measured: Sequence[MeasuredBlock],
    *,
    command: Sequence[str] = (),
) -> Record:
    """Return the record of measured blocks, with the data of the figure where the recipe draws one."""
    left_out = ("command", "resumed_from_step")
    record = Record(
        recipe=recipe.name,
        source=recipe.source,
        question=recipe.question,
        scale=scale,
        note=note,
        command=portable_command(["classmargin", *command]) if command else "",
        session={key: value for key, value in session().items() if key not in left_out},
        blocks=tuple(block.result for block in measured),
        doubts=recipe.doubts,
    )
    if recipe.figure is not None:
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
