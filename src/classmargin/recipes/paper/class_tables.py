"""Tables that look at single classes or margins: per-class accuracies, spreads on MNIST, margins after training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classmargin.recipes import paper_values as published
from classmargin.recipes import recipe as parts
from classmargin.recipes.class_measures import read_audit_part, training_geometry
from classmargin.recipes.recipe import Block, Recipe, given, network_block
from classmargin.recipes.record import BlockResult, Record, RowResult, default_tables, table_of, without_paper
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.run_folder import RunFolder


def _printed_classes(values: Sequence[float]) -> dict[str, Any]:
    by_class = dict(zip(published.PER_CLASS_NAMES, values, strict=True))
    return {"overall": sum(values) / len(values), "worst": min(values), "by_class": by_class}


def per_class_tables(record: Record) -> list[Table]:
    """Return every class with our accuracies and the paper's, best of the baseline first; then the usual tables."""
    block = record.blocks[0]
    first, last, names = block.rows[0], block.rows[-1], block.class_names
    found = [(Column(f"ours{n}", row.title, "percent"), row.by_class) for n, row in enumerate(block.rows)]
    if first is not last:
        changes = tuple(after - before for before, after in zip(first.by_class, last.by_class, strict=True))
        found.append((Column("change", f"{last.title} − {first.title}", "points"), changes))
    for n, row in enumerate(block.rows):
        if printed := (row.paper or {}).get("by_class"):
            values: Any = tuple(f"{printed[name]:.1f}" if name in printed else None for name in names)
            found.append((Column(f"paper{n}", f"Paper {row.title}", "value"), values))
    lines = [
        {"name": name, **{column.key: values[k] for column, values in found}}
        for k, name in sorted(enumerate(names), key=lambda known: -first.by_class[known[0]])
    ]
    columns = (Column("name", "Class"), *(column for column, _ in found))
    note = "Accuracy of each class, mean over seeds; classes are sorted by the first row."
    return [Table("Accuracy of every class", columns, lines, note), *default_tables(record)]


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
    measured = zip(block.class_names, extras["spread"], extras["mean_norm"], strict=True)
    lines = [{"name": name, "spread": spread, "mean_norm": length} for name, spread, length in measured]
    for line, spread, length in zip(lines, published.MNIST_SPREAD, published.MNIST_MEAN_NORM, strict=False):
        line |= {"paper_spread": spread, "paper_mean_norm": length}
    titles = {"spread": "‖ŝ‖", "mean_norm": "‖μ̂‖", "paper_spread": "Paper ‖ŝ‖", "paper_mean_norm": "Paper ‖μ̂‖"}
    columns = (Column("name", "Class"), *(Column(name, title, "number") for name, title in titles.items()))
    note = (
        f"Features of the training set. Mean of ‖ŝ‖/‖μ̂‖ over classes: ours {extras['ratio']:.3g}, the paper's "
        f"{published.MNIST_RATIO:.2g} on MNIST and {published.IMAGENET_RATIO} on ImageNet. "
        "The paper numbers classes from 1; they are taken in order."
    )
    return [Table("Spread and length of class means", columns, lines, note), *default_tables(record)]


# Name in the table -> title, name in the audit of a run, digits.
MEASURES = {
    "average": ("Average", "output_margin", 3),
    "easy": ("Easy", "output_margin_easy", 3),
    "medium": ("Medium", "output_margin_medium", 3),
    "hard": ("Hard", "output_margin_hard", 3),
    "degrees": ("Smallest angle (degrees)", "classifier_margin_degrees", 1),
}


