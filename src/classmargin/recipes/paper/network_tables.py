"""Other networks, augmentations and data sets: Table 2, its deviations, and the fine-grained sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from classmargin.recipes.paper_values import (
    ARCHITECTURES_CIFAR,
    ARCHITECTURES_IMAGENET,
    AUGMENTATION,
    DEVIATIONS_CIFAR,
    DEVIATIONS_IMAGENET,
    DOUBTS,
    FINE_GRAINED,
    PrintedDeviation,
    PrintedRow,
    printed,
)
from classmargin.recipes.recipe import Block, Folders, Recipe, Scale, Tables, register
from classmargin.recipes.recipe_settings import (
    ERM_AND_MR2,
    NEEDS_GPU,
    PAPER_NOTE,
    PRETRAINED_LAPTOP,
    PROBE_LAPTOP,
    PROBE_SHORTCUT,
    TENTH_OF_CIFAR,
    cifar_block,
    imagenet_block,
    laptop,
    paper,
    smoke,
    smoke_pretrained,
)
from classmargin.recipes.record import BlockResult, Record, RowResult
from classmargin.recipes.record_tables import default_tables, interval_bars, table_of, without_paper
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.config_reader import merge

LITE = Block(
    "efficientnet-lite0",
    "EfficientNet-Lite0, fine-tuned",
    ERM_AND_MR2,
    settings={"backbone": {"name": "efficientnet-lite0"}, "data": {"image_size": 64}},
)
NOT_PRINTED = "the paper does not have it; it stands for the others on a laptop"
PAPER = paper(f"{PAPER_NOTE[:-1]}; {PROBE_SHORTCUT}")
# The smallest ResNet-50 that still is one: 3x3 stem for small images, an eighth of the channels.
SMALL_RESNET50: Tables = {
    "data": TENTH_OF_CIFAR,
    "backbone": {"name": "resnet50", "stem": "cifar", "width": 16},
    "optimizer": {"weight_decay": 5e-4},
    "loop": {"epochs": 10},
}
LITE_LAPTOP: Tables = merge(
    PRETRAINED_LAPTOP, {"backbone": {"normalize_features": False}, "loop": {"epochs": 3}}
)
IMAGENET_LAPTOP: dict[str, Tables] = {
    "resnet50": SMALL_RESNET50,
    "efficientnet-lite0": LITE_LAPTOP,
    **dict.fromkeys(("moco-resnet50", "clip-resnet50", "clip-vit-b32", "mae-vit-b16"), PROBE_LAPTOP),
}


def _two(rows: dict[str, PrintedRow]) -> dict[str, Any]:
    return printed({name: rows[name] for name in ("erm", "mr2")})


register(
    Recipe(
        name="table2-cifar100",
        source="Table 2(a), networks on CIFAR-100",
        question="Does MR² help in networks of other kinds and sizes, trained from scratch?",
        blocks=tuple(cifar_block(name) for name in ARCHITECTURES_CIFAR),
        scales={
            "smoke": smoke(**{"wide-resnet-22-10": {"backbone": {"name": "wide-resnet-16-4"}}}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, 14 epochs.",
                {"data": {"fraction": 0.1}, "loop": {"epochs": 14}},
                leave_out={"wide-resnet-22-10": NEEDS_GPU},
            ),
            "paper": paper(),
        },
        printed={name: _two(rows) for name, rows in ARCHITECTURES_CIFAR.items()},
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)

register(
    Recipe(
        name="table2-imagenet",
        source="Table 2(b), networks and pretrainings on ImageNet",
        question="Does MR² help from scratch, in a linear probe, with a cosine classifier and after MAE alike?",
        blocks=(*(imagenet_block(name) for name in ARCHITECTURES_IMAGENET), LITE),
        scales={
            "smoke": replace(
                smoke_pretrained({name: name for name in ARCHITECTURES_IMAGENET}),
                leave_out={LITE.key: NOT_PRINTED},
            ),
            "laptop": laptop(
                "a tenth of CIFAR-100 in place of ImageNet: a narrow ResNet-50 from scratch, 10 epochs; EfficientNet-Lite0 "
                "with its ImageNet weights, fine-tuned at 64 pixels, 3 epochs; linear probes of the frozen networks whose "
                "weights are given with --checkpoint, where MR² has its logit margins only.",
                {},
                blocks=IMAGENET_LAPTOP,
            ),
            "paper": replace(PAPER, leave_out={LITE.key: NOT_PRINTED}),
        },
        printed={name: _two(rows) for name, rows in ARCHITECTURES_IMAGENET.items()},
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)


def deviation_tables(record: Record) -> list[Table]:
    """Return standard deviations over seeds, ours and the paper's; then the usual tables."""
    names = ("overall", "easy", "medium", "hard")

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        ours = {name: f"{100 * row.std[name]:.2f}" if name in row.std else NO_VALUE for name in names}
        theirs = {f"paper_{n}": f"{100 * (row.paper or {})[n]:.2f}" for n in names if n in (row.paper or {})}
        return {"seeds": len(row.runs), **ours, **theirs}

    columns = (
        Column("seeds", "Seeds", "count"),
        *(Column(name, name.capitalize(), "value") for name in names),
        *(Column(f"paper_{name}", f"Paper {name}", "value") for name in names),
    )
    note = "Percentage points; the paper's numbers are taken for fractions and shown in points."
    table = table_of("Standard deviation over seeds", record, columns, line, note)
    return [table, *default_tables(without_paper(record))]


