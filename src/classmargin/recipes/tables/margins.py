"""Did the margins grow? Output-level margins by third, and the smallest angle between class weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from classmargin.recipes.paper_values import MARGINS
from classmargin.recipes.reproduce.class_columns import read_audit_part
from classmargin.recipes.reproduce.grids import cifar_block
from classmargin.recipes.reproduce.recipe import Recipe, register
from classmargin.recipes.reproduce.record import BlockResult, Record, RowResult
from classmargin.recipes.reproduce.scales import laptop, paper, smoke
from classmargin.recipes.reproduce.views import default_tables, table_of, without_paper
from classmargin.report.tables import NO_VALUE, Column, Table
from classmargin.training.run_folder import RunFolder

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
        scales={
            "smoke": smoke(resnet32={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 20 % of the training data, ResNet-20, 30 epochs.",
                {"data": {"fraction": 0.2}, "backbone": {"name": "resnet20"}, "loop": {"epochs": 30}},
            ),
            "paper": paper(),
        },
        printed={"resnet32": MARGINS},
        doubts=(
            "data set and network of this table are not stated; CIFAR-100 with ResNet-32 is taken.",
            "the formula of the classifier-level margin is printed with w_j for both weights; w_i and w_j are meant.",
        ),
        extras=measure_margins,
        tables=margin_tables,
    )
)
