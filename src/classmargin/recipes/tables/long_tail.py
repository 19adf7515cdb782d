"""Does it combine with logit adjustment when classes are unequal?"""

from __future__ import annotations

from classmargin.recipes.paper_values import DOUBTS, LONG_TAIL, printed
from classmargin.recipes.reproduce.recipe import Block, Recipe, Row, register
from classmargin.recipes.reproduce.scales import laptop, paper, smoke

register(
    Recipe(
        name="table-long-tail",
        source="table of CIFAR-100-IB-100 with ResNet-32",
        question="On a long tail, does MR² add to logit adjustment?",
        blocks=(
            Block(
                "cifar100-ib100",
                "CIFAR-100-IB-100, ResNet-32",
                tuple(Row(name, name) for name in LONG_TAIL),
                settings={"data": {"imbalance": 100.0}},
            ),
        ),
        scales={
            "smoke": smoke(
                **{"cifar100-ib100": {"backbone": {"name": "resnet20"}, "data": {"imbalance": 4.0}}}
            ),
            "laptop": laptop(
                "CIFAR-100-IB-100 (all of it but the validation part), ResNet-20, 16 epochs.",
                {"backbone": {"name": "resnet20"}, "loop": {"epochs": 16}},
            ),
            "paper": paper(),
        },
        printed={"cifar100-ib100": printed(LONG_TAIL)},
        doubts=("which form of logit adjustment was combined with MR² is not stated.", DOUBTS["thirds"]),
    )
)
