"""What a recipe is (a question, a grid of runs, three scales, and what the paper printed), and the parts that recipes share.

A grid has *blocks* (one data set and network each) of *rows* (one method each), which are compared with the first row on the same
test samples. Of settings later ones win: preset of the block, block, row, scale, changes of the user. ``smoke`` trains real
architectures at their smallest on made-up images; ``laptop`` is meant for two cores and about an hour; ``paper`` is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from classmargin._checks import check_choice
from classmargin.recipes.paper_values import PrintedRow
from classmargin.training.config_reader import merge, parse_overrides

if TYPE_CHECKING:
    from classmargin.recipes.record import Record
    from classmargin.report.tables import Table
    from classmargin.training.run_folder import RunFolder

Tables = Mapping[str, Mapping[str, Any]]
SCALES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Row:
    """One line of a table; ``settings`` are those of this row alone, such as its augmentation."""

    key: str  # within the block; the printed values are found by it
    method: str
    title: str = ""  # empty takes the method's
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Tables = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Rows that share data and network; the first row is the baseline."""

    key: str
    title: str
    rows: tuple[Row, ...]
    preset: str = "cifar"
    settings: Tables = field(default_factory=dict)  # what differs from the preset
    # Names of files (without ending) that hold the data in another state, such as thinned already, with their settings.
    files: Mapping[str, Tables] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """One size of a recipe; ``note`` stands in the report and says what is run."""

    note: str
    settings: Tables = field(default_factory=dict)  # of every run, over those of block and row
    blocks: Mapping[str, Tables] = field(default_factory=dict)  # of single blocks, over all others
    leave_out: Mapping[str, str] = field(default_factory=dict)  # blocks that do not fit, each with the reason
    mr2_preset: str | None = None  # hyper-parameters of the MR² family; None takes the recommended defaults
    bootstrap: int = 2000
    preset: str = ""  # in place of the block's preset and settings
    sample_files: bool = False  # trained on made-up images, without pretrained weights


Folders = Mapping[str, Mapping[str, Sequence["RunFolder"]]]
"""``folders[block key][row key]``: the finished runs of a row."""

Printed = Mapping[str, Mapping[str, PrintedRow | Mapping[str, Any]]]
"""``printed[block key][row key] = {"hard": 61.9, …, "doubt": words}`` in percent as the paper gives them."""


@dataclass(frozen=True)
class Recipe:
    """A table or figure of the paper that can be run again."""

    name: str
    source: str  # which table or figure of the paper
    question: str
    blocks: tuple[Block, ...]
    scales: Mapping[str, Scale]
    printed: Printed = field(default_factory=dict)
    doubts: tuple[str, ...] = ()  # where the paper contradicts itself about this table
    # Further numbers of a row's runs.
    extras: Callable[[Sequence[RunFolder]], Mapping[str, Any]] | None = None
    tables: Callable[[Record], list[Table]] | None = None  # default: thirds, changes and cost
    figure: Callable[[Record, Folders], Mapping[str, Any]] | None = None  # data kept in the record …
    draw: Callable[[Mapping[str, Any]], Any] | None = None  # … and drawn as a plotly figure
    watch_spread: bool = False  # whether the runs note the spread of every class at each evaluation

    def printed_row(self, block: str, row: str) -> Mapping[str, Any] | None:
        """Return what the paper prints for a row, or None."""
        found = self.printed.get(block, {}).get(row)
        return found.to_dict() if isinstance(found, PrintedRow) else found


