"""Does it still help when augmentation is strong?"""

from __future__ import annotations

from classmargin.recipes.paper_values import AUGMENTATION, printed
from classmargin.recipes.reproduce.grids import ERM_AND_MR2, TENTH_OF_CIFAR
from classmargin.recipes.reproduce.recipe import Block, Recipe, register
from classmargin.recipes.reproduce.scales import laptop, paper, smoke_pretrained

TITLES = {"standard": "crop and flip", "randaugment": "RandAugment", "autoaugment": "AutoAugment"}

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
            for name, title in TITLES.items()
        ),
        scales={
            "smoke": smoke_pretrained(dict.fromkeys(TITLES, "clip-resnet50")),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, ResNet-20 from scratch, 20 epochs.",
                {
                    "data": TENTH_OF_CIFAR,
                    "backbone": {"name": "resnet20"},
                    "loop": {"epochs": 20},
                },
                preset="cifar",
                blocks={name: {"data": {"augmentation": name}} for name in TITLES},
            ),
            "paper": paper(),
        },
        printed={name: printed(rows) for name, rows in AUGMENTATION.items()},
        doubts=("RandAugment is printed as “RangAug”.",),
    )
)
