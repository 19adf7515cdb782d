"""From a recipe, a scale and the user's changes to the runs that are to exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classmargin._checks import check_choice, check_int
from classmargin.data.catalog import data_root, find_info, locate, not_found, unknown
from classmargin.methods import method_info
from classmargin.recipes.reproduce.recipe import SCALES, Block, Recipe, Row, Scale, Tables
from classmargin.recipes.reproduce.sample_files import PUBLISHED, sample_root, sample_weights
from classmargin.recipes.run_pool import PlannedRun
from classmargin.recipes.session import effective
from classmargin.training.config import RunConfig, identity
from classmargin.training.config_reader import build, merge, replace_machine
from classmargin.training.presets import preset_values
from classmargin.training.run_folder import RunFolder


@dataclass(frozen=True)
class Changes:
    """What the user wants otherwise than the recipe says.

    Attributes:
        settings: Tables over all settings of every run (``{"loop": {"epochs": 50}}``).
        methods: Hyper-parameters of single methods, by registry name.
        checkpoints: Files with pretrained weights, by name of the network.
        mr2_preset: Hyper-parameters of the MR² family; empty takes the scale's, ``recommended`` the defaults.
        rows: Keys of the rows to run; empty for all. The first row of a block always runs.
        blocks: Keys of the blocks to run; empty for all.
    """

    settings: Tables = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    mr2_preset: str = ""
    rows: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedRow:
    """The runs of one row."""

    row: Row
    title: str
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True)
class PlannedBlock:
    """The rows of one block, the baseline first."""

    block: Block
    rows: tuple[PlannedRow, ...]


def plan_recipe(
    recipe: Recipe, scale: str, *, seeds: int, folder: str | Path, changes: Changes | None = None
) -> tuple[list[PlannedBlock], dict[str, str]]:
    """Return the runs of a recipe, and the blocks that are left out with the reasons.

    Args:
        recipe: What to run.
        scale: ``smoke``, ``laptop`` or ``paper``.
        seeds: Runs of each row, with seeds 0, 1, ….
        folder: Where the runs lie, in ``runs``; named as ``compare-methods`` names them, so that equal runs are
            trained once.
        changes: What the user wants otherwise.

    Raises:
        ValueError: Unknown names or settings; or no block is left.
    """
    size = recipe.scales[check_choice("scale", scale, SCALES)]
    check_int("seeds", seeds, minimum=1)
    wanted = changes or Changes()
    _check_keys("--rows", wanted.rows, [row.key for block in recipe.blocks for row in block.rows])
    _check_keys("--blocks", wanted.blocks, [block.key for block in recipe.blocks])
    planned, left_out = [], {}
    for block in recipe.blocks:
        if wanted.blocks and block.key not in wanted.blocks:
            continue
        reason = _why_not(block, size, scale, wanted, alone=len(recipe.blocks) == 1)
        if reason:
            left_out[block.title] = reason
        else:
            planned.append(_plan_block(block, size, scale, seeds, Path(folder), wanted))
    if not planned and recipe.blocks:
        reasons = "; ".join(f"{title}: {reason}" for title, reason in left_out.items())
        raise ValueError(f"nothing of {recipe.name} can be run at scale {scale} ({reasons})")
    return planned, left_out


def _check_keys(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{option} must name {', '.join(dict.fromkeys(known))}; got {key!r}")


def _why_not(block: Block, size: Scale, scale: str, changes: Changes, *, alone: bool) -> str:
    """Return why a block cannot be run, or nothing."""
    if block.key in size.leave_out:
        return size.leave_out[block.key]
    tables = _block_tables(block, block.rows[0], size, changes)
    if not size.sample_files:
        missing = _missing_data(tables.get("data", {}))
        if missing is not None and (scale == "paper" or alone):
            raise missing
        if missing is not None:
            return f"the data set {tables['data']['name']} is not on this machine"
    backbone = tables.get("backbone", {})
    needs_file = backbone.get("pretrained") and backbone.get("checkpoint") is None
    if needs_file and not size.sample_files and not _has_bundled_weights(str(backbone["name"])):
        name = backbone["name"]
        if scale == "paper":
            raise ValueError(
                f"{block.title} starts from pretrained weights; give --checkpoint {name}=FILE"
                f"{_where_from(str(name))}, or choose other blocks with --blocks"
            )
        return f"no pretrained weights of {name}; give --checkpoint {name}=FILE"
    return ""


def _missing_data(data: Mapping[str, Any]) -> Exception | None:
    """Return the error that loading would raise, or None; before anything is trained."""
    name = str(data["name"])
    root = data_root(None if data.get("root") is None else Path(data["root"]))
    info = find_info(name)
    if info is not None:
        absent = (
            not info.embedded and locate(info, root) is None and not (data.get("download") and info.downloads)
        )
        return not_found(info, root) if absent else None
    path = Path(name).expanduser()
    found = name.startswith("hf:") or any(p.exists() for p in (path, root / path, root / f"{name}.npz"))
    return None if found else unknown(name, root)


def _has_bundled_weights(name: str) -> bool:
    from classmargin.backbones import backbone_info

    return backbone_info(name).bundled is not None


def _where_from(name: str) -> str:
    from classmargin.backbones import backbone_info

    weights = backbone_info(name).weights
    return f" ({weights})" if weights else ""


def _plan_block(
    block: Block, size: Scale, scale: str, seeds: int, folder: Path, changes: Changes
) -> PlannedBlock:
    rows = [
        row
        for position, row in enumerate(block.rows)
        if position == 0
        or ((not size.only or row.key in size.only) and (not changes.rows or row.key in changes.rows))
    ]
    planned = []
    for row in rows:
        title = row.title or method_info(row.method).title
        tables = _row_tables(block, row, size, changes, folder)
        runs = tuple(
            _planned_run(tables, f"{block.title}, {title}", seed, folder, shared=scale != "paper")
            for seed in range(seeds)
        )
        planned.append(PlannedRow(row, title, runs))
    return PlannedBlock(block, tuple(planned))


def _block_tables(block: Block, row: Row, size: Scale, changes: Changes) -> dict[str, dict[str, Any]]:
    tables = merge(
        preset_values(size.preset or block.preset, row.method),
        block.settings,
        row.settings,
        size.settings,
        size.blocks.get(block.key, {}),
        changes.settings,
    )
    backbone = tables.get("backbone", {})
    file = changes.checkpoints.get(str(backbone.get("name")))
    return merge(tables, {"backbone": {"checkpoint": file}}) if file is not None else tables


def _row_tables(
    block: Block, row: Row, size: Scale, changes: Changes, folder: Path
) -> dict[str, dict[str, Any]]:
    method: dict[str, Any] = {"name": row.method, **row.options, **changes.methods.get(row.method, {})}
    if row.method.startswith("mr2"):
        preset = changes.mr2_preset or size.mr2_preset
        if preset not in (None, "recommended"):  # the defaults are the recommended ones
            method = {"preset": preset, **method}
    tables = merge(_block_tables(block, row, size, changes), {"method": method})
    return merge(tables, _sample_settings(tables, folder)) if size.sample_files else tables


def _sample_settings(tables: Tables, folder: Path) -> dict[str, dict[str, Any]]:
    """Return where the made-up data and weights will lie, unless the user said otherwise."""
    settings: dict[str, dict[str, Any]] = {}
    if "root" not in tables["data"]:
        settings["data"] = {"root": str(sample_root(folder))}
    backbone = tables["backbone"]
    if backbone.get("pretrained") and backbone.get("checkpoint") is None and backbone["name"] in PUBLISHED:
        settings["backbone"] = {"checkpoint": str(sample_weights(folder, str(backbone["name"])))}
    return settings


def _planned_run(tables: Tables, title: str, seed: int, folder: Path, *, shared: bool) -> PlannedRun:
    config = build(merge(tables, {"loop": {"seed": seed}}))
    if shared:  # runs lie side by side on the cores of one machine
        config = replace_machine(config, threads=1, devices=1, report=False)
    config = effective(config)
    return PlannedRun(f"{title}, seed {seed}", config, run_folder(config, folder))


def run_folder(config: RunConfig, folder: Path) -> RunFolder:
    """Return where a run lies: the same name that ``compare-methods`` gives it."""
    name = f"{config.method.name.replace('+', '-')}-seed{config.loop.seed}-{identity(config)}"
    return RunFolder(folder / "runs" / name)


def in_order(blocks: Sequence[PlannedBlock]) -> list[PlannedRun]:
    """Return every run once, seed by seed: an interruption then leaves complete pairs behind."""
    rows = [row for block in blocks for row in block.rows]
    longest = max((len(row.runs) for row in rows), default=0)
    order = [row.runs[seed] for seed in range(longest) for row in rows if seed < len(row.runs)]
    return list({run.folder.path: run for run in order}.values())
