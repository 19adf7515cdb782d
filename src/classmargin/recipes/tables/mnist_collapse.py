"""Do features collapse on an easy task? Spread and length of the class means on MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classmargin.recipes.paper_values import IMAGENET_RATIO, MNIST_MEAN_NORM, MNIST_RATIO, MNIST_SPREAD
from classmargin.recipes.reproduce.geometry import training_geometry
from classmargin.recipes.reproduce.recipe import Block, Recipe, Row, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke
from classmargin.recipes.reproduce.views import default_tables
from classmargin.report.tables import Column, Table
from classmargin.training.run_folder import RunFolder


def measure_collapse(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return spread ``‖ŝ_y‖`` and length ``‖μ̂_y‖`` of every class on the training set, means over runs."""
    found = [training_geometry(run) for run in runs]
    spread = np.mean([np.sqrt(geometry.spread) for geometry in found], axis=0)
    length = np.mean([geometry.mean_norm for geometry in found], axis=0)
    ratio = float(np.mean([np.mean(np.sqrt(g.spread) / g.mean_norm) for g in found]))
    return {"spread": spread.tolist(), "mean_norm": length.tolist(), "ratio": ratio}


def collapse_tables(record: Record) -> list[Table]:
    """Return one line a class, ours beside the paper's; then the usual tables."""
    block = record.blocks[0]
    extras = block.rows[0].extras
    lines: list[dict[str, Any]] = [
        {
            "name": name,
            "spread": spread,
            "mean_norm": length,
            "paper_spread": MNIST_SPREAD[number] if number < len(MNIST_SPREAD) else None,
            "paper_mean_norm": MNIST_MEAN_NORM[number] if number < len(MNIST_MEAN_NORM) else None,
        }
        for number, (name, spread, length) in enumerate(
            zip(block.class_names, extras["spread"], extras["mean_norm"], strict=True)
        )
    ]
    columns = (
        Column("name", "Class"),
        Column("spread", "‖ŝ‖", "number"),
        Column("mean_norm", "‖μ̂‖", "number"),
        Column("paper_spread", "Paper ‖ŝ‖", "number"),
        Column("paper_mean_norm", "Paper ‖μ̂‖", "number"),
    )
    note = (
        f"Features of the training set. Mean of ‖ŝ‖/‖μ̂‖ over classes: ours {extras['ratio']:.3g}, the paper's "
        f"{MNIST_RATIO:.2g} on MNIST and {IMAGENET_RATIO} on ImageNet. The paper numbers classes from 1; they are taken in order."
    )
    return [Table("Spread and length of class means", columns, lines, note), *default_tables(record)]


register(
    Recipe(
        name="table-mnist-collapse",
        source="table of class spreads and means on MNIST with ResNet-18",
        question="Does the spread within classes vanish when the task is easy?",
        blocks=(
            Block(
                "mnist",
                "MNIST, ResNet-18",
                (Row("erm", "erm"),),
                preset="imagenet-scratch",
                settings={
                    "data": {"name": "mnist"},
                    "backbone": {"name": "resnet18", "stem": "cifar"},
                },
            ),
        ),
        scales={
            "smoke": smoke(mnist={"backbone": {"width": 8}}),
            "laptop": laptop(
                "the embedded part of Fashion-MNIST (450 training images a class) in place of MNIST, ResNet-18 with a quarter "
                "of its channels, 25 epochs, no augmentation.",
                {
                    "data": {"name": "fashion-mnist-mini", "augmentation": "none"},
                    "backbone": {"width": 16},
                    "loop": {"epochs": 25},
                },
            ),
            "paper": paper(),
        },
        printed={"mnist": {"erm": {"spread": list(MNIST_SPREAD), "mean_norm": list(MNIST_MEAN_NORM)}}},
        doubts=(
            "classes 7 and 8 are printed with the same mean length 6.4091.",
            "it is not said whether training or test features were measured (training features are taken).",
            "it is not said how 28-pixel images were shown to ResNet-18 (a 3x3 stem is taken).",
        ),
        extras=measure_collapse,
        tables=collapse_tables,
    )
)
