"""Parts that the scales of several recipes share.

``smoke`` trains real architectures at their smallest on a few files in the real formats: seconds, in CI.
``laptop`` is meant for two cores and about an hour, with three seeds and ``--jobs 2``.
``paper`` is the published protocol: presets of :mod:`classmargin.training.presets`, all training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classmargin.recipes.reproduce.recipe import Scale, Tables
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
    "clip-resnet50": {"width": 8, "depths": (1, 1, 1, 1), "output_dim": 16},
    "clip-vit-b32": {"patch_size": 8, "width": 32, "depth": 2, "heads": 2, "output_dim": 16},
    "mae-vit-b16": {"patch_size": 8, "width": 32, "depth": 2, "heads": 2},
    "wide-resnet-22-10": {},
}

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


def paper(note: str = PAPER_NOTE, **settings: Mapping[str, Any]) -> Scale:
    """Return the published protocol."""
    return Scale(note, merge({"data": {"validation": 0.0}}, settings), mr2_preset="paper")
