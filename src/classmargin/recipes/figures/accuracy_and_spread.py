"""Figure 1: accuracy of every class, and the spread of its features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from classmargin.recipes.reproduce.class_columns import class_column, third_means
from classmargin.recipes.reproduce.grids import SMALL_IMAGENET_LAPTOP, imagenet_block
from classmargin.recipes.reproduce.recipe import Folders, Recipe, Row, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke_pretrained
from classmargin.report.tables import Column, Table

NETWORKS = ("resnet50", "mae-vit-b16")
ONLY_ERM = (Row("erm", "erm"),)


def accuracy_and_spread(record: Record, folders: Folders) -> dict[str, Any]:
    """Return classes in descending order of accuracy with their spread ``‖ŝ_y‖``, for each network."""
    found = {}
    for block in record.blocks:
        runs = folders[block.key][block.rows[0].key]
        accuracy, spread = class_column(runs, "accuracy"), np.sqrt(class_column(runs, "spread"))
        order = np.argsort(-accuracy, kind="stable")
        found[block.title] = {
            "names": [block.class_names[k] for k in order],
            "accuracy": accuracy[order].tolist(),
            "spread": spread[order].tolist(),
            "correlation": rank_correlation(accuracy, spread),
            "spread_by_third": third_means(spread, accuracy),
            "accuracy_by_third": third_means(accuracy, accuracy),
        }
    return {"networks": found}


def rank_correlation(x: Any, y: Any) -> float | None:
    """Return Spearman's correlation, or None where one side does not vary."""
    from scipy.stats import rankdata

    usable = np.isfinite(x) & np.isfinite(y)
    if usable.sum() < 3 or np.ptp(x[usable]) == 0 or np.ptp(y[usable]) == 0:
        return None
    return float(np.corrcoef(rankdata(x[usable]), rankdata(y[usable]))[0, 1])


def draw(data: Mapping[str, Any]) -> Any:
    """Return accuracy (left axis) and spread (right axis) over the rank of the class."""
    from classmargin.report.figure_parts import (
        SERIES_COLOURS,
        empty_figure,
        percent_axis,
        plotly_text,
        titled_axis,
    )

    figure = empty_figure(
        460,
        xaxis=titled_axis("classes, best first"),
        yaxis=percent_axis("accuracy (lines)"),
        yaxis2=titled_axis("spread ‖ŝ‖ (points)", overlaying="y", side="right"),
    )
    for colour, (title, network) in zip(SERIES_COLOURS, data["networks"].items(), strict=False):
        rank = list(range(1, len(network["names"]) + 1))
        text = [plotly_text(name, longest=60) for name in network["names"]]
        name = plotly_text(title, longest=40)
        figure.add_scatter(
            x=rank, y=network["accuracy"], text=text, name=f"{name}, accuracy", line={"color": colour}
        )
        figure.add_scatter(
            x=rank,
            y=network["spread"],
            text=text,
            name=f"{name}, spread",
            yaxis="y2",
            mode="markers",
            marker={"color": colour, "size": 5, "opacity": 0.6},
        )
    return figure


def tables(record: Record) -> list[Table]:
    """Return accuracy and spread of each third."""
    lines = []
    for title, network in (record.figure or {"networks": {}})["networks"].items():
        for tier, accuracy in network["accuracy_by_third"].items():
            spread = network["spread_by_third"][tier]
            lines.append({"network": title, "tier": tier, "accuracy": accuracy, "spread": spread})
    columns = (
        Column("network", "Setting"),
        Column("tier", "Third"),
        Column("accuracy", "Accuracy", "percent"),
        Column("spread", "Spread ‖ŝ‖", "number"),
    )
    words = [
        f"{title}: {network['correlation']:+.2f}"
        for title, network in (record.figure or {"networks": {}})["networks"].items()
        if network["correlation"] is not None
    ]
    note = f"Rank correlation of accuracy and spread over classes: {'; '.join(words) or 'not defined'}. Test features, mean over seeds."
    return [Table("Accuracy and spread by third", columns, lines, note)]


register(
    Recipe(
        name="figure-class-accuracy-and-spread",
        source="Figure 1, class accuracies and feature spreads on ImageNet",
        question="How unequal are the classes, and do hard classes have the larger spread?",
        blocks=tuple(imagenet_block(name, ONLY_ERM) for name in NETWORKS),
        scales={
            "smoke": smoke_pretrained({name: name for name in NETWORKS}),
            "laptop": laptop(
                "a tenth of CIFAR-100 in place of ImageNet, ResNet-20, 40 epochs.",
                SMALL_IMAGENET_LAPTOP,
                preset="cifar",
                leave_out={"mae-vit-b16": "fine-tuning it needs a GPU"},
            ),
            "paper": paper(),
        },
        doubts=("the figure is drawn from public supervised models, whose training is not stated.",),
        tables=tables,
        figure=accuracy_and_spread,
        draw=draw,
    )
)
