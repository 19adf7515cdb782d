"""From a recipe, a scale and the user's changes to the runs that are to exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from classmargin._checks import check_choice, check_int
from classmargin.backbones import backbone_info
from classmargin.data.catalog import data_root, find_info, locate, not_found, unknown
from classmargin.methods import method_info
from classmargin.recipes.paper_values import TABLE_1A, TABLE_1A_TITLE, printed
from classmargin.recipes.recipe import SCALES, Block, Recipe, Row, Scale, Tables
from classmargin.recipes.run_parts import download_data, effective
from classmargin.recipes.runner import PlannedRun
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
        objectives: Run every row of the MR² family once with each of these presets.
        rows: Keys of the rows to run; empty for all. The first row of a block always runs.
        blocks: Keys of the blocks to run; empty for all.
    """

    settings: Tables = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    mr2_preset: str = ""
    objectives: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedRow:
    """A row and its runs, finished or not.

    Attributes:
        key: As in the recipe.
        title: Name in tables.
        runs: One for each seed.
        paper: What the paper prints for it.
        fixed: Hyper-parameters of its method that the row or the user sets, which no search may change.
    """

    key: str
    title: str
    runs: tuple[PlannedRun, ...]
    paper: Mapping[str, Any] | None = None
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedBlock:
    """A block and its rows, the baseline first; ``printed_for`` is what the printed values belong to."""

    key: str
    title: str
    rows: tuple[PlannedRow, ...]
    printed_for: str = ""


