"""Figures of spreads during training and of the losses of the theory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from classmargin._files import LONG_FILE, read_text
from classmargin.recipes.class_measures import SPREAD_FILE, class_column, third_means
from classmargin.recipes.recipe import Folders, Recipe, Scale, register
from classmargin.recipes.recipe_settings import (
    imagenet_block,
    paper,
    scratch_scales,
)
from classmargin.recipes.record import Record
from classmargin.report.tables import Column, Table
from classmargin.theory.margin_losses import margin_loss
from classmargin.training.run_folder import RunFolder

TIERS = ("easy", "medium", "hard")


def read_spreads(run: RunFolder) -> dict[int, list[float | None]]:
    """Return ``‖ŝ_y‖²`` of every class by epoch; of an epoch noted twice (a resumed run) the later line counts.

    Half a line, left by a killed writer, is passed over: that epoch was noted again.
    """
    path = run.path / SPREAD_FILE
    if not path.exists():
        raise ValueError(f"{run.path} has no {SPREAD_FILE}: it was not trained by this recipe")
    found = {}
    for line in read_text(path, max_bytes=LONG_FILE, errors="replace").splitlines():
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(line)
            found[int(record["epoch"])] = record["spread"]
    return found


def spread_by_third(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the mean of ``‖ŝ_y‖`` over the classes of each third by epoch, mean over runs."""
    curves = []
    for run in runs:
        accuracy = class_column([run], "accuracy")
        by_epoch = read_spreads(run)
        curves.append(
            {
                epoch: third_means(np.sqrt(np.array(spread, dtype=float)), accuracy)
                for epoch, spread in sorted(by_epoch.items())
            }
        )
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    means = {tier: [_mean([curve[epoch][tier] for curve in curves]) for epoch in epochs] for tier in TIERS}
    return {"epochs": epochs, **means}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def spread_evolution(record: Record, folders: Folders) -> dict[str, Any]:
    """Return the curves of every method."""
    block = record.blocks[0]
    return {"methods": {row.title: spread_by_third(folders[block.key][row.key]) for row in block.rows}}


def draw_evolution(data: Mapping[str, Any]) -> Any:
    """Return one line per third and method."""
    from classmargin.report.figures import TIER_COLOURS, empty_figure, plotly_text, titled_axis

    figure = empty_figure(440, xaxis=titled_axis("epoch"), yaxis=titled_axis("‖ŝ‖", rangemode="tozero"))
    for dash, (title, curves) in zip(("dot", "solid", "dash"), data["methods"].items(), strict=False):
        for tier in TIERS:
            figure.add_scatter(
                x=curves["epochs"],
                y=curves[tier],
                name=f"{plotly_text(title)}, {tier}",
                line={"color": TIER_COLOURS[tier], "dash": dash},
            )
    return figure


def evolution_tables(record: Record) -> list[Table]:
    """Return the spread of each third at the first and last epoch, and the gap between hard and easy."""
    lines = []
    for title, curves in (record.figure or {"methods": {}})["methods"].items():
        for position, when in ((0, "first"), (-1, "last")):
            values = {tier: curves[tier][position] for tier in TIERS}
            ends = (values["hard"], values["easy"])
            gap = None if None in ends else ends[0] - ends[1]
            lines.append(
                {"title": title, "when": f"{when} ({curves['epochs'][position]})", **values, "gap": gap}
            )
    columns = (
        Column("title", "Method"),
        Column("when", "Epoch"),
        *(Column(tier, tier.capitalize(), "number") for tier in TIERS),
        Column("gap", "Hard − easy", "number"),
    )
    note = "Mean ‖ŝ‖ of the classes of each third (ranked by test accuracy at the end) on validation samples, mean over seeds."
    return [Table("Spread during training", columns, lines, note)]


register(
    Recipe(
        name="figure-spread-evolution",
        source="figure of the evolving ‖ŝ_y‖, ResNet-50 from scratch on ImageNet",
        question="Does MR² keep the spreads of hard classes near those of easy ones during training?",
        blocks=(imagenet_block("resnet50"),),
        scales={
            **scratch_scales("resnet50", more="; spreads of the validation samples"),
            "paper": paper(
                "the published protocol, but with a twentieth of the training samples held out to measure spreads on.",
                data={"validation": 0.05},
            ),
        },
        doubts=("it is not said on which samples the spread is measured.",),
        tables=evolution_tables,
        figure=spread_evolution,
        draw=draw_evolution,
        watch_spread=True,
    )
)


GAMMAS = (0.5, 2.0)
GRID = np.round(np.linspace(-1.0, 3.0, 161), 4)


def loss_curves(_record: Record, _folders: Folders) -> dict[str, Any]:
    """Return each loss on a grid of margins u; the ramp is Φ_γ with γ = 1."""
    curves = {"0-1": (GRID <= 0).astype(float).tolist(), "ramp": margin_loss(GRID, 1.0).tolist()}
    curves |= {f"Φ_γ, γ = {gamma:g}": margin_loss(GRID, gamma).tolist() for gamma in GAMMAS}
    return {"margin": GRID.tolist(), "losses": curves}


def draw_losses(data: Mapping[str, Any]) -> Any:
    """Return the curves as a plotly figure."""
    from classmargin.report.figures import SERIES_COLOURS, empty_figure, titled_axis

    figure = empty_figure(420, xaxis=titled_axis("prediction margin u"), yaxis=titled_axis("loss"))
    for colour, (name, values) in zip(SERIES_COLOURS, data["losses"].items(), strict=False):
        shape = "hv" if name == "0-1" else "linear"
        figure.add_scatter(x=data["margin"], y=values, name=name, line={"color": colour, "shape": shape})
    return figure


def loss_table(record: Record) -> list[Table]:
    """Return the losses at a few margins."""
    data = record.figure or {"margin": [], "losses": {}}
    shown = (-0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
    lines = [
        {"u": f"{u:g}", **{name: values[data["margin"].index(u)] for name, values in data["losses"].items()}}
        for u in shown
        if u in data["margin"]
    ]
    columns = (Column("u", "u", "value"), *(Column(name, name, "number") for name in data["losses"]))
    return [Table("Loss at a margin u", columns, lines, "The 0-1 loss is never above the others.")]


_ANY = Scale("three formulas; nothing is trained.")

register(
    Recipe(
        name="figure-loss-shapes",
        source="figure of the 0-1 loss, the ramp loss and Φ_γ",
        question="How does the class-margin loss lie above the 0-1 loss?",
        blocks=(),
        scales={"smoke": _ANY, "laptop": _ANY, "paper": _ANY},
        tables=loss_table,
        figure=loss_curves,
        draw=draw_losses,
    )
)
