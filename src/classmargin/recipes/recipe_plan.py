"""From a recipe, a scale and the user's changes to the runs that are to exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from classmargin._atomic import atomic_path
from classmargin._checks import check_choice, check_int
from classmargin.backbones import backbone_info
from classmargin.data.catalog import data_root, find_info, locate, not_found, unknown
from classmargin.methods import method_info
from classmargin.recipes.paper_values import TABLE_1A, TABLE_1A_TITLE
from classmargin.recipes.recipe import SCALES, SMALLEST, Block, Recipe, Row, Scale, Tables
from classmargin.recipes.record import CUSTOM
from classmargin.recipes.run_parts import download_data, effective
from classmargin.recipes.runner import PlannedRun
from classmargin.training.config import RunConfig, identity
from classmargin.training.config_reader import build, merge, replace_machine
from classmargin.training.presets import preset_values
from classmargin.training.run_folder import RunFolder

# Below the folder of a command: the runs of a search on validation.
SELECTION_FOLDER = "selection"
# The made-up images of the scale `smoke`: samples of each class and part.
SAMPLE_CLASSES = 6
SAMPLES = {"train": 8, "test": 5}
SAMPLE_FOLDER = "sample-data"
# The table of per-class accuracies finds its printed values by name.
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog")

# The one recipe that is not of the paper: runs of the user's own choice.
COMPARISON = Recipe(
    name=CUSTOM,
    source="a comparison that the paper does not have",
    question="Who is better on these data?",
    blocks=(),
    scales=dict.fromkeys((*SCALES, CUSTOM), Scale("")),
)


@dataclass(frozen=True)
class Changes:
    """What the user wants otherwise than the recipe says."""

    settings: Tables = field(default_factory=dict)  # over all settings of every run
    # Hyper-parameters of single methods.
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # pretrained weights, by name of the network
    mr2_preset: str = ""  # of the MR² family; empty takes the scale's, "recommended" the defaults
    objectives: tuple[str, ...] = ()  # run every row of the MR² family once with each of these presets
    rows: tuple[str, ...] = ()  # keys of those to run; empty for all. The first row of a block always runs
    blocks: tuple[str, ...] = ()  # keys of those to run; empty for all


@dataclass(frozen=True)
class PlannedRow:
    """A row and its runs, finished or not, one for each seed."""

    key: str
    title: str
    runs: tuple[PlannedRun, ...]
    paper: Mapping[str, Any] | None = None  # what the paper prints for it
    fixed: tuple[str, ...] = ()  # hyper-parameters that the row or the user sets, which no search may change


@dataclass(frozen=True)
class PlannedBlock:
    """A block and its rows, the baseline first; ``printed_for`` is what the printed values belong to."""

    key: str
    title: str
    rows: tuple[PlannedRow, ...]
    printed_for: str = ""


@dataclass(frozen=True)
class RecipePlan:
    """All runs of a recipe at a scale, in ``folder/runs``; made once for each command."""

    recipe: Recipe
    scale: str
    folder: Path
    blocks: tuple[PlannedBlock, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # blocks that are not run, with the reasons
    changed: bool = False  # whether the user changed settings
    trials: int = 0  # settings that every row tried on validation
    words: str = ""  # what a reader must know about the choice of settings

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once, seed by seed: an interruption then leaves complete pairs behind."""
        rows = [row for block in self.blocks for row in block.rows]
        longest = max((len(row.runs) for row in rows), default=0)
        order = [row.runs[seed] for seed in range(longest) for row in rows if seed < len(row.runs)]
        return list({run.folder.path: run for run in order}.values())


def plan_recipe(
    recipe: Recipe,
    scale: str,
    *,
    seeds: int,
    folder: str | Path,
    changes: Changes | None = None,
    must_run: bool = True,
    download: bool = False,
) -> RecipePlan:
    """Return the runs of a recipe, with seeds 0, 1, …, and the blocks that are left out with the reasons.

    If they ``must_run``, data and weights must be on this machine; with ``download`` data that have a source are fetched.
    """
    check_choice("scale", scale, SCALES)
    check_int("seeds", seeds, minimum=1)
    wanted = changes or Changes()
    for key in wanted.rows:
        check_choice("--rows", key, dict.fromkeys(row.key for block in recipe.blocks for row in block.rows))
    for key in wanted.blocks:
        check_choice("--blocks", key, [block.key for block in recipe.blocks])
    planner, size = _Planner(recipe, scale, seeds, Path(folder), wanted), recipe.scales[scale]
    planned, left_out = [], {}
    for block in recipe.blocks:
        if wanted.blocks and block.key not in wanted.blocks:
            continue
        reason = size.leave_out.get(block.key, "")
        if must_run and not reason and not size.sample_files:
            if download:
                download_data(planner.shared_config(block))
            reason = planner.why_not(block)
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
) -> RecipePlan:
    """Return the plan of ``compare-methods``: a row for each method, the baseline first, with ``options`` by its name."""
    if len(set(methods)) != len(methods):
        raise ValueError(f"methods must be different, got {', '.join(methods)}")
    rows = []
    # The paper prints its comparison of methods for CIFAR-100; beside other data its numbers would only mislead.
    paper = TABLE_1A if config.data.name == "cifar100" else {}
    for name in methods:
        own = (options or {}).get(name, {})
        tables = merge(config.to_dict(), {"method": {"name": name, **own}})
        runs = tuple(_planned_run(tables, f"{name} seed {seed}", seed, Path(folder)) for seed in range(seeds))
        printed = paper[name].to_dict() if name in paper else None
        rows.append(PlannedRow(name, method_info(name).title, runs, printed, tuple(own)))
    title = describe_setting(rows[0].runs[0].config)
    block = PlannedBlock("methods", title, tuple(rows), TABLE_1A_TITLE if paper else "")
    return RecipePlan(COMPARISON, CUSTOM, Path(folder), (block,))