@dataclass(frozen=True)
class RecipePlan:
    """All runs of a recipe at a scale; made once for each command.

    Attributes:
        recipe: What is run.
        scale: How large.
        folder: Its runs lie in ``folder/runs``.
        blocks: Those that are run.
        left_out: Those that are not, with the reasons.
        changed: Whether the user changed settings.
        trials: Settings that every row tried on validation; 0 without such a search.
        words: What a reader must know about the choice of settings.
    """

    recipe: Recipe
    scale: str
    folder: Path
    blocks: tuple[PlannedBlock, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    changed: bool = False
    trials: int = 0
    words: tuple[str, ...] = ()

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once, seed by seed: an interruption then leaves complete pairs behind."""
        return in_order(self.blocks)


def plan_recipe(
    recipe: Recipe,
    scale: str,
    *,
    seeds: int,
    folder: str | Path,
    changes: Changes | None = None,
    must_run: bool = True,
) -> RecipePlan:
    """Return the runs of a recipe, and the blocks that are left out with the reasons.

    Args:
        recipe: What to run.
        scale: ``smoke``, ``laptop`` or ``paper``.
        seeds: Runs of each row, with seeds 0, 1, ….
        folder: Where the runs lie, in ``runs``; named by what they compute, so that equal runs are trained once.
        changes: What the user wants otherwise.
        must_run: Whether data and weights must be on this machine.

    Raises:
        ValueError: Unknown names or settings; or no block is left.
        FileNotFoundError: The data are not on this machine.
    """
    check_choice("scale", scale, SCALES)
    check_int("seeds", seeds, minimum=1)
    wanted = changes or Changes()
    _check_keys("--rows", wanted.rows, [row.key for block in recipe.blocks for row in block.rows])
    _check_keys("--blocks", wanted.blocks, [block.key for block in recipe.blocks])
    planner = _Planner(recipe, scale, seeds, Path(folder), wanted)
    planned, left_out = [], {}
    for block in recipe.blocks:
        if wanted.blocks and block.key not in wanted.blocks:
            continue
        reason = planner.why_not(block) if must_run else planner.size.leave_out.get(block.key, "")
        if reason:
            left_out[block.title] = reason
        else:
            planned.append(planner.block(block))
    if not planned and recipe.blocks:
        reasons = "; ".join(f"{title}: {reason}" for title, reason in left_out.items())
        raise ValueError(f"nothing of {recipe.name} can be run at scale {scale} ({reasons})")
    return RecipePlan(recipe, scale, Path(folder), tuple(planned), left_out, wanted != Changes())


def plan_comparison(
    config: RunConfig,
    methods: Sequence[str],
    seeds: int,
    folder: str | Path,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> PlannedBlock:
    """Return the one block of ``compare-methods``: a row for each method, the baseline first.

    Args:
        config: What all runs share.
        methods: Registry names.
        seeds: Runs of each method, with seeds 0, 1, ….
        folder: Of the comparison.
        options: Hyper-parameters of single methods, by name.

    Raises:
        ValueError: Unknown method or hyper-parameter, or a method given twice.
    """
    if len(set(methods)) != len(methods):
        raise ValueError(f"methods must be different, got {', '.join(methods)}")
    rows = []
    # The paper prints its comparison of methods for CIFAR-100; beside other data its numbers would only mislead.
    paper = printed(TABLE_1A) if config.data.name == "cifar100" else {}
    for name in methods:
        own = (options or {}).get(name, {})
        tables = merge(config.to_dict(), {"method": {"name": name, **own}})
        runs = tuple(_planned_run(tables, f"{name} seed {seed}", seed, Path(folder)) for seed in range(seeds))
        rows.append(PlannedRow(name, method_info(name).title, runs, paper.get(name), tuple(own)))
    title = describe_setting(rows[0].runs[0].config)
    return PlannedBlock("methods", title, tuple(rows), TABLE_1A_TITLE if paper else "")


def _planned_run(
    tables: Tables, title: str, seed: int, folder: Path, *, report: bool = False, **more: Any
) -> PlannedRun:
    """Return the run of a seed; runs lie side by side on the cores of one machine unless they have several devices."""
    config = build(merge(tables, {"loop": {"seed": seed}}))
    if not report:
        config = replace_machine(config, threads=1, report=False)
    config = effective(config)
    place = run_folder(config, folder, watched=more.get("watch_spread", False))
    return PlannedRun(title, config, place, **more)


def _check_keys(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{option} must name {', '.join(dict.fromkeys(known))}; got {key!r}")


@dataclass(frozen=True)
class _Planner:
    """Everything that decides the settings of a run."""

    recipe: Recipe
    scale: str
    seeds: int
    folder: Path
    changes: Changes

    @property
    def size(self) -> Scale:
        return self.recipe.scales[self.scale]

    def why_not(self, block: Block) -> str:
        """Return why a block cannot be run, or nothing; raise where the user must act."""
        if block.key in self.size.leave_out:
            return self.size.leave_out[block.key]
        if self.size.sample_files:
            return ""
        tables = self._shared_tables(block, block.rows[0])
        must_run = self.scale == "paper" or len(self.recipe.blocks) == 1
        missing = missing_data(tables["data"])
        if missing is not None:
            if must_run:
                raise missing
            return f"the data set {tables['data']['name']} is not on this machine"
        name = needs_weights(tables["backbone"])
        if name and must_run:
            raise ValueError(
                f"{block.title} starts from pretrained weights; give --checkpoint {name}=FILE{_where_from(name)}, or "
                "choose other blocks with --blocks"
            )
        return f"no pretrained weights of {name}; give --checkpoint {name}=FILE" if name else ""

    def block(self, block: Block) -> PlannedBlock:
        """Return the runs of a block; its first row is always among them."""
        others = [row for row in block.rows[1:] if not self.changes.rows or row.key in self.changes.rows]
        title = block.title
        if self.scale != "paper":  # say what is run, not what it stands for
            title = describe_setting(self.shared_config(block))
        rows = tuple(self._row(block, row, title) for row in self._by_objective((block.rows[0], *others)))
        return PlannedBlock(block.key, title, rows, block.title)

    def _by_objective(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield the rows, those of the MR² family once for each objective that is asked for."""
        for row in rows:
            if not self.changes.objectives or not row.method.startswith("mr2"):
                yield row
                continue
            title = row.title or method_info(row.method).title
            for name in self.changes.objectives:
                options = {**({} if name == "recommended" else {"preset": name}), **row.options}
                key = row.key if name == "paper" else f"{row.key}, {name}"  # the paper prints what it printed
                yield replace(row, key=key, title=f"{title} ({name})", options=options)

    def shared_config(self, block: Block) -> RunConfig:
        """Return the settings of the first row, without its method."""
        return build(self._shared_tables(block, block.rows[0]))

    def _row(self, block: Block, row: Row, setting: str) -> PlannedRow:
        title = row.title or method_info(row.method).title
        tables = self._row_tables(block, row)
        flags = {
            "report": self.scale == "paper",
            "watch_spread": self.recipe.watch_spread,
            "notices": not self.size.sample_files,
        }
        runs = tuple(
            _planned_run(tables, f"{setting}, {title}, seed {seed}", seed, self.folder, **flags)
            for seed in range(self.seeds)
        )
        fixed = (*row.options, *self.changes.methods.get(row.method, {}))
        return PlannedRow(row.key, title, runs, self.recipe.printed_row(block.key, row.key), fixed)

    def _row_tables(self, block: Block, row: Row) -> dict[str, dict[str, Any]]:
        own = self.changes.methods.get(row.method, {})
        method: dict[str, Any] = {"name": row.method, **row.options, **own}
        preset = None if self.changes.objectives else self.changes.mr2_preset or self.size.mr2_preset
        if row.method.startswith("mr2") and preset not in (None, "recommended"):  # these are the defaults
            method = {"preset": preset, **method}
        tables = merge(self._shared_tables(block, row), {"method": method})
        return merge(tables, self._sample_settings(tables)) if self.size.sample_files else tables

    def _shared_tables(self, block: Block, row: Row) -> dict[str, dict[str, Any]]:
        tables = merge(
            preset_values(self.size.preset or block.preset, row.method),
            {} if self.size.preset else block.settings,
            row.settings,
            self.size.settings,
            self.size.blocks.get(block.key, {}),
            block.files.get(Path(str(self.changes.settings.get("data", {}).get("name", ""))).stem, {}),
            self.changes.settings,
        )
        file = self.changes.checkpoints.get(str(tables["backbone"].get("name")))
        return merge(tables, {"backbone": {"checkpoint": file}}) if file is not None else tables

    def _sample_settings(self, tables: Tables) -> dict[str, dict[str, Any]]:
        """Return where the made-up data and weights will lie, unless the user said otherwise."""
        from classmargin.recipes.sample_files import PUBLISHED, sample_root, sample_weights

        settings: dict[str, dict[str, Any]] = {}
        if "root" not in tables["data"]:
            settings["data"] = {"root": str(sample_root(self.folder))}
        name = needs_weights(tables["backbone"])
        if name in PUBLISHED:
            settings["backbone"] = {"checkpoint": str(sample_weights(self.folder, name))}
        return settings


def download_recipe_data(recipe: Recipe, scale: str, changes: Changes) -> None:
    """Fetch the data of a recipe that have a source and are not here yet; made-up files are not fetched."""
    check_choice("scale", scale, SCALES)
    planner = _Planner(recipe, scale, 1, Path(), changes)
    wanted = [block for block in recipe.blocks if not changes.blocks or block.key in changes.blocks]
    for block in wanted:
        if not planner.size.sample_files and block.key not in planner.size.leave_out:
            download_data(planner.shared_config(block))


def missing_data(data: Mapping[str, Any]) -> Exception | None:
    """Return the error that loading would raise, or None; so that it is told before anything is trained."""
    name = str(data["name"])
    root = data_root(None if data.get("root") is None else Path(data["root"]))
    info = find_info(name)
    if info is not None:
        may_download = bool(data.get("download") and info.downloads)
        found = info.embedded or may_download or locate(info, root) is not None
        return None if found else not_found(info, root)
    path = Path(name).expanduser()
    places = (path, root / path, root / f"{name}.npz")
    return None if name.startswith("hf:") or any(p.exists() for p in places) else unknown(name, root)


def needs_weights(backbone: Mapping[str, Any]) -> str:
    """Return the name of a network that starts from weights which neither come with a package nor were given."""
    if not backbone.get("pretrained") or backbone.get("checkpoint") is not None:
        return ""
    name = str(backbone["name"])
    return "" if backbone_info(name).bundled is not None else name


def _where_from(name: str) -> str:
    weights = backbone_info(name).weights
    return f" ({weights})" if weights else ""


def run_folder(config: RunConfig, folder: Path, *, watched: bool = False) -> RunFolder:
    """Return where a run lies, named by what it computes; watched runs lie apart."""
    name = f"{config.method.name.replace('+', '-')}-seed{config.loop.seed}-{identity(config)}"
    return RunFolder(folder / ("watched-runs" if watched else "runs") / name)


def in_order(blocks: Sequence[PlannedBlock]) -> list[PlannedRun]:
    """Return every run once, seed by seed: an interruption then leaves complete pairs behind."""
    rows = [row for block in blocks for row in block.rows]
    longest = max((len(row.runs) for row in rows), default=0)
    order = [row.runs[seed] for seed in range(longest) for row in rows if seed < len(row.runs)]
    return list({run.folder.path: run for run in order}.values())


def describe_setting(config: RunConfig) -> str:
    """Return data, network and length of a run in words.

    Example:
        >>> describe_setting(RunConfig())
        'fashion-mnist-mini, Small CNN, 30 epochs'
    """
    from classmargin.backbones import backbone_info

    data = config.data
    words = [Path(data.name).stem]
    if data.fraction < 1:
        words.append(f"{100 * data.fraction:g} % of the training data")
    if data.imbalance > 1:
        words.append(f"imbalance {data.imbalance:g}")
    mode = "" if config.backbone.mode == "scratch" else f" ({config.backbone.mode})"
    words.append(backbone_info(config.backbone.name).title + mode)
    if data.augmentation not in ("standard", "none"):
        words.append(data.augmentation)
    plural = "" if config.loop.epochs == 1 else "s"
    return f"{', '.join(words)}, {config.loop.epochs} epoch{plural}"
