"""Other networks, augmentations and data sets: Table 2, its deviations, and the fine-grained sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from classmargin.recipes import paper_values as published
from classmargin.recipes import recipe as parts
from classmargin.recipes import record as records
from classmargin.recipes.recipe import Block, Folders, Recipe, Scale, given, network_block
from classmargin.recipes.record import BlockResult, Record, RowResult
from classmargin.report.figures import NEUTRAL, TIER_COLOURS, empty_figure, plotly_text, titled_axis
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.config_reader import merge

LITE = Block(
    "efficientnet-lite0",
    "EfficientNet-Lite0, fine-tuned",
    parts.ERM_AND_MR2,
    settings=given("backbone.name=efficientnet-lite0 data.image_size=64"),
)
WITHOUT_LITE = {LITE.key: "the paper does not have it; it stands for the others on a laptop"}
NOTE_WITH_PROBES = (
    f"{parts.PAPER_NOTE[:-1]}; the linear probe sees crops and flips as published; --set backbone.cache=true computes the features "
    "once, without augmentation, which is much faster and another experiment."
)
# Frozen features of a checkpoint that the user gives: computed once, then every head is trained in seconds.
PROBE_LAPTOP = given(
    "data.name=cifar100 data.fraction=0.1 data.image_size=112 backbone.mode=probe loop.epochs=100 loop.batch_size=256 "
    "optimizer.name=sgd optimizer.learning_rate=1.0 optimizer.weight_decay=0.0 optimizer.layer_decay=1.0 "
    "schedule.name=cosine schedule.warmup_epochs=0.0 schedule.warmup_steps=0 schedule.milestones=[]"
)
# The smallest ResNet-50 that still is one: 3x3 stem for small images, an eighth of the channels.
NARROW_RESNET = given(
    "data.name=cifar100 data.fraction=0.1 backbone.name=resnet50 backbone.stem=cifar backbone.width=16 "
    "optimizer.weight_decay=5e-4 loop.epochs=10"
)
IMAGENET_LAPTOP = {
    "resnet50": NARROW_RESNET,
    "efficientnet-lite0": merge(parts.PRETRAINED_LAPTOP, given("backbone.normalize_features=false loop.epochs=3")),
    **dict.fromkeys(("moco-resnet50", "clip-resnet50", "clip-vit-b32", "mae-vit-b16"), PROBE_LAPTOP),
}


def _two(rows: dict[str, published.PrintedRow]) -> dict[str, Any]:
    return {name: rows[name] for name in ("erm", "mr2")}


def deviation_tables(record: Record) -> list[Table]:
    """Return standard deviations over seeds, ours and the paper's; then the usual tables."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        ours = {name: f"{100 * row.std[name]:.2f}" if name in row.std else NO_VALUE for name in records.PRINTED}
        theirs = {f"paper_{name}": f"{100 * value:.2f}" for name, value in records.printed(row).items()}
        return {"seeds": len(row.runs), **ours, **theirs}

    columns = (
        Column("seeds", "Seeds", "count"),
        *records.headline_columns(records.PRINTED),
        *records.headline_columns(records.PRINTED, of="paper"),
    )
    note = "Percentage points; the paper's numbers are taken for fractions and shown in points."
    table = records.table_of("Standard deviation over seeds", record, columns, line, note)
    return [table, *records.default_tables(records.without_paper(record))]


def gains(record: Record, _: Folders) -> dict[str, Any]:
    """Return the change of each number on each set, own-ranked thirds as in the paper, in percentage points."""
    found = {}
    for block in record.blocks:
        row = block.rows[-1]
        if row.change is not None:
            base, paper = records.printed(block.rows[0]), records.printed(row)
            found[block.title] = {
                "ours": {name: [100 * value for value in row.change.own[name]] for name in records.PRINTED},
                "paper": {name: round(paper[name] - base[name], 1) for name in paper if name in base},
            }
    return {"sets": found}


def draw_gains(data: Mapping[str, Any]) -> Any:
    """Return one group of bars per data set."""
    figure = empty_figure(440, barmode="group", yaxis=titled_axis("change in percentage points"))
    titles = [plotly_text(title, longest=30) for title in data["sets"]]
    for name, colour in {"overall": NEUTRAL, **TIER_COLOURS}.items():
        ours = [values["ours"][name] for values in data["sets"].values()]
        theirs, means = [values["paper"].get(name) for values in data["sets"].values()], [value for value, _, _ in ours]
        bars, marker = records.interval_bars(ours), {"color": colour, "symbol": "diamond-open", "size": 10}
        figure.add_bar(x=titles, y=means, error_y=bars, name=f"ours, {name}", marker={"color": colour})
        figure.add_scatter(x=titles, y=theirs, mode="markers", name=f"paper, {name}", marker=marker)
    return figure


def _clip_block(key: str, title: str, setting: str) -> Block:
    settings = given(f"backbone.name=clip-resnet50 data.{setting}={key}")
    return Block(key, title, parts.ERM_AND_MR2, "clip-finetune", settings)