def _planned_run(
    tables: Tables, title: str, seed: int, folder: Path, *, report: bool = False, **more: Any
) -> PlannedRun:
    config = build(merge(tables, {"loop": {"seed": seed}}))
    if not report:  # runs lie side by side on the cores of one machine
        config = replace_machine(config, threads=1, report=False)
    config = effective(config)
    return PlannedRun(title, config, run_folder(config, folder, watched=more.get("watch_spread", False)), **more)


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
        """Return why a block that needs files cannot be run, or nothing; raise where the user must act."""
        tables = self._shared_tables(block, block.rows[0])
        must_run = self.scale == "paper" or len(self.recipe.blocks) == 1
        missing, name = missing_data(tables["data"]), needs_weights(tables["backbone"])
        if missing is not None:
            if must_run:
                raise missing
            return f"the data set {tables['data']['name']} is not on this machine"
        if name and must_run:
            words = f"{block.title} starts from pretrained weights; give --checkpoint {name}=FILE"
            raise ValueError(f"{words} ({backbone_info(name).weights}), or choose other blocks with --blocks")
        return f"no pretrained weights of {name}; give --checkpoint {name}=FILE" if name else ""

    def block(self, block: Block) -> PlannedBlock:
        """Return the runs of a block; its first row is always among them."""
        others = [row for row in block.rows[1:] if not self.changes.rows or row.key in self.changes.rows]
        # Say what is run, not what it stands for.
        title = block.title if self.scale == "paper" else describe_setting(self.shared_config(block))
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
        title, changes = row.title or method_info(row.method).title, self.changes
        own = changes.methods.get(row.method, {})
        method: dict[str, Any] = {"name": row.method, **row.options, **own}
        preset = None if changes.objectives else changes.mr2_preset or self.size.mr2_preset
        if row.method.startswith("mr2") and preset not in (None, "recommended"):  # these are the defaults
            method = {"preset": preset, **method}
        tables = merge(self._shared_tables(block, row), {"method": method})
        if self.size.sample_files:  # made-up images and no pretrained weights, unless the user said otherwise
            if not {"name", "root"} & set(self.changes.settings.get("data", {})):
                tables["data"] |= {"root": str(self.folder / SAMPLE_FOLDER), "name": f"{tables['data']['name']}.npz"}
            if needs_weights(tables["backbone"]):
                tables["backbone"]["pretrained"] = False
        flags = {"watch_spread": self.recipe.watch_spread, "notices": not self.size.sample_files}
        words, report = f"{setting}, {title}, seed", self.scale == "paper"
        runs = [_planned_run(tables, f"{words} {n}", n, self.folder, report=report, **flags) for n in range(self.seeds)]
        printed_row = self.recipe.printed_row(block.key, row.key)
        return PlannedRow(row.key, title, tuple(runs), printed_row, (*row.options, *own))

    def _shared_tables(self, block: Block, row: Row) -> dict[str, dict[str, Any]]:
        of_block = {} if self.size.preset else block.settings
        planned = merge(preset_values(self.size.preset or block.preset, row.method), of_block, row.settings)
        smallest = SMALLEST.get(planned["backbone"]["name"], {}) if self.size.sample_files else {}
        tables = merge(
            planned,
            self.size.settings,
            smallest,
            self.size.blocks.get(block.key, {}),
            block.files.get(Path(str(self.changes.settings.get("data", {}).get("name", ""))).stem, {}),
            self.changes.settings,
        )
        file = self.changes.checkpoints.get(str(tables["backbone"].get("name")))
        return merge(tables, {"backbone": {"checkpoint": file}}) if file is not None else tables


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


def run_folder(config: RunConfig, folder: Path, *, watched: bool = False) -> RunFolder:
    """Return where a run lies, named by what it computes; watched runs lie apart."""
    name = f"{config.method.name.replace('+', '-')}-seed{config.loop.seed}-{identity(config)}"
    return RunFolder(folder / ("watched-runs" if watched else "runs") / name)


def describe_setting(config: RunConfig) -> str:
    """Return data, network and length of a run in words, like ``fashion-mnist-mini, Small CNN, 30 epochs``."""
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


def write_sample_files(plan: RecipePlan) -> None:
    """Write what the runs of a plan need and what is not there yet, if its scale trains on made-up files."""
    folder = plan.folder / SAMPLE_FOLDER
    for data in {run.config.data.name: run.config.data for run in plan.runs}.values():
        if data.root == str(folder) and not (folder / data.name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write_images(folder / data.name, *((28, 1) if data.name == "mnist.npz" else (32, 3)))


def _write_images(file: Path, size: int, channels: int) -> None:
    """Write noisy images of each class: a bright band in a colour of its own."""
    names = CIFAR10 if file.stem == "cifar10" else [f"class {label}" for label in range(SAMPLE_CLASSES)]
    arrays: dict[str, Any] = {"class_names": np.array(names)}
    for seed, (part, count) in enumerate(SAMPLES.items()):
        rngs = [np.random.default_rng([label, seed]) for label in range(SAMPLE_CLASSES)]
        images = np.stack([rng.integers(0, 120, (count, size, size, channels)) for rng in rngs])
        for label in range(SAMPLE_CLASSES):
            top = label * size // SAMPLE_CLASSES
            images[label, :, top : top + size // SAMPLE_CLASSES + 1, :, label % channels] += 130
        arrays[f"x_{part}"] = images.reshape(-1, size, size, channels).astype(np.uint8)
        arrays[f"y_{part}"] = np.repeat(np.arange(SAMPLE_CLASSES), count)
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