def measure_margins(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the margins of a row, mean over its runs; None where a network has no class weights."""
    audits = [read_audit_part(run, "geometry") for run in runs]
    found = {name: [audit[key] for audit in audits if audit[key] is not None] for name, (_, key, _) in MEASURES.items()}
    return {name: float(np.mean(values)) if values else None for name, values in found.items()}


def margin_tables(record: Record) -> list[Table]:
    """Return margins, ours beside the paper's; then the usual tables."""

    def shown(value: float | None, digits: int) -> str:
        return NO_VALUE if value is None else f"{value:.{digits}f}"

    def line(_: BlockResult, row: RowResult) -> dict[str, Any]:
        found = {"": row.extras, "paper_": row.paper or {}}
        cells = [(whose, name, digits) for whose in found for name, (_, _, digits) in MEASURES.items()]
        return {f"{whose}{name}": shown(found[whose].get(name), digits) for whose, name, digits in cells}

    titles = {name: title for name, (title, _, _) in MEASURES.items()}
    titles |= {f"paper_{name}": f"Paper {title.lower()}" for name, title in titles.items()}
    columns = [Column(name, title, "value") for name, title in titles.items()]
    note = (
        "Output level: probability of the true class minus the largest other one, mean over test samples, by own-ranked "
        "thirds. Classifier level: smallest angle between the weights of two classes. Means over seeds."
    )
    margins = table_of("Margins after training", record, columns, line, note)
    return [margins, *default_tables(without_paper(record))]


RECIPES = (
    Recipe(
        "table-per-class-cifar10",
        "table of per-class accuracies, CIFAR-10 with 10 % of the training data",
        "Which classes gain, and by how much, when there are few training images?",
        (
            Block(
                "cifar10",
                "CIFAR-10 (10 %), ResNet-32",
                parts.ERM_AND_MR2,
                settings=given("data.name=cifar10 data.fraction=0.1"),
                files={"cifar10_10pct": given("data.fraction=1.0")},
            ),
        ),
        parts.laptop_scales(
            "CIFAR-10 with 500 training images a class (450 after validation), ResNet-20, 50 epochs.",
            "backbone.name=resnet20 loop.epochs=50",
        ),
        printed={"cifar10": {name: _printed_classes(values) for name, values in published.PER_CLASS.items()}},
        doubts=(
            "network, epochs and repeats of this table are not stated; ResNet-32 is taken, as in the tables around it.",
            published.DOUBTS["hyperparameters"],
        ),
        tables=per_class_tables,
    ),
    Recipe(
        "table-mnist-collapse",
        "table of class spreads and means on MNIST with ResNet-18",
        "Does the spread within classes vanish when the task is easy?",
        (
            Block(
                "mnist",
                "MNIST, ResNet-18",
                parts.methods("erm"),
                "imagenet-scratch",
                given("data.name=mnist backbone.name=resnet18 backbone.stem=cifar"),
            ),
        ),
        parts.laptop_scales(
            "the embedded part of Fashion-MNIST (450 training images a class) in place of MNIST, ResNet-18 with a quarter of its "
            "channels, 25 epochs, no augmentation.",
            "data.name=fashion-mnist-mini data.augmentation=none backbone.width=16 loop.epochs=25",
        ),
        printed={
            "mnist": {"erm": {"spread": list(published.MNIST_SPREAD), "mean_norm": list(published.MNIST_MEAN_NORM)}}
        },
        doubts=(
            "classes 7 and 8 are printed with the same mean length 6.4091.",
            "it is not said whether training or test features were measured (training features are taken).",
            "it is not said how 28-pixel images were shown to ResNet-18 (a 3x3 stem is taken).",
        ),
        extras=measure_collapse,
        tables=collapse_tables,
    ),
    Recipe(
        "table-margins",
        "table of output-level and classifier-level margins",
        "Does MR² enlarge the margins that are left after training, most of all those of hard classes?",
        (network_block("resnet32"),),
        parts.cifar_scales(30, fraction=0.2),
        printed={"resnet32": published.MARGINS},
        doubts=(
            "data set and network of this table are not stated; CIFAR-100 with ResNet-32 is taken.",
            "the formula of the classifier-level margin is printed with w_j for both weights; w_i and w_j are meant.",
        ),
        extras=measure_margins,
        tables=margin_tables,
    ),
)
