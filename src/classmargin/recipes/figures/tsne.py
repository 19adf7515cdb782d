"""t-SNE of a few hard classes: are their features more compact under MR²?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.reproduce.class_columns import class_column, thirds_of
from classmargin.recipes.reproduce.grids import cifar_block
from classmargin.recipes.reproduce.recipe import Folders, Recipe, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke
from classmargin.report.tables import Column, Table
from classmargin.training.run_folder import RunFolder

MOST_CLASSES = 8
SEED = 0


def hard_classes_map(record: Record, folders: Folders) -> dict[str, Any]:
    """Return places of the test samples of a few classes, drawn at random from the hard third of the baseline."""
    block = record.blocks[0]
    runs = folders[block.key]
    base = runs[block.rows[0].key]
    hard = thirds_of(class_column(base, "accuracy"))["hard"]
    rng = np.random.default_rng(SEED)
    chosen = np.sort(rng.choice(hard, min(MOST_CLASSES, len(hard)), replace=False))
    maps = {row.title: place(runs[row.key][0], chosen) for row in block.rows}
    return {"names": [block.class_names[k] for k in chosen], "maps": maps}


def place(run: RunFolder, classes: Any) -> dict[str, Any]:
    """Return the t-SNE map of one run's test features of some classes, and how compact the classes are."""
    from classmargin.report.feature_map import feature_map

    found = read_predictions(run.predictions_file)
    assert found.features is not None, "run folders hold features"
    rows = np.flatnonzero(np.isin(found.labels, classes))
    labels = np.searchsorted(classes, found.labels[rows]).astype(np.int64)
    features = np.asarray(found.features[rows], dtype=np.float32)
    placed = feature_map(features, labels, np.arange(len(classes)), seed=SEED)
    points = [] if placed is None else np.round(placed.points, 2).tolist()
    shown = [] if placed is None else placed.labels.tolist()
    return {"points": points, "labels": shown, "within_over_between": scatter_ratio(features, labels)}


def scatter_ratio(features: Any, labels: Any) -> float | None:
    """Return the spread within classes over the spread of the class means; smaller is more compact.

    Example:
        >>> scatter_ratio(np.array([[0.0], [2.0], [10.0], [12.0]]), np.array([0, 0, 1, 1]))
        0.04
    """
    means = np.stack([features[labels == k].mean(axis=0) for k in np.unique(labels)])
    within = np.mean(
        [
            ((features[labels == k] - means[i]) ** 2).sum(axis=1).mean()
            for i, k in enumerate(np.unique(labels))
        ]
    )
    between = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    return float(within / between) if between > 0 else None


def draw(data: Mapping[str, Any]) -> Any:
    """Return the maps side by side, one colour a class."""
    from classmargin.report.figure_parts import SERIES_COLOURS, empty_figure, plotly_text

    count = max(1, len(data["maps"]))
    figure = empty_figure(520)
    for position, (title, found) in enumerate(data["maps"].items()):
        axis = "" if position == 0 else str(position + 1)
        points, labels = np.array(found["points"]).reshape(-1, 2), np.array(found["labels"])
        for number, name in enumerate(data["names"]):
            mine = points[labels == number]
            figure.add_scatter(
                x=mine[:, 0].tolist(),
                y=mine[:, 1].tolist(),
                mode="markers",
                name=plotly_text(name, longest=24),
                legendgroup=str(number),
                showlegend=position == 0,
                xaxis=f"x{axis}",
                yaxis=f"y{axis}",
                marker={"color": SERIES_COLOURS[number % len(SERIES_COLOURS)], "size": 6},
            )
        share = [position / count + 0.01, (position + 1) / count - 0.01]
        words = {"text": plotly_text(title), "standoff": 4}
        figure.update_layout(
            {
                f"xaxis{axis}": {
                    "domain": share,
                    "showticklabels": False,
                    "title": words,
                    "anchor": f"y{axis}",
                },
                f"yaxis{axis}": {"visible": False, "anchor": f"x{axis}"},
            }
        )
    return figure


def tables(record: Record) -> list[Table]:
    """Return how compact the drawn classes are under each method."""
    data = record.figure or {"maps": {}, "names": []}
    lines = [{"title": title, "ratio": found["within_over_between"]} for title, found in data["maps"].items()]
    columns = (Column("title", "Method"), Column("ratio", "Spread within / between", "number"))
    note = f"Features (not the map) of the test samples of {', '.join(data['names'])}; first seed; smaller is more compact."
    return [Table("Compactness of hard classes", columns, lines, note)]


register(
    Recipe(
        name="figure-tsne",
        source="figure of t-SNE maps of hard CIFAR-100 classes",
        question="Are the features of hard classes more compact and better separated under MR²?",
        blocks=(cifar_block("resnet32"),),
        scales={
            "smoke": smoke(resnet32={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 20 % of the training data, ResNet-20, 30 epochs.",
                {"data": {"fraction": 0.2}, "backbone": {"name": "resnet20"}, "loop": {"epochs": 30}},
            ),
            "paper": paper(),
        },
        doubts=("network and classes of this figure are not stated.",),
        tables=tables,
        figure=hard_classes_map,
        draw=draw,
    )
)