def _deviations(tables: dict[str, dict[str, PrintedDeviation]]) -> dict[str, dict[str, Any]]:
    return {block: {row: asdict(value) for row, value in rows.items()} for block, rows in tables.items()}


_CIFAR_LAPTOP: Tables = {"data": {"fraction": 0.1}, "loop": {"epochs": 8}}
_IMAGENET_SMOKE = smoke_pretrained({name: name for name in DEVIATIONS_IMAGENET})

register(
    Recipe(
        name="table-std",
        source="table of standard deviations over three repeats",
        question="How much do the numbers of Table 1 and 2 move from seed to seed?",
        blocks=(
            *(cifar_block(name) for name in DEVIATIONS_CIFAR),
            *(imagenet_block(name) for name in DEVIATIONS_IMAGENET),
        ),
        scales={
            "smoke": smoke(
                **{"wide-resnet-22-10": {"backbone": {"name": "wide-resnet-16-4"}}},
                **{
                    name: merge(_IMAGENET_SMOKE.settings, _IMAGENET_SMOKE.blocks[name])
                    for name in DEVIATIONS_IMAGENET
                },
            ),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, 8 epochs; ImageNet's networks as in table2-imagenet, where their "
                "weights are given.",
                {},
                blocks={**dict.fromkeys(DEVIATIONS_CIFAR, _CIFAR_LAPTOP), **IMAGENET_LAPTOP},
                leave_out={"wide-resnet-22-10": NEEDS_GPU},
            ),
            "paper": PAPER,
        },
        printed=_deviations({**DEVIATIONS_CIFAR, **DEVIATIONS_IMAGENET}),
        doubts=(
            "the caption says CIFAR-10, the sub-table CIFAR-100; the values make sense as fractions, not as percent.",
        ),
        tables=deviation_tables,
    )
)


AUGMENTATION_TITLES = {
    "standard": "crop and flip",
    "randaugment": "RandAugment",
    "autoaugment": "AutoAugment",
}

register(
    Recipe(
        name="table-augmentation",
        source="table of stronger augmentations, CLIP ResNet-50 on ImageNet",
        question="Does MR² add to RandAugment and AutoAugment?",
        blocks=tuple(
            Block(
                name,
                f"ImageNet, CLIP ResNet-50, {title}",
                ERM_AND_MR2,
                preset="clip-finetune",
                settings={"backbone": {"name": "clip-resnet50"}, "data": {"augmentation": name}},
            )
            for name, title in AUGMENTATION_TITLES.items()
        ),
        scales={
            "smoke": smoke_pretrained(dict.fromkeys(AUGMENTATION_TITLES, "clip-resnet50")),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, ResNet-20 from scratch, 20 epochs.",
                {
                    "data": TENTH_OF_CIFAR,
                    "backbone": {"name": "resnet20"},
                    "loop": {"epochs": 20},
                },
                preset="cifar",
                blocks={name: {"data": {"augmentation": name}} for name in AUGMENTATION_TITLES},
            ),
            "paper": paper(),
        },
        printed={name: printed(rows) for name, rows in AUGMENTATION.items()},
        doubts=("RandAugment is printed as “RangAug”.",),
    )
)


