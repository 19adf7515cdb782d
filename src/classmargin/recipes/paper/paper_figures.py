"""Figures: accuracy and spread of classes, lengths of class weights, t-SNE maps, spreads during training, losses of the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from classmargin.evaluation.class_metrics import TIERS
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes import recipe as parts
from classmargin.recipes.class_measures import Values, class_column, read_spreads, third_means, thirds_of
from classmargin.recipes.recipe import Folders, Recipe, Scale, network_block
from classmargin.recipes.record import BlockResult, Record, headline_columns
from classmargin.report import figures as draw
from classmargin.report.tables import Column, Table
from classmargin.theory.margin_losses import margin_loss
from classmargin.training.run_folder import RunFolder


def _stored(record: Record, part: str) -> Any:
    """Return a part of the figure's data; nothing for a record without a figure."""
    return (record.figure or {}).get(part, {})


SPREAD_NETWORKS = ("resnet50", "mae-vit-b16")


def accuracy_and_spread(record: Record, folders: Folders) -> dict[str, Any]:
    """Return classes in descending order of accuracy with their spread ``‖ŝ_y‖``, for each network."""
    found = {}
    for block in record.blocks:
        runs = folders[block.key][block.rows[0].key]
        accuracy, spread = class_column(runs, "accuracy"), np.sqrt(class_column(runs, "spread"))
        found[block.title] = {
            **_best_first(block, accuracy, accuracy=accuracy, spread=spread),
            "correlation": _rank_correlation(accuracy, spread),
            "spread_by_third": third_means(spread, accuracy),
            "accuracy_by_third": third_means(accuracy, accuracy),
        }
    return {"networks": found}


def _best_first(block: BlockResult, accuracy: Values, /, **columns: Values) -> dict[str, Any]:
    """Return names and values of the classes in descending order of accuracy."""
    order = np.argsort(-accuracy, kind="stable")
    return {"names": [block.class_names[k] for k in order]} | {key: v[order].tolist() for key, v in columns.items()}


def _rank_correlation(x: Any, y: Any) -> float | None:
    """Return Spearman's correlation, or None where one side does not vary."""
    from scipy.stats import spearmanr

    usable = np.isfinite(x) & np.isfinite(y)
    if usable.sum() < 3 or np.ptp(x[usable]) == 0 or np.ptp(y[usable]) == 0:
        return None
    return float(spearmanr(x[usable], y[usable]).statistic)


