"""The three losses of the theory as functions of the prediction margin: 0-1, ramp, and Φ_γ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from classmargin.recipes.reproduce.recipe import Folders, Recipe, Scale, register
from classmargin.recipes.reproduce.record import Record
from classmargin.report.tables import Column, Table
from classmargin.theory.margin_losses import margin_loss

GAMMAS = (0.5, 2.0)
GRID = np.round(np.linspace(-1.0, 3.0, 161), 4)


def loss_curves(_record: Record, _folders: Folders) -> dict[str, Any]:
    """Return each loss on a grid of margins u; the ramp is Φ_γ with γ = 1."""
    curves = {"0-1": (GRID <= 0).astype(float).tolist(), "ramp": margin_loss(GRID, 1.0).tolist()}
    curves |= {f"Φ_γ, γ = {gamma:g}": margin_loss(GRID, gamma).tolist() for gamma in GAMMAS}
    return {"margin": GRID.tolist(), "losses": curves}


def draw_losses(data: Mapping[str, Any]) -> Any:
    """Return the curves as a plotly figure."""
    from classmargin.report.figure_parts import SERIES_COLOURS, empty_figure, titled_axis

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
