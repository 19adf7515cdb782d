"""How the spread of easy, medium and hard classes moves during training, with and without MR²."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from classmargin.recipes.reproduce.class_columns import class_column, third_means
from classmargin.recipes.reproduce.grids import SMALL_IMAGENET_LAPTOP, imagenet_block
from classmargin.recipes.reproduce.recipe import Folders, Recipe, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke_pretrained
from classmargin.recipes.reproduce.spread_log import SPREAD_FILE
from classmargin.report.tables import Column, Table
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
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
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


def draw(data: Mapping[str, Any]) -> Any:
    """Return one line a third and method."""
    from classmargin.report.figure_parts import TIER_COLOURS, empty_figure, plotly_text, titled_axis

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


def tables(record: Record) -> list[Table]:
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
            "smoke": smoke_pretrained({"resnet50": "resnet50"}),
            "laptop": laptop(
                "a tenth of CIFAR-100 in place of ImageNet, ResNet-20, 40 epochs; spreads of the validation samples.",
                SMALL_IMAGENET_LAPTOP,
                preset="cifar",
            ),
            "paper": paper(
                "the published protocol, but with a twentieth of the training samples held out to measure spreads on.",
                data={"validation": 0.05},
            ),
        },
        doubts=("it is not said on which samples the spread is measured.",),
        tables=tables,
        figure=spread_evolution,
        draw=draw,
        watch_spread=True,
    )
)
