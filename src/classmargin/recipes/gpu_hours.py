"""``reproduce --dry-run``: runs, steps and GPU-hours of a recipe, before anything is trained; :data:`BASIS` says how."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from classmargin.backbones import backbone_info, create_backbone
from classmargin.data.catalog import find_info
from classmargin.methods import method_info
from classmargin.recipes.recipe_plan import RecipePlan
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.config import RunConfig

SUSTAINED = 40e12
LAUNCH_SECONDS = 0.012
BASIS = (
    f"Estimated for one A100: {SUSTAINED / 1e12:g} TFLOP/s sustained (a ResNet-50 then trains about 1 600 images per second), "
    f"and no step faster than {1000 * LAUNCH_SECONDS:g} ms. A step is three forward passes (one for a linear probe) times the "
    "relative cost of the method. Evaluation and reading of files are not included. Nothing was trained."
)
# Training images as published (where the paper trains on the validation part, with it), and their side where it is one.
TRAINING_IMAGES = {
    "cifar10": (50_000, 32),
    "cifar100": (50_000, 32),
    "mnist": (60_000, 28),
    "imagenet": (1_281_167, 0),
    "stanford-cars": (8_144, 0),
    "oxford-pets": (3_680, 0),
    "flowers-102": (2_040, 0),
    "food-101": (75_750, 0),
    "fgvc-aircraft": (6_667, 0),
    "fashion-mnist-mini": (4_500, 28),
}
# Where a head starts costs nothing, and class names and tokenizers need not be on this machine.
_OF_THE_HEAD_START = ("class_names", "prompt_templates", "tokenizer", "head_start")


class Estimate(NamedTuple):
    """Optimiser steps of a run, and its GPU-hours; None where they are not known."""

    steps: int | None
    hours: float | None


def estimate(config: RunConfig) -> Estimate:
    """Return what a run will take."""
    data, loop, info = config.data, config.loop, find_info(config.data.name)
    if data.name not in TRAINING_IMAGES:
        return Estimate(None, None)
    published, native_side = TRAINING_IMAGES[data.name]
    # Of the training set, after thinning and validation.
    share = data.fraction * (1 - (data.validation or 0.0))
    classes = info.classes if info is not None and info.classes else 0
    if data.imbalance > 1 and classes:
        share *= sum(data.imbalance ** (-k / (classes - 1)) for k in range(classes)) / classes
    images = int(published * share)
    steps = loop.epochs * max(1, images // loop.batch_size)
    network, probe = backbone_info(config.backbone.name), config.backbone.mode == "probe"
    side = data.image_size or native_side or (network.input_size or (224,))[0]
    channels = 1 if "mnist" in data.name else 3
    options = {k: v for k, v in config.backbone.options.items() if k not in _OF_THE_HEAD_START}
    try:
        forward = _operations(config.backbone.name, classes or 1000, channels, side, repr(options))
    except (RuntimeError, ValueError, NotImplementedError):  # a network that does not run on the meta device
        return Estimate(steps, None)
    if probe and config.backbone.cache:  # features are computed once; heads cost no more than a launch
        return Estimate(steps, (images * forward / SUSTAINED + steps * LAUNCH_SECONDS) / 3600)
    passes = 1 if probe else 3  # nothing goes back through a frozen encoder
    step = passes * forward * loop.batch_size * method_info(config.method.name).cost / SUSTAINED
    return Estimate(steps, steps * max(step, LAUNCH_SECONDS) / 3600)


@cache
def _operations(name: str, classes: int, channels: int, side: int, options: str) -> float:
    """Return the floating-point operations of a network, built with the ``repr`` of its options, for one sample."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    arguments = {"num_classes": classes, "in_channels": channels, "input_size": side, **ast.literal_eval(options)}
    with torch.device("meta"):
        # Every head is one product with its weights; that of cosines does not run on the meta device.
        network = create_backbone(name, head="linear", **arguments).eval()
        with FlopCounterMode(display=False) as counter:
            network(torch.empty(2, channels, side, side))
    return float(counter.get_total_flops() / 2)


def plan_table(plan: RecipePlan) -> Table:
    """Return one line per row: runs, steps of a run, GPU-hours of all its runs."""
    rows = []
    for block in plan.blocks:
        for row in block.rows:
            steps, hours = estimate(row.runs[0].config)
            line = {"block": block.title, "row": row.title, "runs": len(row.runs)}
            line["steps"] = NO_VALUE if steps is None else f"{steps:,}".replace(",", " ")
            rows.append({**line, "hours": NO_VALUE if hours is None else f"{hours * len(row.runs):.1f}"})
    columns = (
        Column("block", "Setting"),
        Column("row", "Method"),
        Column("runs", "Runs", "count"),
        Column("steps", "Steps per run", "value"),
        Column("hours", "GPU-hours", "value"),
    )
    return Table(f"{plan.recipe.name} at scale {plan.scale}", columns, rows, BASIS)


def verdict_of(plan: RecipePlan) -> str:
    """Return runs and hours in a sentence; a run that several rows share counts once."""
    known = [hours for run in plan.runs if (hours := estimate(run.config).hours) is not None]
    done = sum(run.folder.done for run in plan.runs)
    planned = sum(len(row.runs) for block in plan.blocks for row in block.rows)
    total = "GPU-hours not known" if plan.runs and not known else f"about {sum(known):.1f} GPU-hours"
    return f"{len(plan.runs)} runs ({planned} planned, {done} finished already), {total}."
