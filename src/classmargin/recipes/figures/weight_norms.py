"""Lengths of the class weights: is one bound Λ for all classes a fair assumption?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from classmargin.recipes.reproduce.class_columns import class_column, third_means
from classmargin.recipes.reproduce.grids import SMALL_IMAGENET_LAPTOP, imagenet_block
from classmargin.recipes.reproduce.recipe import Folders, Recipe, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke_pretrained
from classmargin.report.tables import Column, Table


def weight_norms(record: Record, folders: Folders) -> dict[str, Any]:
    """Return ``‖w_k‖`` of every class in descending order of accuracy, for each method."""
    block = record.blocks[0]
    found = {}
    for row in block.rows:
        runs = folders[block.key][row.key]
        norms, accuracy = class_column(runs, "weight_norm"), class_column(runs, "accuracy")
        order = np.argsort(-accuracy, kind="stable")
        found[row.title] = {
            "names": [block.class_names[k] for k in order],
            "norms": norms[order].tolist(),
            "mean": float(norms.mean()),
            "variation": float(norms.std() / norms.mean()),
            "by_third": third_means(norms, accuracy),
        }
    return {"methods": found}


def draw(data: Mapping[str, Any]) -> Any:
    """Return the lengths over the rank of the class."""
    from classmargin.report.figure_parts import SERIES_COLOURS, empty_figure, plotly_text, titled_axis

    figure = empty_figure(
        420, xaxis=titled_axis("classes, best first"), yaxis=titled_axis("‖w‖", rangemode="tozero")
    )
    for colour, (title, method) in zip(SERIES_COLOURS, data["methods"].items(), strict=False):
        figure.add_scatter(
            x=list(range(1, len(method["norms"]) + 1)),
            y=method["norms"],
            text=[plotly_text(name, longest=60) for name in method["names"]],
            mode="markers",
            name=plotly_text(title),
            marker={"color": colour, "size": 6},
        )
    return figure


def tables(record: Record) -> list[Table]:
    """Return mean length, variation and the mean of each third."""
    lines = [
        {"title": title, "mean": method["mean"], "variation": method["variation"], **method["by_third"]}
        for title, method in (record.figure or {"methods": {}})["methods"].items()
    ]
    columns = (
        Column("title", "Method"),
        Column("mean", "Mean ‖w‖", "number"),
        Column("variation", "Std / mean", "number"),
        *(Column(name, name.capitalize(), "number") for name in ("easy", "medium", "hard")),
    )
    note = "Lengths of the class weights of the classifier, mean over seeds; thirds by own accuracies."
    return [Table("Lengths of class weights", columns, lines, note)]


register(
    Recipe(
        name="figure-weight-norms",
        source="figure of the weight norms on ImageNet",
        question="Are the class weights of a trained classifier of equal length?",
        blocks=(imagenet_block("resnet50"),),
        scales={
            "smoke": smoke_pretrained({"resnet50": "resnet50"}),
            "laptop": laptop(
                "a tenth of CIFAR-100 in place of ImageNet, ResNet-20, 40 epochs.",
                SMALL_IMAGENET_LAPTOP,
                preset="cifar",
            ),
            "paper": paper(),
        },
        tables=tables,
        figure=weight_norms,
        draw=draw,
    )
)
