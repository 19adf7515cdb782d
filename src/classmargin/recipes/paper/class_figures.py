"""Figures of classes after training: accuracy and spread (Figure 1), lengths of class weights, t-SNE maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.class_measures import class_column, third_means, thirds_of
from classmargin.recipes.recipe import Folders, Recipe, Row, register
from classmargin.recipes.recipe_settings import (
    cifar_block,
    cifar_scales,
    imagenet_block,
    scratch_scales,
)
from classmargin.recipes.record import Record
from classmargin.report.tables import Column, Table
from classmargin.training.run_folder import RunFolder

SPREAD_NETWORKS = ("resnet50", "mae-vit-b16")
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


def draw_spread(data: Mapping[str, Any]) -> Any:
    """Return accuracy (left axis) and spread (right axis) over the rank of the class."""
    from classmargin.report.figures import (
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


def spread_tables(record: Record) -> list[Table]:
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
        blocks=tuple(imagenet_block(name, ONLY_ERM) for name in SPREAD_NETWORKS),
        scales=scratch_scales(*SPREAD_NETWORKS, leave_out={"mae-vit-b16": "fine-tuning it needs a GPU"}),
        doubts=("the figure is drawn from public supervised models, whose training is not stated.",),
        tables=spread_tables,
        figure=accuracy_and_spread,
        draw=draw_spread,
    )
)


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


def draw_norms(data: Mapping[str, Any]) -> Any:
    """Return the lengths over the rank of the class."""
    from classmargin.report.figures import SERIES_COLOURS, empty_figure, plotly_text, titled_axis

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


def norm_tables(record: Record) -> list[Table]:
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
        scales=scratch_scales("resnet50"),
        tables=norm_tables,
        figure=weight_norms,
        draw=draw_norms,
    )
)


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
    maps = {row.title: map_of_run(runs[row.key][0], chosen) for row in block.rows}
    return {"names": [block.class_names[k] for k in chosen], "maps": maps}


def map_of_run(run: RunFolder, classes: Any) -> dict[str, Any]:
    """Return the t-SNE map of one run's test features of some classes, and how compact the classes are."""
    from classmargin.report.figures import feature_map

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


def draw_maps(data: Mapping[str, Any]) -> Any:
    """Return the maps side by side, one colour per class."""
    from classmargin.report.figures import SERIES_COLOURS, empty_figure, plotly_text

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


def compactness_tables(record: Record) -> list[Table]:
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
        scales=cifar_scales("resnet32", 30, fraction=0.2),
        doubts=("network and classes of this figure are not stated.",),
        tables=compactness_tables,
        figure=hard_classes_map,
        draw=draw_maps,
    )
)
