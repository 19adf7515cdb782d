"""What a recipe is: a question, a grid of runs, three scales, and what the paper printed.

A grid has *blocks* (one data set and network each) of *rows* (one method each); rows of a block are compared
with its first row on the same test samples. Settings are tables as in a configuration file, and later ones
win: preset of the block, block, row, scale, changes of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from classmargin._checks import did_you_mean

if TYPE_CHECKING:
    from classmargin.recipes.record import Record
    from classmargin.report.tables import Table
    from classmargin.training.run_folder import RunFolder

Tables = Mapping[str, Mapping[str, Any]]
SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        key: Its name within the block; the printed values are found by it.
        method: Registry name of the method.
        title: Name in tables; empty takes the method's.
        options: Hyper-parameters of the method.
        settings: Other settings of this row alone, such as its augmentation.
    """

    key: str
    method: str
    title: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Tables = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Rows that share data and network.

    Attributes:
        key: Its name within the recipe.
        title: Name in tables.
        rows: The first is the baseline.
        preset: Training recipe of :mod:`classmargin.training.presets`.
        settings: What differs from the preset.
        files: Names of files (without ending) that hold the data of the block in another state, such as thinned
            already, with the settings that go with them.
    """

    key: str
    title: str
    rows: tuple[Row, ...]
    preset: str = "cifar"
    settings: Tables = field(default_factory=dict)
    files: Mapping[str, Tables] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """One size of a recipe.

    Attributes:
        note: What is run, in one or two sentences that stand in the report.
        settings: Settings of every run, over those of block and row.
        blocks: Settings of single blocks, over all others.
        leave_out: Blocks that do not fit this size, each with the reason.
        mr2_preset: Hyper-parameters of the MR² family: ``None`` (the recommended defaults) or a preset's name.
        bootstrap: Resamples behind every interval.
        preset: Training recipe in place of the block's preset and settings.
        sample_files: Make a few files in the formats of the data sets, and train on these.
    """

    note: str
    settings: Tables = field(default_factory=dict)
    blocks: Mapping[str, Tables] = field(default_factory=dict)
    leave_out: Mapping[str, str] = field(default_factory=dict)
    mr2_preset: str | None = None
    bootstrap: int = 2000
    preset: str = ""
    sample_files: bool = False


Folders = Mapping[str, Mapping[str, Sequence["RunFolder"]]]
"""``folders[block key][row key]``: the finished runs of a row."""

Printed = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""``printed[block key][row key] = {"hard": 61.9, …, "doubt": words}`` in percent as the paper gives them."""


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper that can be run again.

    Attributes:
        name: On the command line.
        source: Which table or figure of the paper.
        question: One sentence.
        blocks: The grid.
        scales: ``smoke``, ``laptop`` and ``paper``.
        printed: What the paper gives, by block and row.
        doubts: Where the paper contradicts itself about this table.
        extras: Further numbers of a row's finished runs, kept in the record.
        tables: Makes the tables of a record; the default shows thirds, changes and cost.
        figure: Makes the data of a figure from a record and its run folders, kept in the record; None for tables.
        draw: Draws that data as a plotly figure.
        watch_spread: Whether the runs note the spread of every class at each evaluation.
    """

    name: str
    source: str
    question: str
    blocks: tuple[Block, ...]
    scales: Mapping[str, Scale]
    printed: Printed = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    extras: Callable[[Sequence[RunFolder]], Mapping[str, Any]] | None = None
    tables: Callable[[Record], list[Table]] | None = None
    figure: Callable[[Record, Folders], Mapping[str, Any]] | None = None
    draw: Callable[[Mapping[str, Any]], Any] | None = None
    watch_spread: bool = False

    def __post_init__(self) -> None:
        missing = [name for name in SCALES if name not in self.scales]
        if missing:
            raise ValueError(
                f"recipe {self.name} must have the scales {', '.join(SCALES)}; lacks {missing[0]}"
            )
        for block in self.blocks:
            keys = [row.key for row in block.rows]
            if not keys or len(set(keys)) != len(keys):
                raise ValueError(f"block {block.key} of recipe {self.name} needs rows with different keys")

    def printed_row(self, block: str, row: str) -> Mapping[str, Any] | None:
        """Return what the paper prints for a row, or None."""
        return self.printed.get(block, {}).get(row)


_RECIPES: dict[str, Recipe] = {}


def register(recipe: Recipe) -> Recipe:
    """Make a recipe known by its name."""
    if recipe.name in _RECIPES:
        raise ValueError(f"a recipe named {recipe.name!r} is registered already")
    _RECIPES[recipe.name] = recipe
    return recipe


def list_recipes() -> list[Recipe]:
    """Return every recipe, in the order of the paper.

    Example:
        >>> "table3-components" in [recipe.name for recipe in list_recipes()]
        True
    """
    _load()
    return list(_RECIPES.values())


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ValueError: Unknown name; the message suggests the nearest.
    """
    _load()
    if name not in _RECIPES:
        known = ", ".join(_RECIPES)
        raise ValueError(f"recipe must be one of {known}; got {name!r}{did_you_mean(name, _RECIPES)}")
    return _RECIPES[name]


def _load() -> None:
    import classmargin.recipes.paper  # noqa: F401 - importing registers
