"""Class by class on CIFAR-10 with a tenth of the training data."""

from __future__ import annotations

from typing import Any

from classmargin.recipes.paper_values import DOUBTS, PER_CLASS, PER_CLASS_NAMES
from classmargin.recipes.reproduce.recipe import Block, Recipe, Row, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke
from classmargin.recipes.reproduce.views import default_tables
from classmargin.report.tables import Column, Table


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
    """Return one line a class, one pair of columns (ours, the paper's) a row of the recipe."""
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