def list_recipes() -> list[Recipe]:
    """Return every recipe, in the order of the paper."""
    from classmargin.recipes.paper import RECIPES

    return list(RECIPES)


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name; an unknown name is refused with the nearest one."""
    known = {recipe.name: recipe for recipe in list_recipes()}
    return known[check_choice("recipe", name, known)]


# Scales


def given(words: str) -> Tables:
    """Return settings as they are written after ``--set``, with spaces between them."""
    return parse_overrides(words.split())


# The smallest settings that each network takes, at the scale `smoke`.
_LARGE = "data.image_size=32 backbone.width=8"
_VIT = "data.image_size=32 backbone.patch_size=8 backbone.width=32 backbone.depth=2 backbone.heads=2"
_CLIP = "backbone.output_dim=16 backbone.head_start=auto"
SMALLEST = {
    "resnet32": given("backbone.name=resnet20"),
    "wide-resnet-22-10": given("backbone.name=wide-resnet-16-4"),
    "resnet18": given("backbone.width=8"),
    "resnet50": given(_LARGE),
    "moco-resnet50": given(_LARGE),
    "clip-resnet50": given(f"{_LARGE} {_CLIP} backbone.depths=[1,1,1,1]"),
    "clip-vit-b32": given(f"{_VIT} {_CLIP}"),
    "mae-vit-b16": given(_VIT),
}
SMOKE = Scale(
    "made-up images, no pretrained weights, one epoch: shows that everything runs, and says nothing about methods.",
    given(
        "data.validation=0.25 data.image_size=16 data.fraction=1.0 loop.epochs=1 loop.batch_size=16 loop.evaluate_every=1 "
        "optimizer.learning_rate=0.01 optimizer.layer_decay=1.0 schedule.name=cosine schedule.warmup_epochs=0.0 "
        "schedule.warmup_steps=0 schedule.milestones=[] "
        "machine.accelerator=cpu machine.memory_format=contiguous machine.workers=0"
    ),
    bootstrap=100,
    sample_files=True,
)
# The paper's probe sees crops and flips; features computed once would be those of unaugmented images.
PUBLISHED_PROBES: Mapping[str, Tables] = {"moco-resnet50": {"backbone": {"cache": False}}}
PAPER_NOTE = "the published protocol: all training samples, no validation part, hyper-parameters of the preset “paper”."
NEEDS_GPU = "needs a GPU: about a hundred times the work of ResNet-20"
# Stands for fine-tuning of a large pretrained network: weights come with a package, images are small.
PRETRAINED_LAPTOP = given(
    "data.name=cifar100 data.fraction=0.1 data.image_size=64 backbone.name=efficientnet-lite0 backbone.mode=fine-tune "
    "backbone.pretrained=true backbone.normalize_features=true optimizer.name=adamw optimizer.learning_rate=1e-3 "
    "optimizer.weight_decay=0.1 schedule.name=cosine schedule.warmup_epochs=0.5 schedule.warmup_steps=0 loop.batch_size=64"
)


def paper(
    note: str = PAPER_NOTE,
    *,
    blocks: Mapping[str, Tables] | None = None,
    leave_out: Mapping[str, str] | None = None,
    **settings: Mapping[str, Any],
) -> Scale:
    """Return the published protocol."""
    sizes = {**PUBLISHED_PROBES, **(blocks or {})}
    published = merge({"data": {"validation": 0.0}}, settings)
    return Scale(note, published, sizes, leave_out or {}, mr2_preset="paper")


def scales(laptop: Scale, published: Scale | None = None, smallest: Scale = SMOKE) -> dict[str, Scale]:
    """Return the three scales of a recipe."""
    return {"smoke": smallest, "laptop": laptop, "paper": published or paper()}


def cifar_scales(epochs: int, *, fraction: float = 0.1, more: str = "") -> dict[str, Scale]:
    """Return the scales of a block on CIFAR-100; a laptop trains ResNet-20 on a share of the samples."""
    note = f"CIFAR-100 at {100 * fraction:g} % of the training data, ResNet-20, {epochs} epochs{more}."
    return laptop_scales(note, f"data.fraction={fraction} backbone.name=resnet20 loop.epochs={epochs}")


def laptop_scales(note: str, words: str, *, smallest: Scale = SMOKE, **more: Any) -> dict[str, Scale]:
    """Return the scales of a recipe whose own is that of a laptop, with settings as after ``--set``."""
    return scales(Scale(note, given(words), **more), smallest=smallest)


def pretrained_scales(epochs: int) -> dict[str, Scale]:
    """Return the scales of a fine-tuned CLIP ResNet-50; a laptop trains EfficientNet-Lite0 in its place."""
    note = (
        "the question on what two cores can do: EfficientNet-Lite0 with its ImageNet weights, fine-tuned on a tenth of "
        f"CIFAR-100 at 64 pixels with a cosine classifier, {epochs} epochs."
    )
    return scales(Scale(note, merge(PRETRAINED_LAPTOP, given(f"loop.epochs={epochs}"))))


def scratch_scales(
    *, more: str = "", leave_out: Mapping[str, str] | None = None, published: Scale | None = None
) -> dict[str, Scale]:
    """Return the scales of networks on ImageNet; a laptop trains ResNet-20 on a tenth of CIFAR-100 in their place."""
    note = f"a tenth of CIFAR-100 in place of ImageNet, ResNet-20, 40 epochs{more}."
    settings = given("data.name=cifar100 data.fraction=0.1 backbone.name=resnet20 loop.epochs=40")
    return scales(Scale(note, settings, preset="cifar", leave_out=leave_out or {}), published)


ERM_AND_MR2 = (Row("erm", "erm"), Row("mr2", "mr2"))
# Training preset and title of each network of the paper's tables.
NETWORKS = {
    "resnet20": ("cifar", "ResNet-20"),
    "resnet32": ("cifar", "ResNet-32"),
    "preact-resnet20": ("cifar", "PreAct ResNet-20"),
    "preact-resnet32": ("cifar", "PreAct ResNet-32"),
    "wide-resnet-22-10": ("cifar", "WideResNet-22-10"),
    "resnet50": ("imagenet-scratch", "ResNet-50 from scratch"),
    "moco-resnet50": ("moco-probe", "MoCo v2 ResNet-50, linear probe"),
    "clip-resnet50": ("clip-finetune", "CLIP ResNet-50"),
    "clip-vit-b32": ("clip-finetune", "CLIP ViT-B/32"),
    "mae-vit-b16": ("mae-finetune", "MAE ViT-B/16"),
}


def network_block(network: str, rows: tuple[Row, ...] = ERM_AND_MR2) -> Block:
    """Return CIFAR-100 or ImageNet with a network, trained or fine-tuned as the paper says."""
    preset, title = NETWORKS[network]
    data = "CIFAR-100" if preset == "cifar" else "ImageNet"
    return Block(network, f"{data}, {title}", rows, preset, {"backbone": {"name": network}})


def methods(*names: str) -> tuple[Row, ...]:
    """Return a row for each method, named as it is."""
    return tuple(Row(name, name) for name in names)
