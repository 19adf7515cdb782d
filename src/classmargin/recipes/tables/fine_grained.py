"""Does it hold on small fine-grained sets?"""

from __future__ import annotations

from classmargin.recipes.paper_values import DOUBTS, FINE_GRAINED, printed
from classmargin.recipes.reproduce.grids import ERM_AND_MR2
from classmargin.recipes.reproduce.recipe import Block, Recipe, Scale, register
from classmargin.recipes.reproduce.scales import laptop, paper, smoke_pretrained

TITLES = {
    "stanford-cars": "Stanford Cars",
    "oxford-pets": "Oxford Pets",
    "flowers-102": "Flowers-102",
    "food-101": "Food-101",
    "fgvc-aircraft": "FGVC-Aircraft",
}
BLOCKS = tuple(
    Block(
        name,
        f"{title}, CLIP ResNet-50",
        ERM_AND_MR2,
        preset="clip-finetune",
        settings={"backbone": {"name": "clip-resnet50"}, "data": {"name": name}},
    )
    for name, title in TITLES.items()
)
SCALES: dict[str, Scale] = {
    "smoke": smoke_pretrained(dict.fromkeys(TITLES, "clip-resnet50")),
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
    "paper": paper(),
}
PRINTED = {name: printed(rows) for name, rows in FINE_GRAINED.items()}

register(
    Recipe(
        name="table-fine-grained",
        source="table of five fine-grained data sets, CLIP ResNet-50",
        question="Does MR² help on cars, pets, flowers, food and aircraft?",
        blocks=BLOCKS,
        scales=SCALES,
        printed=PRINTED,
        doubts=(
            DOUBTS["hyperparameters"],
            "the released code builds its loss for 1000 classes on every set, which multiplies all margins.",
        ),
    )
)
