"""Runs that exist already, made by ``compare-methods`` or by hand, as the blocks of a record.

One data set and network is a block, one method with one set of settings is a row, and seeds are its runs. A recipe's rows are
found by method and hyper-parameters; other rows follow after them under names of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin.data.raw import name_some
from classmargin.methods import default_hyperparameters, method_info
from classmargin.recipes.recipe import Block, Recipe, Row
from classmargin.recipes.recipe_plan import PlannedBlock, PlannedRow, describe_setting
from classmargin.recipes.runner import PlannedRun
from classmargin.training.config import RunConfig
from classmargin.training.run_folder import RunFolder

# Where a run happens to lie or how it is shown says nothing about its result.
_NOT_A_RESULT = {"data": ("root", "download", "skip_corrupt"), "loop": ("seed",)}
_OF_THE_DATA = ("name", "fraction", "imbalance", "seed", "validation")


def find_runs(folders: Iterable[str | Path]) -> list[PlannedRun]:
    """Return every finished run in folders and below them; it is an error if there is none."""
    places = [Path(folder) for folder in folders]
    found: dict[Path, PlannedRun] = {}
    for place in places:
        for mark in sorted(place.rglob("done")):
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
    paths = [file.parent for folder in folders for file in sorted(Path(folder).rglob("config.toml"))]
    # With a record of its model: a folder may hold other files of that name, e.g. one that a user wrote.
    begun = {path.resolve(): path for path in paths if RunFolder(path).model_file.exists()}
    return [path for path in begun.values() if not RunFolder(path).done]


def group_runs(runs: Sequence[PlannedRun], recipe: Recipe | None = None) -> list[PlannedBlock]:
    """Return finished runs as blocks of rows: the baseline (plain ERM where there is one), those of a recipe, others."""
    groups = enumerate(_grouped(runs, _block_key), start=1)
    return [_block_of(members, recipe, f"block-{number}") for number, members in groups]


def _grouped(runs: Sequence[PlannedRun], key: Callable[[RunConfig], str]) -> list[list[PlannedRun]]:
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(key(run.config), []).append(run)
    return list(groups.values())


def _block_key(config: RunConfig) -> str:
    data = {name: getattr(config.data, name) for name in _OF_THE_DATA}
    data["name"] = Path(config.data.name).stem
    backbone = {"name": config.backbone.name, "mode": config.backbone.mode, **config.backbone.options}
    return json.dumps([data, backbone], sort_keys=True, default=list)


def _row_key(config: RunConfig) -> str:
    tables = {**config.to_dict(), "machine": {}}
    for part, names in _NOT_A_RESULT.items():
        tables[part] = {key: value for key, value in tables[part].items() if key not in names}
    tables["data"]["name"] = Path(config.data.name).stem
    return json.dumps(tables, sort_keys=True, default=list)


def _block_of(runs: Sequence[PlannedRun], recipe: Recipe | None, key: str) -> PlannedBlock:
    groups = _baseline_first(_grouped(runs, _row_key))
    base = groups[0][0].config
    blocks = () if recipe is None else recipe.blocks
    data, network = Path(base.data.name).stem, {"name": base.backbone.name}
    named = [block for block in blocks if data.startswith(str(block.settings.get("data", {}).get("name", "")))]
    fitting = [block for block in named if _has(block.settings.get("backbone", {}), network)]
    known = next(iter(blocks if len(blocks) == 1 else fitting), None)
    block = key if known is None else known.key
    rows: list[PlannedRow] = []
    for group in groups:
        config, used = group[0].config, {row.key for row in rows}
        match = _matching_row(known, config, base, used)
        own_title = match.title or method_info(match.method).title if match else ""
        name, title = (match.key, own_title) if match else _own_name(config, base)
        name, title = _unused(name, used), _unused(title, {row.title for row in rows})
        printed = None if recipe is None else recipe.printed_row(block, name)
        # The same run may lie in two folders; equal configurations compute the same.
        by_seed = {run.config.loop.seed: run for run in reversed(group)}
        rows.append(PlannedRow(name, title, tuple(by_seed[seed] for seed in sorted(by_seed)), printed))
    places = {row.key: place for place, row in enumerate(known.rows if known else ())}
    rows[1:] = sorted(rows[1:], key=lambda row: places.get(row.key, len(places)))
    return PlannedBlock(block, describe_setting(base), tuple(rows), known.title if known else "")


def _baseline_first(rows: list[list[PlannedRun]]) -> list[list[PlannedRun]]:
    """Put the ERM row first that shares its settings with most other rows; without ERM the order stays."""

    def fitness(row: list[PlannedRun]) -> tuple[bool, bool, int]:
        mine = row[0].config
        partners = [len(other) for other in rows if not _difference(other[0].config, mine)]
        return mine.method.name == "erm", not any(mine.method.options.values()), sum(partners)

    best = max(rows, key=fitness)
    return [best, *(row for row in rows if row is not best)] if best[0].config.method.name == "erm" else rows


def _unused(word: str, used: set[str]) -> str:
    number, candidate = 2, word
    while candidate in used:
        candidate, number = f"{word} ({number})", number + 1
    return candidate


def _own_name(config: RunConfig, base: RunConfig) -> tuple[str, str]:
    """Return key and title of a row that no recipe names: its method, and what differs from the baseline."""
    words = settings_words(settings_difference(config, base), bare="method")
    more, method = f", {words}" if words else "", config.method.name
    return method + more, method_info(method).title + more


def settings_words(settings: Mapping[str, Mapping[str, Any]], *, bare: str = "") -> str:
    """Return settings as ``part.key=value, …``, those of the part ``bare`` by their key alone."""
    pairs = [(part, key, value) for part, table in settings.items() for key, value in table.items()]
    return ", ".join(f"{key if part == bare else f'{part}.{key}'}={value}" for part, key, value in pairs)


def _matching_row(block: Block | None, config: RunConfig, base: RunConfig, used: set[str]) -> Row | None:
    if block is None:
        return None
    tables, options = config.to_dict(), config.method.options
    mine = [row for row in block.rows if row.method == config.method.name]
    fitting = [row for row in mine if _has(options, row.options)]
    for row in fitting:
        in_settings = all(_has(tables[part], table) for part, table in row.settings.items())
        if row.key in used or not in_settings or set(_difference(config, base)) - set(row.settings):
            continue
        # Hyper-parameters that the row leaves open may have been tuned, unless another row stands for them.
        if row.options or not any(other.options for other in fitting if other is not row):
            return row
    return None


def _has(table: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(_plain(table.get(key)) == _plain(value) for key, value in values.items())


def settings_of(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return what differs from a run with all defaults; seed, machine, place of the data and method are left out."""
    return _difference(config, RunConfig())


def settings_difference(config: RunConfig, baseline: RunConfig) -> dict[str, dict[str, Any]]:
    """Return what a row has that its baseline has not; of the method only what is not its default."""
    method, defaults = config.method, default_hyperparameters(config.method.name)
    options = {} if method.preset is None else {"preset": method.preset}
    for key, value in method.options.items():
        if _plain(value) != _plain(defaults.get(key, value)):
            options[key] = value
    different = _difference(config, baseline)
    return {**different, "method": options} if options else different


def _difference(config: RunConfig, other: RunConfig) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    theirs = other.to_dict()
    for part, table in config.to_dict().items():
        skipped = _NOT_A_RESULT.get(part, table if part in ("machine", "method") else ())
        changed = {
            # The folder that a file lay in means nothing elsewhere.
            key: Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
            for key, value in table.items()
            if key not in skipped and _plain(value) != _plain(theirs[part].get(key))
        }
        if changed:
            found[part] = changed
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
