"""Tables that look at single classes or margins: per-class accuracies, spreads on MNIST, margins after training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classmargin.recipes.class_measures import read_audit_part, training_geometry
from classmargin.recipes.paper_values import (
    DOUBTS,
    IMAGENET_RATIO,
    MARGINS,
    MNIST_MEAN_NORM,
    MNIST_RATIO,
    MNIST_SPREAD,
    PER_CLASS,
    PER_CLASS_NAMES,
)
from classmargin.recipes.recipe import Block, Recipe, Row, register
from classmargin.recipes.recipe_settings import (
    cifar_block,
    cifar_scales,
    laptop,
    paper,
    smoke,
)
from classmargin.recipes.record import BlockResult, Record, RowResult
from classmargin.recipes.record_tables import default_tables, table_of, without_paper
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.run_folder import RunFolder


def _printed(row: str) -> dict[str, Any]:
    values = PER_CLASS[row]
    return {
        "overall": sum(values) / len(values),
        "worst": min(values),
        "by_class": dict(zip(PER_CLASS_NAMES, values, strict=True)),
    }


def per_class_tables(record: Record) -> list[Table]:
    """Return every class with our accuracies and the paper's, best of the baseline first; then the usual tables."""
    return [class_table(record), *default_tables(record)]


def class_table(record: Record) -> Table:
    """Return one line per class and a pair of columns (ours, the paper's) per row of the recipe."""
    block = record.blocks[0]
    columns = [Column("name", "Class")]
    lines: list[dict[str, Any]] = [{"name": name} for name in block.class_names]
    for position, row in enumerate(block.rows):
        columns.append(Column(f"ours{position}", row.title, "percent"))
        for line, accuracy in zip(lines, row.by_class, strict=True):
            line[f"ours{position}"] = accuracy
    if len(block.rows) > 1:
        columns.append(Column("change", f"{block.rows[-1].title} − {block.rows[0].title}", "points"))
        for line in lines:
            line["change"] = line[f"ours{len(block.rows) - 1}"] - line["ours0"]
    for position, row in enumerate(block.rows):
        by_class = (row.paper or {}).get("by_class")
        if by_class:
            columns.append(Column(f"paper{position}", f"Paper {row.title}", "value"))
            for line in lines:
                value = by_class.get(line["name"])
                line[f"paper{position}"] = None if value is None else f"{value:.1f}"
    lines.sort(key=lambda line: -line["ours0"])
    note = "Accuracy of each class, mean over seeds; classes are sorted by the first row."
    return Table("Accuracy of every class", tuple(columns), lines, note)


register(
    Recipe(
        name="table-per-class-cifar10",
        source="table of per-class accuracies, CIFAR-10 with 10 % of the training data",
        question="Which classes gain, and by how much, when there are few training images?",
        blocks=(
            Block(
                "cifar10",
                "CIFAR-10 (10 %), ResNet-32",
                (Row("erm", "erm"), Row("mr2", "mr2")),
                settings={"data": {"name": "cifar10", "fraction": 0.1}},
                files={"cifar10_10pct": {"data": {"fraction": 1.0}}},
            ),
        ),
        scales={
            "smoke": smoke(cifar10={"backbone": {"name": "resnet20"}, "data": {"fraction": 1.0}}),
            "laptop": laptop(
                "CIFAR-10 with 500 training images a class (450 after validation), ResNet-20, 50 epochs.",
                {"backbone": {"name": "resnet20"}, "loop": {"epochs": 50}},
            ),
            "paper": paper(),
        },
        printed={"cifar10": {name: _printed(name) for name in PER_CLASS}},
        doubts=(
            "network, epochs and repeats of this table are not stated; ResNet-32 is taken, as in the tables around it.",
            DOUBTS["hyperparameters"],
        ),
        tables=per_class_tables,
    )
)


def measure_collapse(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return spread ``‖ŝ_y‖`` and length ``‖μ̂_y‖`` of every class on the training set, means over runs."""
    found = [training_geometry(run) for run in runs]
    spread = np.mean([np.sqrt(geometry.spread) for geometry in found], axis=0)
    length = np.mean([geometry.mean_norm for geometry in found], axis=0)
    ratio = float(np.mean([np.mean(np.sqrt(g.spread) / g.mean_norm) for g in found]))
    return {"spread": spread.tolist(), "mean_norm": length.tolist(), "ratio": ratio}


def collapse_tables(record: Record) -> list[Table]:
    """Return one line per class, ours beside the paper's; then the usual tables."""
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


# Name in the table -> name in the audit of a run.
MEASURES = {
    "average": "output_margin",
    "easy": "output_margin_easy",
    "medium": "output_margin_medium",
    "hard": "output_margin_hard",
    "degrees": "classifier_margin_degrees",
}


def measure_margins(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the margins of a row, mean over its runs; None where a network has no class weights."""
    audits = [read_audit_part(run, "geometry") for run in runs]
    found = {
        name: [audit[key] for audit in audits if audit[key] is not None] for name, key in MEASURES.items()
    }
    return {name: float(np.mean(values)) if values else None for name, values in found.items()}


def margin_tables(record: Record) -> list[Table]:
    """Return margins, ours beside the paper's; then the usual tables."""

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        paper = row.paper or {}
        ours = {name: _shown(row.extras.get(name), name) for name in MEASURES}
        return {**ours, **{f"paper_{name}": _shown(paper.get(name), name) for name in MEASURES}}

    words = {
        name: "Smallest angle (degrees)" if name == "degrees" else name.capitalize() for name in MEASURES
    }
    columns = (
        *(Column(name, words[name], "value") for name in MEASURES),
        *(Column(f"paper_{name}", f"Paper {words[name].lower()}", "value") for name in MEASURES),
    )
    note = (
        "Output level: probability of the true class minus the largest other one, mean over test samples, by own-ranked "
        "thirds. Classifier level: smallest angle between the weights of two classes. Means over seeds."
    )
    return [
        table_of("Margins after training", record, columns, line, note),
        *default_tables(without_paper(record)),
    ]


def _shown(value: float | None, name: str) -> str:
    return NO_VALUE if value is None else f"{value:.1f}" if name == "degrees" else f"{value:.3f}"


register(
    Recipe(
        name="table-margins",
        source="table of output-level and classifier-level margins",
        question="Does MR² enlarge the margins that are left after training, most of all those of hard classes?",
        blocks=(cifar_block("resnet32"),),
        scales=cifar_scales("resnet32", 30, fraction=0.2),
        printed={"resnet32": MARGINS},
        doubts=(
            "data set and network of this table are not stated; CIFAR-100 with ResNet-32 is taken.",
            "the formula of the classifier-level margin is printed with w_j for both weights; w_i and w_j are meant.",
        ),
        extras=measure_margins,
        tables=margin_tables,
    )
)
