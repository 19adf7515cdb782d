"""Gains on the five fine-grained sets, as bars: ours with intervals, the paper's beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classmargin.recipes.reproduce.recipe import Folders, Recipe, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.tables.fine_grained import BLOCKS, PRINTED, SCALES

METRICS = ("overall", "easy", "medium", "hard")


def gains(record: Record, _: Folders) -> dict[str, Any]:
    """Return the change of each number on each set, own-ranked thirds as in the paper, in percentage points."""
    found = {}
    for block in record.blocks:
        row = block.rows[-1]
        if row.change is None:
            continue
        base, paper = block.rows[0].paper or {}, row.paper or {}
        found[block.title] = {
            "ours": {name: [100 * value for value in row.change.own[name]] for name in METRICS},
            "paper": {
                name: round(paper[name] - base[name], 1) for name in METRICS if name in paper and name in base
            },
        }
    return {"sets": found}


def draw(data: Mapping[str, Any]) -> Any:
    """Return one group of bars a set."""
    from classmargin.report.figure_parts import NEUTRAL, TIER_COLOURS, empty_figure, plotly_text, titled_axis

    figure = empty_figure(440, barmode="group", yaxis=titled_axis("change in percentage points"))
    titles = [plotly_text(title, longest=30) for title in data["sets"]]
    colours = {"overall": NEUTRAL, **TIER_COLOURS}
    for name in METRICS:
        ours = [values["ours"][name] for values in data["sets"].values()]
        figure.add_bar(
            x=titles,
            y=[value for value, _, _ in ours],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - value for value, _, high in ours],
                "arrayminus": [value - low for value, low, _ in ours],
            },
            name=f"ours, {name}",
            marker={"color": colours[name]},
        )
        figure.add_scatter(
            x=titles,
            y=[values["paper"].get(name) for values in data["sets"].values()],
            mode="markers",
            name=f"paper, {name}",
            marker={"color": colours[name], "symbol": "diamond-open", "size": 10},
        )
    return figure


register(
    Recipe(
        name="figure-fine-grained-gains",
        source="figure of the improvements on five fine-grained data sets",
        question="How large are the gains on cars, pets, flowers, food and aircraft, third by third?",
        blocks=BLOCKS,
        scales=SCALES,
        printed=PRINTED,
        figure=gains,
        draw=draw,
    )
)
