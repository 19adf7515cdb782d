"""Which norm? Lp statistics behind the class margins, for a linear and for a cosine classifier."""

from __future__ import annotations

from classmargin.recipes.paper_values import DOUBTS, NORMS_CIFAR, NORMS_IMAGENET, printed
from classmargin.recipes.reproduce.grids import PRETRAINED_LAPTOP, PRETRAINED_NOTE, imagenet_block
from classmargin.recipes.reproduce.recipe import Block, Recipe, Row, register
from classmargin.recipes.reproduce.scales import laptop, paper, smoke, smoke_pretrained
from classmargin.training.config_reader import merge

ROWS = (
    Row("erm", "erm"),
    *(
        Row(f"p={order}", "mr2", f"MR², p = {order}", {"norm_order": float(order)})
        for order in (1, 3, 5, 7, 9)
    ),
)

register(
    Recipe(
        name="table-norms-cifar",
        source="table of Lp norms, CIFAR-100 with ResNet-32",
        question="Does the norm of the feature statistics matter for a linear classifier?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", ROWS),),
        scales={
            "smoke": smoke(cifar100={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, ResNet-20, 20 epochs.",
                {"data": {"fraction": 0.1}, "backbone": {"name": "resnet20"}, "loop": {"epochs": 20}},
            ),
            "paper": paper(),
        },
        printed={"cifar100": printed(NORMS_CIFAR)},
        doubts=("p = 2, the norm that the text uses, is not in this table.", DOUBTS["hyperparameters"]),
    )
)

register(
    Recipe(
        name="table-norms-imagenet",
        source="table of Lp norms, cosine classifier on ImageNet",
        question="Does the norm matter for a cosine classifier, where p = 2 would give equal margins?",
        blocks=(imagenet_block("clip-resnet50", ROWS),),
        scales={
            "smoke": smoke_pretrained({"clip-resnet50": "clip-resnet50"}),
            "laptop": laptop(
                f"{PRETRAINED_NOTE}, 5 epochs.",
                merge(PRETRAINED_LAPTOP, {"loop": {"epochs": 5}}),
            ),
            "paper": paper(),
        },
        printed={"clip-resnet50": printed(NORMS_IMAGENET)},
        doubts=(DOUBTS["hyperparameters"],),
    )
)