AUGMENTATIONS = {"standard": "crop and flip", "randaugment": "RandAugment", "autoaugment": "AutoAugment"}
FINE_GRAINED_TITLES = ("Stanford Cars", "Oxford Pets", "Flowers-102", "Food-101", "FGVC-Aircraft")
TABLE_FINE_GRAINED = Recipe(
    "table-fine-grained",
    "table of five fine-grained data sets, CLIP ResNet-50",
    "Does MR² help on cars, pets, flowers, food and aircraft?",
    tuple(
        _clip_block(name, f"{title}, CLIP ResNet-50", "name")
        for name, title in zip(published.FINE_GRAINED, FINE_GRAINED_TITLES, strict=True)
    ),
    parts.scales(
        Scale(
            "the sets that are on this machine, EfficientNet-Lite0 with its ImageNet weights, frozen, features computed once "
            "at 160 pixels, 100 epochs of a linear classifier; in a probe MR² has its logit margins only.",
            given(
                "data.image_size=160 backbone.name=efficientnet-lite0 backbone.mode=probe backbone.pretrained=true "
                "backbone.head=linear optimizer.name=sgd optimizer.learning_rate=0.1 optimizer.weight_decay=1e-4 "
                "schedule.warmup_steps=0 loop.epochs=100 loop.batch_size=256"
            ),
            {"food-101": given("data.fraction=0.1")},
        ),
        parts.paper(
            "the settings of CLIP on ImageNet (learning rate, weight decay, 500 warm-up steps) with batch 64 and 50 epochs, 10 for "
            "Food-101: batch 512 and 10 epochs would be 30 steps on Flowers-102; no validation part, preset “paper”.",
            loop={"batch_size": 64, "epochs": 50},
            blocks={"food-101": given("loop.epochs=10")},
        ),
    ),
    printed=published.FINE_GRAINED,
    doubts=(
        published.DOUBTS["hyperparameters"],
        "the schedule of these sets is not printed: batch 64, 50 epochs and 10 for Food-101 are ours.",
        "it is not said which images are trained on: the official training and validation parts together are ours.",
        "it is not said how the classifier starts: from class names and prompts, as on ImageNet, is ours.",
        "the released code builds its loss for 1000 classes on every set, which multiplies all margins.",
    ),
)

RECIPES = (
    Recipe(
        "table2-cifar100",
        "Table 2(a), networks on CIFAR-100",
        "Does MR² help in networks of other kinds and sizes, trained from scratch?",
        tuple(network_block(name) for name in published.ARCHITECTURES_CIFAR),
        parts.laptop_scales(
            "CIFAR-100 at 10 % of the training data, 14 epochs.",
            "data.fraction=0.1 loop.epochs=14",
            leave_out={"wide-resnet-22-10": parts.NEEDS_GPU},
        ),
        printed={name: _two(rows) for name, rows in published.ARCHITECTURES_CIFAR.items()},
        doubts=(published.DOUBTS["thirds"], published.DOUBTS["hyperparameters"]),
    ),
    Recipe(
        "table2-imagenet",
        "Table 2(b), networks and pretrainings on ImageNet",
        "Does MR² help from scratch, in a linear probe, with a cosine classifier and after MAE alike?",
        (*map(network_block, published.ARCHITECTURES_IMAGENET), LITE),
        parts.scales(
            Scale(
                "a tenth of CIFAR-100 in place of ImageNet: a narrow ResNet-50 from scratch, 10 epochs; EfficientNet-Lite0 "
                "with its ImageNet weights, fine-tuned at 64 pixels, 3 epochs; linear probes of the frozen networks whose "
                "weights are given with --checkpoint, where MR² has its logit margins only.",
                blocks=IMAGENET_LAPTOP,
            ),
            parts.paper(NOTE_WITH_PROBES, leave_out=WITHOUT_LITE),
            replace(parts.SMOKE, leave_out=WITHOUT_LITE),
        ),
        printed={name: _two(rows) for name, rows in published.ARCHITECTURES_IMAGENET.items()},
        doubts=(published.DOUBTS["thirds"], published.DOUBTS["hyperparameters"]),
    ),
    Recipe(
        "table-std",
        "table of standard deviations over three repeats",
        "How much do the numbers of Table 1 and 2 move from seed to seed?",
        tuple(network_block(name) for name in (*published.DEVIATIONS_CIFAR, *published.DEVIATIONS_IMAGENET)),
        parts.scales(
            Scale(
                "CIFAR-100 at 10 % of the training data, 8 epochs; ImageNet's networks as in table2-imagenet, where their "
                "weights are given.",
                blocks={
                    **dict.fromkeys(published.DEVIATIONS_CIFAR, given("data.fraction=0.1 loop.epochs=8")),
                    **IMAGENET_LAPTOP,
                },
                leave_out={"wide-resnet-22-10": parts.NEEDS_GPU},
            ),
            parts.paper(NOTE_WITH_PROBES),
        ),
        printed={**published.DEVIATIONS_CIFAR, **published.DEVIATIONS_IMAGENET},
        doubts=(
            "the caption says CIFAR-10, the sub-table CIFAR-100; the values make sense as fractions, not as percent.",
        ),
        tables=deviation_tables,
    ),
    Recipe(
        "table-augmentation",
        "table of stronger augmentations, CLIP ResNet-50 on ImageNet",
        "Does MR² add to RandAugment and AutoAugment?",
        tuple(
            _clip_block(name, f"ImageNet, CLIP ResNet-50, {title}", "augmentation")
            for name, title in AUGMENTATIONS.items()
        ),
        parts.laptop_scales(
            "CIFAR-100 at 10 % of the training data, ResNet-20 from scratch, 20 epochs.",
            "data.name=cifar100 data.fraction=0.1 backbone.name=resnet20 loop.epochs=20",
            blocks={name: given(f"data.augmentation={name}") for name in AUGMENTATIONS},
            preset="cifar",
        ),
        printed=published.AUGMENTATION,
        doubts=("RandAugment is printed as “RangAug”.",),
    ),
    TABLE_FINE_GRAINED,
    replace(
        TABLE_FINE_GRAINED,
        name="figure-fine-grained-gains",
        source="figure of the improvements on five fine-grained data sets",
        question="How large are the gains on cars, pets, flowers, food and aircraft, third by third?",
        figure=gains,
        draw=draw_gains,
    ),
)
