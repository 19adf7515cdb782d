"""Parts that several recipes share: the three scales, rows, blocks and laptop settings.

``smoke`` trains real architectures at their smallest on a few files in the real formats: seconds, in CI.
``laptop`` is meant for two cores and about an hour, with three seeds and ``--jobs 2``.
``paper`` is the published protocol: presets of :mod:`classmargin.training.presets`, all training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classmargin.recipes.recipe import Block, Row, Scale, Tables
from classmargin.training.config_reader import merge

SMOKE: Tables = {
    "data": {"validation": 0.25},
    "loop": {"epochs": 1, "batch_size": 16, "evaluate_every": 1},
    "optimizer": {"learning_rate": 0.01, "layer_decay": 1.0},
    "schedule": {"name": "cosine", "warmup_epochs": 0.0, "warmup_steps": 0, "milestones": ()},
    "machine": {"accelerator": "cpu", "memory_format": "contiguous", "workers": 0},
}
SMALL_IMAGES, LARGER_IMAGES = 16, 32

# The same classes as at full size, at the smallest settings they take.
TINY: Mapping[str, Mapping[str, Any]] = {
    "resnet50": {"width": 8},
    "moco-resnet50": {"width": 8},
    "clip-resnet50": {"width": 8, "depths": (1, 1, 1, 1), "output_dim": 16, "head_start": "auto"},
    "clip-vit-b32": {
        "patch_size": 8,
        "width": 32,
        "depth": 2,
        "heads": 2,
        "output_dim": 16,
        "head_start": "auto",
    },
    "mae-vit-b16": {"patch_size": 8, "width": 32, "depth": 2, "heads": 2},
    "wide-resnet-22-10": {},
}

# The paper's probe sees crops and flips; features computed once would be those of unaugmented images.
PUBLISHED_PROBES: Mapping[str, Tables] = {"moco-resnet50": {"backbone": {"cache": False}}}
PROBE_SHORTCUT = (
    "the linear probe sees crops and flips as published; --set backbone.cache=true computes the features once, without "
    "augmentation, which is much faster and another experiment."
)
PAPER_NOTE = "the published protocol: all training samples, no validation part, hyper-parameters of the preset “paper”."


def smoke(**blocks: Any) -> Scale:
    """Return the smallest scale of a recipe on CIFAR or MNIST."""
    note = "a few made-up images and one epoch: shows that everything runs, and says nothing about methods."
    settings = merge(SMOKE, {"data": {"image_size": SMALL_IMAGES}})
    return Scale(note, settings, blocks, bootstrap=100, sample_files=True)


def smoke_pretrained(blocks: Mapping[str, str]) -> Scale:
    """Return the smallest scale of a recipe on larger images.

    Args:
        blocks: Network of each block.
    """
    images = {"data": {"image_size": LARGER_IMAGES}}
    sizes: dict[str, Tables] = {key: {"backbone": TINY.get(name, {})} for key, name in blocks.items()}
    note = (
        "real architectures at their smallest, a few made-up files in the format of the data set and of the published "
        "weights, one epoch: shows that everything runs, and says nothing about methods."
    )
    return Scale(note, merge(SMOKE, images), sizes, bootstrap=100, sample_files=True)


def laptop(note: str, settings: Tables, **more: Any) -> Scale:
    """Return the scale for two cores and about an hour."""
    return Scale(note, settings, **more)


def paper(
    note: str = PAPER_NOTE, *, blocks: Mapping[str, Tables] | None = None, **settings: Mapping[str, Any]
) -> Scale:
    """Return the published protocol."""
    sizes = {**PUBLISHED_PROBES, **(blocks or {})}
    return Scale(note, merge({"data": {"validation": 0.0}}, settings), sizes, mr2_preset="paper")


def cifar_scales(block: str, epochs: int, *, fraction: float = 0.1, more: str = "") -> dict[str, Scale]:
    """Return the scales of a block on CIFAR-100; the smaller ones train ResNet-20.

    Args:
        block: Its key.
        epochs: On a laptop.
        fraction: Share of the training samples on a laptop.
        more: What else to say about the laptop.
    """
    network: Tables = {"backbone": {"name": "resnet20"}}
    note = f"CIFAR-100 at {100 * fraction:g} % of the training data, ResNet-20, {epochs} epochs{more}."
    settings: Tables = {"data": {"fraction": fraction}, **network, "loop": {"epochs": epochs}}
    return {"smoke": smoke(**{block: network}), "laptop": laptop(note, settings), "paper": paper()}


def pretrained_scales(epochs: int) -> dict[str, Scale]:
    """Return the scales of a fine-tuned CLIP ResNet-50; a laptop trains EfficientNet-Lite0 in its place."""
    settings = merge(PRETRAINED_LAPTOP, {"loop": {"epochs": epochs}})
    return {
        "smoke": smoke_pretrained({"clip-resnet50": "clip-resnet50"}),
        "laptop": laptop(f"{PRETRAINED_NOTE}, {epochs} epochs.", settings),
        "paper": paper(),
    }


def scratch_scales(
    *networks: str, more: str = "", leave_out: Mapping[str, str] | None = None
) -> dict[str, Scale]:
    """Return the scales of networks on ImageNet; a laptop trains ResNet-20 on a tenth of CIFAR-100 in their place."""
    note = f"a tenth of CIFAR-100 in place of ImageNet, ResNet-20, 40 epochs{more}."
    return {
        "smoke": smoke_pretrained({name: name for name in networks}),
        "laptop": laptop(note, SMALL_IMAGENET_LAPTOP, preset="cifar", leave_out=leave_out or {}),
        "paper": paper(),
    }


ERM_AND_MR2 = (Row("erm", "erm"), Row("mr2", "mr2"))

# Training recipe of each network of the paper's ImageNet tables.
IMAGENET_PRESETS = {
    "resnet50": "imagenet-scratch",
    "moco-resnet50": "moco-probe",
    "clip-resnet50": "clip-finetune",
    "clip-vit-b32": "clip-finetune",
    "mae-vit-b16": "mae-finetune",
}
NETWORK_TITLES = {
    "resnet20": "ResNet-20",
    "resnet32": "ResNet-32",
    "preact-resnet20": "PreAct ResNet-20",
    "preact-resnet32": "PreAct ResNet-32",
    "wide-resnet-22-10": "WideResNet-22-10",
    "resnet50": "ResNet-50 from scratch",
    "moco-resnet50": "MoCo v2 ResNet-50, linear probe",
    "clip-resnet50": "CLIP ResNet-50",
    "clip-vit-b32": "CLIP ViT-B/32",
    "mae-vit-b16": "MAE ViT-B/16",
}
NEEDS_GPU = "needs a GPU: about a hundred times the work of ResNet-20"

# A tenth of CIFAR-100: what two cores can learn from in minutes.
TENTH_OF_CIFAR: Mapping[str, Any] = {"name": "cifar100", "fraction": 0.1}

# Stands for training from scratch on ImageNet.
SMALL_IMAGENET_LAPTOP: Tables = {
    "data": TENTH_OF_CIFAR,
    "backbone": {"name": "resnet20"},
    "loop": {"epochs": 40},
}

# Stands for fine-tuning of a large pretrained network: weights come with a package, images are small.
PRETRAINED_LAPTOP: Tables = {
    "data": {**TENTH_OF_CIFAR, "image_size": 64},
    "backbone": {
        "name": "efficientnet-lite0",
        "mode": "fine-tune",
        "pretrained": True,
        "normalize_features": True,
    },
    "optimizer": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_epochs": 0.5, "warmup_steps": 0},
    "loop": {"batch_size": 64},
}
PRETRAINED_NOTE = (
    "the question on what two cores can do: EfficientNet-Lite0 with its ImageNet weights, fine-tuned on a tenth of "
    "CIFAR-100 at 64 pixels with a cosine classifier"
)

# Frozen features of a checkpoint that the user gives: computed once, then every head is trained in seconds.
PROBE_LAPTOP: Tables = {
    "data": {**TENTH_OF_CIFAR, "image_size": 112},
    "backbone": {"mode": "probe"},
    "optimizer": {"name": "sgd", "learning_rate": 1.0, "weight_decay": 0.0, "layer_decay": 1.0},
    "schedule": {"name": "cosine", "warmup_epochs": 0.0, "warmup_steps": 0, "milestones": ()},
    "loop": {"epochs": 100, "batch_size": 256},
}


def cifar_block(backbone: str, rows: tuple[Row, ...] = ERM_AND_MR2) -> Block:
    """Return CIFAR-100 with a network, trained as the paper says."""
    return Block(
        backbone, f"CIFAR-100, {NETWORK_TITLES[backbone]}", rows, settings={"backbone": {"name": backbone}}
    )


def imagenet_block(backbone: str, rows: tuple[Row, ...] = ERM_AND_MR2) -> Block:
    """Return ImageNet with a network, trained or fine-tuned as the paper says."""
    return Block(
        backbone,
        f"ImageNet, {NETWORK_TITLES[backbone]}",
        rows,
        preset=IMAGENET_PRESETS[backbone],
        settings={"backbone": {"name": backbone}},
    )