def _over_rank(found: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return the values of a trace over the rank of the classes, best first."""
    text = [draw.plotly_text(name, longest=60) for name in found["names"]]
    return {"x": list(range(1, len(text) + 1)), "y": found[column], "text": text}


def draw_spread(data: Mapping[str, Any]) -> Any:
    """Return accuracy (left axis) and spread (right axis) over the rank of the class."""
    right = draw.titled_axis("spread ‖ŝ‖ (points)", overlaying="y", side="right")
    axes = {"xaxis": draw.titled_axis("classes, best first"), "yaxis": draw.percent_axis("accuracy (lines)")}
    figure = draw.empty_figure(460, **axes, yaxis2=right)
    for colour, (title, network) in zip(draw.SERIES_COLOURS, data["networks"].items(), strict=False):
        name, marker = draw.plotly_text(title, longest=40), {"color": colour, "size": 5, "opacity": 0.6}
        figure.add_scatter(**_over_rank(network, "accuracy"), name=f"{name}, accuracy", line={"color": colour})
        spread = _over_rank(network, "spread")
        figure.add_scatter(**spread, name=f"{name}, spread", mode="markers", marker=marker, yaxis="y2")
    return figure


def spread_tables(record: Record) -> list[Table]:
    """Return accuracy and spread of each third."""
    networks = _stored(record, "networks")
    lines = [
        {"network": title, "tier": tier, "accuracy": accuracy, "spread": network["spread_by_third"][tier]}
        for title, network in networks.items()
        for tier, accuracy in network["accuracy_by_third"].items()
    ]
    names = (Column("network", "Setting"), Column("tier", "Third"))
    columns = (*names, Column("accuracy", "Accuracy", "percent"), Column("spread", "Spread ‖ŝ‖", "number"))
    known = {title: found["correlation"] for title, found in networks.items()}
    words = [f"{title}: {value:+.2f}" for title, value in known.items() if value is not None]
    note = f"Rank correlation of accuracy and spread over classes: {'; '.join(words) or 'not defined'}. Test features, mean over seeds."
    return [Table("Accuracy and spread by third", columns, lines, note)]


def weight_norms(record: Record, folders: Folders) -> dict[str, Any]:
    """Return ``‖w_k‖`` of every class in descending order of accuracy, for each method."""
    block, found = record.blocks[0], {}
    for row in block.rows:
        runs = folders[block.key][row.key]
        norms, accuracy = class_column(runs, "weight_norm"), class_column(runs, "accuracy")
        found[row.title] = {
            **_best_first(block, accuracy, norms=norms),
            "mean": float(norms.mean()),
            "variation": float(norms.std() / norms.mean()),
            "by_third": third_means(norms, accuracy),
        }
    return {"methods": found}


def draw_norms(data: Mapping[str, Any]) -> Any:
    """Return the lengths over the rank of the class."""
    length = draw.titled_axis("‖w‖", rangemode="tozero")
    figure = draw.empty_figure(420, xaxis=draw.titled_axis("classes, best first"), yaxis=length)
    for colour, (title, method) in zip(draw.SERIES_COLOURS, data["methods"].items(), strict=False):
        style = {"mode": "markers", "name": draw.plotly_text(title), "marker": {"color": colour, "size": 6}}
        figure.add_scatter(**_over_rank(method, "norms"), **style)
    return figure


def norm_tables(record: Record) -> list[Table]:
    """Return mean length, variation and the mean of each third."""
    methods = _stored(record, "methods")
    lines = [{"title": title, **found, **found["by_third"]} for title, found in methods.items()]
    own = (Column("title", "Method"), Column("mean", "Mean ‖w‖", "number"), Column("variation", "Std / mean", "number"))
    note = "Lengths of the class weights of the classifier, mean over seeds; thirds by own accuracies."
    return [Table("Lengths of class weights", (*own, *headline_columns(TIERS, "number")), lines, note)]


MOST_CLASSES = 8
SEED = 0


def hard_classes_map(record: Record, folders: Folders) -> dict[str, Any]:
    """Return places of the test samples of a few classes, drawn at random from the hard third of the baseline."""
    block = record.blocks[0]
    runs = folders[block.key]
    hard = thirds_of(class_column(runs[block.rows[0].key], "accuracy"))["hard"]
    chosen = np.sort(np.random.default_rng(SEED).choice(hard, min(MOST_CLASSES, len(hard)), replace=False))
    maps = {row.title: map_of_run(runs[row.key][0], chosen) for row in block.rows}
    return {"names": [block.class_names[k] for k in chosen], "maps": maps}


def map_of_run(run: RunFolder, classes: Any) -> dict[str, Any]:
    """Return the t-SNE map of one run's test features of some classes, and their spread within over that of the class means."""
    found = read_predictions(run.predictions_file)
    assert found.features is not None, "run folders hold features"
    rows = np.flatnonzero(np.isin(found.labels, classes))
    labels = np.searchsorted(classes, found.labels[rows]).astype(np.int64)
    features = np.asarray(found.features[rows], dtype=np.float32)
    placed = draw.feature_map(features, labels, np.arange(len(classes)), seed=SEED)
    points, shown = ([], []) if placed is None else (np.round(placed.points, 2).tolist(), placed.labels.tolist())
    groups = [features[labels == k] for k in np.unique(labels)]
    means = np.stack([group.mean(axis=0) for group in groups])
    pairs = zip(groups, means, strict=True)
    within = np.mean([((group - mean) ** 2).sum(axis=1).mean() for group, mean in pairs])
    between = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    ratio = float(within / between) if between > 0 else None
    return {"points": points, "labels": shown, "within_over_between": ratio}


def draw_maps(data: Mapping[str, Any]) -> Any:
    """Return the maps side by side, one colour per class."""
    count = max(1, len(data["maps"]))
    figure = draw.empty_figure(520)
    for position, (title, found) in enumerate(data["maps"].items()):
        axis = "" if position == 0 else str(position + 1)
        points, labels = np.array(found["points"]).reshape(-1, 2), np.array(found["labels"])
        for number, name in enumerate(data["names"]):
            across, up = points[labels == number].T.tolist()
            figure.add_scatter(
                x=across,
                y=up,
                mode="markers",
                name=draw.plotly_text(name, longest=24),
                legendgroup=str(number),
                showlegend=position == 0,
                xaxis=f"x{axis}",
                yaxis=f"y{axis}",
                marker={"color": draw.SERIES_COLOURS[number % len(draw.SERIES_COLOURS)], "size": 6},
            )
        share = [position / count + 0.01, (position + 1) / count - 0.01]
        words = {"text": draw.plotly_text(title), "standoff": 4}
        below = {"domain": share, "showticklabels": False, "title": words, "anchor": f"y{axis}"}
        figure.update_layout({f"xaxis{axis}": below, f"yaxis{axis}": {"visible": False, "anchor": f"x{axis}"}})
    return figure


def compactness_tables(record: Record) -> list[Table]:
    """Return how compact the drawn classes are under each method."""
    maps, names = _stored(record, "maps"), ", ".join(_stored(record, "names"))
    lines = [{"title": title, "ratio": found["within_over_between"]} for title, found in maps.items()]
    columns = (Column("title", "Method"), Column("ratio", "Spread within / between", "number"))
    note = f"Features (not the map) of the test samples of {names}; first seed; smaller is more compact."
    return [Table("Compactness of hard classes", columns, lines, note)]


def spread_evolution(record: Record, folders: Folders) -> dict[str, Any]:
    """Return the mean of ``‖ŝ_y‖`` over the classes of each third by epoch, mean over runs, for each method."""
    block = record.blocks[0]
    return {"methods": {row.title: _spread_by_third(folders[block.key][row.key]) for row in block.rows}}


def _spread_by_third(runs: Sequence[RunFolder]) -> dict[str, Any]:
    curves = []
    for run in runs:
        accuracy, by_epoch = class_column([run], "accuracy"), read_spreads(run).items()
        roots = {epoch: np.sqrt(np.array(spread, dtype=float)) for epoch, spread in by_epoch}
        curves.append({epoch: third_means(spread, accuracy) for epoch, spread in roots.items()})
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    found: dict[str, Any] = {"epochs": epochs}
    for tier in TIERS:
        values = [[curve[epoch][tier] for curve in curves] for epoch in epochs]
        known = [[value for value in found if value is not None] for found in values]
        found[tier] = [float(np.mean(one)) if one else None for one in known]
    return found


def draw_evolution(data: Mapping[str, Any]) -> Any:
    """Return one line per third and method."""
    height = draw.titled_axis("‖ŝ‖", rangemode="tozero")
    figure = draw.empty_figure(440, xaxis=draw.titled_axis("epoch"), yaxis=height)
    for dash, (title, curves) in zip(("dot", "solid", "dash"), data["methods"].items(), strict=False):
        for tier in TIERS:
            name, line = f"{draw.plotly_text(title)}, {tier}", {"color": draw.TIER_COLOURS[tier], "dash": dash}
            figure.add_scatter(x=curves["epochs"], y=curves[tier], name=name, line=line)
    return figure


def evolution_tables(record: Record) -> list[Table]:
    """Return the spread of each third at the first and last epoch, and the gap between hard and easy."""
    lines = []
    for title, curves in _stored(record, "methods").items():
        for position, words in ((0, "first"), (-1, "last")):
            values = {tier: curves[tier][position] for tier in TIERS}
            gap = None if None in (values["easy"], values["hard"]) else values["hard"] - values["easy"]
            when = f"{words} ({curves['epochs'][position]})"
            lines.append({"title": title, "when": when, **values, "gap": gap})
    names = (Column("title", "Method"), Column("when", "Epoch"))
    columns = (*names, *headline_columns(TIERS, "number"), Column("gap", "Hard − easy", "number"))
    note = "Mean ‖ŝ‖ of the classes of each third (ranked by test accuracy at the end) on validation samples, mean over seeds."
    return [Table("Spread during training", columns, lines, note)]


GRID = np.round(np.linspace(-1.0, 3.0, 161), 4)


def loss_curves(_record: Record, _folders: Folders) -> dict[str, Any]:
    """Return each loss on a grid of margins u; the ramp is Φ_γ with γ = 1."""
    curves = {"0-1": (GRID <= 0).astype(float).tolist(), "ramp": margin_loss(GRID, 1.0).tolist()}
    curves |= {f"Φ_γ, γ = {gamma:g}": margin_loss(GRID, gamma).tolist() for gamma in (0.5, 2.0)}
    return {"margin": GRID.tolist(), "losses": curves}


def draw_losses(data: Mapping[str, Any]) -> Any:
    """Return the curves as a plotly figure."""
    figure = draw.empty_figure(420, xaxis=draw.titled_axis("prediction margin u"), yaxis=draw.titled_axis("loss"))
    for colour, (name, values) in zip(draw.SERIES_COLOURS, data["losses"].items(), strict=False):
        shape = "hv" if name == "0-1" else "linear"
        figure.add_scatter(x=data["margin"], y=values, name=name, line={"color": colour, "shape": shape})
    return figure


def loss_table(record: Record) -> list[Table]:
    """Return the losses at a few margins."""
    margins, losses = list(_stored(record, "margin")), _stored(record, "losses")
    shown = [u for u in (-0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0) if u in margins]
    lines = [{"u": f"{u:g}", **{name: values[margins.index(u)] for name, values in losses.items()}} for u in shown]
    columns = (Column("u", "u", "value"), *(Column(name, name, "number") for name in losses))
    return [Table("Loss at a margin u", columns, lines, "The 0-1 loss is never above the others.")]


_FORMULAS = Scale("three formulas; nothing is trained.")
_HELD_OUT = "the published protocol, but with a twentieth of the training samples held out to measure spreads on."

RECIPES = (
    Recipe(
        "figure-class-accuracy-and-spread",
        "Figure 1, class accuracies and feature spreads on ImageNet",
        "How unequal are the classes, and do hard classes have the larger spread?",
        tuple(network_block(name, parts.methods("erm")) for name in SPREAD_NETWORKS),
        parts.scratch_scales(leave_out={"mae-vit-b16": "fine-tuning it needs a GPU"}),
        doubts=("the figure is drawn from public supervised models, whose training is not stated.",),
        tables=spread_tables,
        figure=accuracy_and_spread,
        draw=draw_spread,
    ),
    Recipe(
        "figure-weight-norms",
        "figure of the weight norms on ImageNet",
        "Are the class weights of a trained classifier of equal length?",
        (network_block("resnet50"),),
        parts.scratch_scales(),
        tables=norm_tables,
        figure=weight_norms,
        draw=draw_norms,
    ),
    Recipe(
        "figure-tsne",
        "figure of t-SNE maps of hard CIFAR-100 classes",
        "Are the features of hard classes more compact and better separated under MR²?",
        (network_block("resnet32"),),
        parts.cifar_scales(30, fraction=0.2),
        doubts=("network and classes of this figure are not stated.",),
        tables=compactness_tables,
        figure=hard_classes_map,
        draw=draw_maps,
    ),
    Recipe(
        "figure-spread-evolution",
        "figure of the evolving ‖ŝ_y‖, ResNet-50 from scratch on ImageNet",
        "Does MR² keep the spreads of hard classes near those of easy ones during training?",
        (network_block("resnet50"),),
        parts.scratch_scales(
            more="; spreads of the validation samples", published=parts.paper(_HELD_OUT, data={"validation": 0.05})
        ),
        doubts=("it is not said on which samples the spread is measured.",),
        tables=evolution_tables,
        figure=spread_evolution,
        draw=draw_evolution,
        watch_spread=True,
    ),
    Recipe(
        "figure-loss-shapes",
        "figure of the 0-1 loss, the ramp loss and Φ_γ",
        "How does the class-margin loss lie above the 0-1 loss?",
        (),
        dict.fromkeys(parts.SCALES, _FORMULAS),
        tables=loss_table,
        figure=loss_curves,
        draw=draw_losses,
    ),
)
