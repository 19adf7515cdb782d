"""Which method, which of its parts, which norm: Table 1 and 3, the long tail, and the norms of the appendix."""

from __future__ import annotations

from classmargin.recipes.paper_values import (
    ARCHITECTURES_CIFAR,
    ARCHITECTURES_IMAGENET,
    CLIP_RESNET50_LOGIT,
    COMPONENTS,
    DOUBTS,
    LONG_TAIL,
    NORMS_CIFAR,
    NORMS_IMAGENET,
    TABLE_1A,
    TABLE_1B,
    TABLE_3,
    printed,
)
from classmargin.recipes.recipe import Block, Recipe, Row, register
from classmargin.recipes.recipe_settings import (
    cifar_block,
    cifar_scales,
    imagenet_block,
    laptop,
    paper,
    pretrained_scales,
    smoke,
    smoke_pretrained,
)
from classmargin.training.config_reader import merge

# LGM brings its own head, so that the one of the preset is left open there.
ALL_METHODS = tuple(
    Row(name, name, settings={"backbone": {"head": "none"}} if name == "lgm" else {}) for name in TABLE_1B
)

register(
    Recipe(
        name="table1-cifar100",
        source="Table 1(a), all methods on CIFAR-100 with ResNet-32",
        question="Which method helps the hard classes most, and at whose cost?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", ALL_METHODS),),
        scales={
            "smoke": smoke(cifar100={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 20 % of the training data, the small CNN, 20 epochs: fifteen methods and three seeds are "
                "45 runs.",
                {"data": {"fraction": 0.2}, "backbone": {"name": "small-cnn"}, "loop": {"epochs": 20}},
            ),
            "paper": paper(),
        },
        printed={"cifar100": printed({row.key: TABLE_1A[row.key] for row in ALL_METHODS})},
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)

register(
    Recipe(
        name="table1-imagenet",
        source="Table 1(b), all methods on ImageNet with CLIP ResNet-50",
        question="Which method helps the hard classes most when a pretrained network is fine-tuned?",
        blocks=(imagenet_block("clip-resnet50", ALL_METHODS),),
        scales=pretrained_scales(2),
        printed={"clip-resnet50": printed(TABLE_1B)},
        doubts=(
            DOUBTS["thirds"],
            DOUBTS["hyperparameters"],
            "the released code reports an average of zero-shot and fine-tuned weights (0.6), which the paper does not mention.",
        ),
    )
)


register(
    Recipe(
        name="table3-components",
        source="Table 3, component analysis on CIFAR-100 with ResNet-32",
        question="Which part of MR² helps: class margins on the logits, the representation margin, or both?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", tuple(Row(name, name) for name in COMPONENTS)),),
        scales=cifar_scales("cifar100", 20),
        printed={"cifar100": printed(TABLE_3)},
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)

COMPONENT_ROWS = tuple(Row(name, name) for name in ("erm", "mr2-logit", "mr2"))
COMPONENTS_CIFAR = ("resnet20", "preact-resnet20", "preact-resnet32")
COMPONENTS_IMAGENET = ("clip-resnet50", "clip-vit-b32", "mae-vit-b16")
FINE_TUNING = "fine-tuning it needs a GPU; in a linear probe the representation margin has nothing to move"
_IMAGENET_SMOKE = smoke_pretrained({name: name for name in COMPONENTS_IMAGENET})
_CLIP_RESNET50 = {"erm": TABLE_1B["erm"], "mr2-logit": CLIP_RESNET50_LOGIT, "mr2": TABLE_1B["mr2"]}

register(
    Recipe(
        name="table-components-more",
        source="additional component analysis: six networks on CIFAR-100 and ImageNet",
        question="Does the representation margin add to the class margins in every network?",
        blocks=(
            *(cifar_block(name, COMPONENT_ROWS) for name in COMPONENTS_CIFAR),
            *(imagenet_block(name, COMPONENT_ROWS) for name in COMPONENTS_IMAGENET),
        ),
        scales={
            "smoke": smoke(
                **{
                    name: merge(_IMAGENET_SMOKE.settings, _IMAGENET_SMOKE.blocks[name])
                    for name in COMPONENTS_IMAGENET
                }
            ),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, 10 epochs.",
                {"data": {"fraction": 0.1}, "loop": {"epochs": 10}},
                leave_out=dict.fromkeys(COMPONENTS_IMAGENET, FINE_TUNING),
            ),
            "paper": paper(),
        },
        printed={
            **{name: printed(ARCHITECTURES_CIFAR[name]) for name in COMPONENTS_CIFAR},
            **{name: printed(ARCHITECTURES_IMAGENET[name]) for name in COMPONENTS_IMAGENET[1:]},
            "clip-resnet50": printed(_CLIP_RESNET50),
        },
        doubts=(DOUBTS["thirds"], DOUBTS["hyperparameters"]),
    )
)


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


NORM_ROWS = (
    Row("erm", "erm"),
    *(
        # The statistic that has a norm; margins of the recommended settings have none.
        Row(f"p={order}", "mr2", f"MR², p = {order}", {"margin_source": "sqnorm", "norm_order": float(order)})
        for order in (1, 3, 5, 7, 9)
    ),
)

register(
    Recipe(
        name="table-norms-cifar",
        source="table of Lp norms, CIFAR-100 with ResNet-32",
        question="Does the norm of the feature statistics matter for a linear classifier?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", NORM_ROWS),),
        scales=cifar_scales("cifar100", 20),
        printed={"cifar100": printed(NORMS_CIFAR)},
        doubts=("p = 2, the norm that the text uses, is not in this table.", DOUBTS["hyperparameters"]),
    )
)

register(
    Recipe(
        name="table-norms-imagenet",
        source="table of Lp norms, cosine classifier on ImageNet",
        question="Does the norm matter for a cosine classifier, where p = 2 would give equal margins?",
        blocks=(imagenet_block("clip-resnet50", NORM_ROWS),),
        scales=pretrained_scales(5),
        printed={"clip-resnet50": printed(NORMS_IMAGENET)},
        doubts=(DOUBTS["hyperparameters"],),
    )
)
