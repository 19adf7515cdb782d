"""Which term helps? Table 3 (CIFAR-100, ResNet-32) and the additional component table (more networks)."""

from __future__ import annotations

from classmargin.recipes.paper_values import (
    ARCHITECTURES_CIFAR,
    ARCHITECTURES_IMAGENET,
    CLIP_RESNET50_LOGIT,
    COMPONENTS,
    DOUBTS,
    TABLE_1B,
    TABLE_3,
    printed,
)
from classmargin.recipes.reproduce.grids import cifar_block, imagenet_block
from classmargin.recipes.reproduce.recipe import Block, Recipe, Row, register
from classmargin.recipes.reproduce.scales import laptop, paper, smoke, smoke_pretrained
from classmargin.training.config_reader import merge

register(
    Recipe(
        name="table3-components",
        source="Table 3, component analysis on CIFAR-100 with ResNet-32",
        question="Which part of MR² helps: class margins on the logits, the representation margin, or both?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", tuple(Row(name, name) for name in COMPONENTS)),),
        scales={
            "smoke": smoke(cifar100={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data (45 a class after validation), ResNet-20, 20 epochs.",
                {
                    "data": {"fraction": 0.1},
                    "backbone": {"name": "resnet20"},
                    "loop": {"epochs": 20},
                },
            ),
            "paper": paper(),
        },
        printed={"cifar100": printed(TABLE_3)},
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)

THREE = tuple(Row(name, name) for name in ("erm", "mr2-logit", "mr2"))
CIFAR = ("resnet20", "preact-resnet20", "preact-resnet32")
IMAGENET = ("clip-resnet50", "clip-vit-b32", "mae-vit-b16")
FINE_TUNING = "fine-tuning it needs a GPU; in a linear probe the representation margin has nothing to move"
_SMOKE = smoke_pretrained({name: name for name in IMAGENET})
_CLIP_RESNET50 = {"erm": TABLE_1B["erm"], "mr2-logit": CLIP_RESNET50_LOGIT, "mr2": TABLE_1B["mr2"]}

register(
    Recipe(
        name="table-components-more",
        source="additional component analysis: six networks on CIFAR-100 and ImageNet",
        question="Does the representation margin add to the class margins in every network?",
        blocks=(
            *(cifar_block(name, THREE) for name in CIFAR),
            *(imagenet_block(name, THREE) for name in IMAGENET),
        ),
        scales={
            "smoke": smoke(**{name: merge(_SMOKE.settings, _SMOKE.blocks[name]) for name in IMAGENET}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, 10 epochs.",
                {"data": {"fraction": 0.1}, "loop": {"epochs": 10}},
                leave_out=dict.fromkeys(IMAGENET, FINE_TUNING),
            ),
            "paper": paper(),
        },
        printed={
            **{name: printed(ARCHITECTURES_CIFAR[name]) for name in CIFAR},
            **{name: printed(ARCHITECTURES_IMAGENET[name]) for name in IMAGENET[1:]},
            "clip-resnet50": printed(_CLIP_RESNET50),
        },
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)