FINE_GRAINED_TITLES = {
    "stanford-cars": "Stanford Cars",
    "oxford-pets": "Oxford Pets",
    "flowers-102": "Flowers-102",
    "food-101": "Food-101",
    "fgvc-aircraft": "FGVC-Aircraft",
}
FINE_GRAINED_BLOCKS = tuple(
    Block(
        name,
        f"{title}, CLIP ResNet-50",
        ERM_AND_MR2,
        preset="clip-finetune",
        settings={"backbone": {"name": "clip-resnet50"}, "data": {"name": name}},
    )
    for name, title in FINE_GRAINED_TITLES.items()
)
FINE_GRAINED_NOTE = (
    "the settings of CLIP on ImageNet (learning rate, weight decay, 500 warm-up steps) with batch 64 and 50 epochs, 10 for "
    "Food-101: batch 512 and 10 epochs would be 30 steps on Flowers-102; no validation part, preset “paper”."
)
FINE_GRAINED_SCALES: dict[str, Scale] = {
    "smoke": smoke_pretrained(dict.fromkeys(FINE_GRAINED_TITLES, "clip-resnet50")),
    "laptop": laptop(
        "the sets that are on this machine, EfficientNet-Lite0 with its ImageNet weights, frozen, features computed once "
        "at 160 pixels, 100 epochs of a linear classifier; in a probe MR² has its logit margins only.",
        {
            "data": {"image_size": 160},
            "backbone": {"name": "efficientnet-lite0", "mode": "probe", "pretrained": True, "head": "linear"},
            "optimizer": {"name": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4},
            "schedule": {"warmup_steps": 0},
            "loop": {"epochs": 100, "batch_size": 256},
        },
        blocks={"food-101": {"data": {"fraction": 0.1}}},
    ),
    "paper": paper(
        FINE_GRAINED_NOTE,
        loop={"batch_size": 64, "epochs": 50},
        blocks={"food-101": {"loop": {"epochs": 10}}},
    ),
}
FINE_GRAINED_DOUBTS = (
    DOUBTS["hyperparameters"],
    "the schedule of these sets is not printed: batch 64, 50 epochs and 10 for Food-101 are ours.",
    "it is not said which images are trained on: the official training and validation parts together are ours.",
    "it is not said how the classifier starts: from class names and prompts, as on ImageNet, is ours.",
    "the released code builds its loss for 1000 classes on every set, which multiplies all margins.",
)
FINE_GRAINED_PRINTED = {name: printed(rows) for name, rows in FINE_GRAINED.items()}

register(
    Recipe(
        name="table-fine-grained",
        source="table of five fine-grained data sets, CLIP ResNet-50",
        question="Does MR² help on cars, pets, flowers, food and aircraft?",
        blocks=FINE_GRAINED_BLOCKS,
        scales=FINE_GRAINED_SCALES,
        printed=FINE_GRAINED_PRINTED,
        doubts=FINE_GRAINED_DOUBTS,
    )
)


METRICS = ("overall", "easy", "medium", "hard")


def gains(record: Record, _: Folders) -> dict[str, Any]:
    """Return the change of each number on each set, own-ranked thirds as in the paper, in percentage points."""
    found = {}
    for block in record.blocks:
        row = block.rows[-1]
        if row.change is None:
            continue
        base, paper = block.rows[0].paper or {}, row.paper or {}
        found[block.title] = {
            "ours": {name: [100 * value for value in row.change.own[name]] for name in METRICS},
            "paper": {
                name: round(paper[name] - base[name], 1) for name in METRICS if name in paper and name in base
            },
        }
    return {"sets": found}


def draw_gains(data: Mapping[str, Any]) -> Any:
    """Return one group of bars per data set."""
    from classmargin.report.figures import NEUTRAL, TIER_COLOURS, empty_figure, plotly_text, titled_axis

    figure = empty_figure(440, barmode="group", yaxis=titled_axis("change in percentage points"))
    titles = [plotly_text(title, longest=30) for title in data["sets"]]
    colours = {"overall": NEUTRAL, **TIER_COLOURS}
    for name in METRICS:
        ours = [values["ours"][name] for values in data["sets"].values()]
        figure.add_bar(
            x=titles,
            y=[value for value, _, _ in ours],
            error_y=interval_bars(ours),
            name=f"ours, {name}",
            marker={"color": colours[name]},
        )
        figure.add_scatter(
            x=titles,
            y=[values["paper"].get(name) for values in data["sets"].values()],
            mode="markers",
            name=f"paper, {name}",
            marker={"color": colours[name], "symbol": "diamond-open", "size": 10},
        )
    return figure


register(
    Recipe(
        name="figure-fine-grained-gains",
        source="figure of the improvements on five fine-grained data sets",
        question="How large are the gains on cars, pets, flowers, food and aircraft, third by third?",
        blocks=FINE_GRAINED_BLOCKS,
        scales=FINE_GRAINED_SCALES,
        printed=FINE_GRAINED_PRINTED,
        doubts=FINE_GRAINED_DOUBTS,
        figure=gains,
        draw=draw_gains,
    )
)
