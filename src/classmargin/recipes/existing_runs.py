"""Runs that exist already, made by ``compare-methods`` or by hand, as the blocks of a record.

Runs are grouped by what they are: one data set and network is a block, one method with one set of settings is
a row, and seeds are its runs. A recipe's rows are found by method and hyper-parameters; other rows follow
after them under names of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin.data.raw import name_some
from classmargin.methods import method_info
from classmargin.recipes.measure_runs import settings_difference
from classmargin.recipes.recipe import Block, Recipe, Row
from classmargin.recipes.recipe_plan import PlannedBlock, PlannedRow, describe_setting
from classmargin.recipes.runner import PlannedRun
from classmargin.training.config import RunConfig
from classmargin.training.run_folder import RunFolder

_OF_THE_DATA = ("name", "fraction", "imbalance", "seed", "validation")


def find_runs(folders: Iterable[str | Path]) -> list[PlannedRun]:
    """Return every finished run in folders and below them.

    Raises:
        ValueError: There is none.
    """
    places = [Path(folder) for folder in folders]
    found: dict[Path, PlannedRun] = {}
    for place in places:
        for mark in _files_named("done", place):
            folder = RunFolder(mark.parent)
            if folder.started and folder.predictions_file.exists():
                config = folder.read_config()
                title = f"{config.method.name} seed {config.loop.seed}"
                found[mark.parent.resolve()] = PlannedRun(title, config, folder)
    if not found:
        begun = unfinished_runs(places)
        words = f" (unfinished: {name_some([path.name for path in begun])})" if begun else ""
        raise ValueError(f"no finished run in {', '.join(map(str, places))}{words}")
    return list(found.values())


def unfinished_runs(folders: Iterable[str | Path]) -> list[Path]:
    """Return every run in folders and below them that was begun and has no result yet."""
    begun = {file.parent.resolve(): file.parent for place in folders for file in _configs(Path(place))}
    return [path for path in begun.values() if not RunFolder(path).done]


def _configs(place: Path) -> list[Path]:
    # With a record of its model: a folder may hold other files of that name, e.g. one that a user wrote.
    return [file for file in _files_named("config.toml", place) if RunFolder(file.parent).model_file.exists()]


def _files_named(name: str, place: Path) -> list[Path]:
    """Return the files of a name in a folder and below it, in linked folders as well, each folder once."""
    found, seen = [], set()
    for folder, below, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link back to where the walk has been
            below.clear()
            continue
        seen.add(real)
        if name in files:
            found.append(Path(folder, name))
    return sorted(found)


def group_runs(runs: Sequence[PlannedRun], recipe: Recipe | None = None) -> list[PlannedBlock]:
    """Return the runs as blocks of rows, the baseline (plain ERM where there is one) first.

    Args:
        runs: Finished runs.
        recipe: Its rows come first and bring the printed values; None groups without.

    Raises:
        ValueError: Two runs of a row have the same seed.
    """
    blocks: dict[str, list[PlannedRun]] = {}
    for run in runs:
        blocks.setdefault(_block_key(run.config), []).append(run)
    return [_group(members, recipe, position) for position, members in enumerate(blocks.values())]


def _block_key(config: RunConfig) -> str:
    data = {name: getattr(config.data, name) for name in _OF_THE_DATA}
    data["name"] = Path(config.data.name).stem
    backbone = {"name": config.backbone.name, "mode": config.backbone.mode, **config.backbone.options}
    return json.dumps([data, backbone], sort_keys=True, default=list)


def _group(runs: Sequence[PlannedRun], recipe: Recipe | None, position: int) -> PlannedBlock:
    rows: dict[str, list[PlannedRun]] = {}
    for run in runs:
        rows.setdefault(_row_key(run.config), []).append(run)
    ordered = _baseline_first(list(rows.values()))
    known = _matching_block(recipe, ordered[0][0].config) if recipe is not None else None
    named = _with_names(ordered, known)
    if known is not None:
        places = {row.key: place for place, row in enumerate(known.rows)}
        named = [named[0], *sorted(named[1:], key=lambda row: places.get(row[0], len(places)))]
    block = known.key if known is not None else f"block-{position + 1}"
    members = [
        PlannedRow(key, title, _by_seed(title, group), _printed(recipe, block, key))
        for key, title, group in named
    ]
    title = describe_setting(ordered[0][0].config)
    return PlannedBlock(block, title, tuple(members), known.title if known is not None else "")


def _row_key(config: RunConfig) -> str:
    tables = {name: part for name, part in config.to_dict().items() if name != "machine"}
    tables["loop"] = {key: value for key, value in tables["loop"].items() if key != "seed"}
    # Where the data lie, and how they got there, is no difference.
    place = {"root": None, "download": None, "skip_corrupt": None}
    tables["data"] = {**tables["data"], **place, "name": Path(config.data.name).stem}
    return json.dumps(tables, sort_keys=True, default=list)


def _baseline_first(rows: list[list[PlannedRun]]) -> list[list[PlannedRun]]:
    """Put the ERM row first that shares its settings with most other rows; without ERM the order stays."""

    def partners(row: list[PlannedRun]) -> int:
        mine = row[0].config
        return sum(len(other) for other in rows if not settings_without_method(other[0].config, mine))

    plain = [row for row in rows if row[0].config.method.name == "erm"]
    if not plain:
        return rows
    best = max(plain, key=lambda row: (_is_plain(row[0].config), partners(row)))
    return [best, *(row for row in rows if row is not best)]


def _is_plain(config: RunConfig) -> bool:
    return all(not value for value in config.method.options.values())


def settings_without_method(config: RunConfig, baseline: RunConfig) -> dict[str, dict[str, Any]]:
    """Return what differs between two runs besides method and seed."""
    return {k: v for k, v in settings_difference(config, baseline).items() if k != "method"}


def _with_names(
    rows: Sequence[list[PlannedRun]], block: Block | None
) -> list[tuple[str, str, list[PlannedRun]]]:
    base = rows[0][0].config
    named: list[tuple[str, str, list[PlannedRun]]] = []
    used: set[str] = set()
    for group in rows:
        row = _matching_row(block, group[0].config, base, used)
        if row is not None:
            key, title = row.key, row.title or method_info(row.method).title
        else:
            key, title = _own_name(group[0].config, base)
        title = _unused(title, {title for _, title, _ in named})
        key = _unused(key, used)
        used.add(key)
        named.append((key, title, group))
    return named


def _unused(word: str, used: set[str]) -> str:
    number, candidate = 2, word
    while candidate in used:
        candidate, number = f"{word} ({number})", number + 1
    return candidate


def _own_name(config: RunConfig, base: RunConfig) -> tuple[str, str]:
    words = []
    for part, table in settings_difference(config, base).items():
        words += [
            f"{key}={value}" if part == "method" else f"{part}.{key}={value}" for key, value in table.items()
        ]
    title = method_info(config.method.name).title
    key = config.method.name
    return (f"{key}, {', '.join(words)}", f"{title}, {', '.join(words)}") if words else (key, title)


def _matching_row(block: Block | None, config: RunConfig, base: RunConfig, used: set[str]) -> Row | None:
    if block is None:
        return None
    for row in block.rows:
        if row.key in used or row.method != config.method.name or not _has(config, row.settings):
            continue
        if any(part not in row.settings for part in settings_without_method(config, base)):
            continue
        fits = all(_same(config.method.options.get(key), value) for key, value in row.options.items())
        # Hyper-parameters that the row leaves open may have been tuned, unless another row stands for them.
        if fits and (row.options or _stands_for_itself(block, row, config)):
            return row
    return None


def _stands_for_itself(block: Block, row: Row, config: RunConfig) -> bool:
    """Whether no other row of the same method names the hyper-parameters of this run."""
    others = [
        other for other in block.rows if other.method == row.method and other is not row and other.options
    ]
    return not any(
        all(_same(config.method.options.get(key), value) for key, value in other.options.items())
        for other in others
    )


def _has(config: RunConfig, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    tables = config.to_dict()
    return all(
        _same(tables[part].get(key), value) for part, t in settings.items() for key, value in t.items()
    )


def _same(left: Any, right: Any) -> bool:
    return list(left) == list(right) if isinstance(left, (list, tuple)) else bool(left == right)


def _matching_block(recipe: Recipe, config: RunConfig) -> Block | None:
    if len(recipe.blocks) == 1:
        return recipe.blocks[0]
    for block in recipe.blocks:
        wanted = dict(block.settings.get("backbone", {}))
        if wanted.get("name") == config.backbone.name:
            data = block.settings.get("data", {}).get("name")
            if data is None or Path(config.data.name).stem.startswith(str(data)):
                return block
    return None


def _printed(recipe: Recipe | None, block: str, row: str) -> Mapping[str, Any] | None:
    return None if recipe is None else recipe.printed_row(block, row)


def _by_seed(title: str, runs: Sequence[PlannedRun]) -> tuple[PlannedRun, ...]:
    by_seed: dict[int, PlannedRun] = {}
    for run in runs:
        # The same run may lie in two folders; equal configurations compute the same.
        by_seed.setdefault(run.config.loop.seed, run)
    return tuple(by_seed[seed] for seed in sorted(by_seed))
