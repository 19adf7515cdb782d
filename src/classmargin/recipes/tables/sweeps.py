"""How much do the two hyper-parameters matter? Mean margin c̄ and weight λ of the representation margin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classmargin.recipes.paper_values import DOUBTS, MEAN_MARGIN, REPRESENTATION_WEIGHT
from classmargin.recipes.reproduce.recipe import Block, Folders, Recipe, Row, register
from classmargin.recipes.reproduce.record import Record
from classmargin.recipes.reproduce.scales import laptop, paper, smoke

METRICS = ("overall", "hard")


def sweep_data(record: Record, _: Folders) -> dict[str, Any]:
    """Return accuracy against the value of the hyper-parameter, ours with intervals and the paper's."""
    block = record.blocks[0]
    rows = [row for row in block.rows if "=" in row.key]
    return {
        "name": rows[0].key.partition("=")[0] if rows else "",
        "values": [float(row.key.partition("=")[2]) for row in rows],
        "ours": {name: [list(row.values[name]) for row in rows] for name in METRICS},
        "baseline": {name: list(block.rows[0].values[name]) for name in METRICS},
        "paper": {name: [(row.paper or {}).get(name) for row in rows] for name in METRICS},
    }


def draw_sweep(data: Mapping[str, Any]) -> Any:
    """Return the curves as a plotly figure."""
    from classmargin.report.figure_parts import NEUTRAL, TIER_COLOURS, empty_figure, percent_axis, titled_axis

    colours = {"overall": NEUTRAL, "hard": TIER_COLOURS["hard"]}
    words = {"c": "mean margin c̄", "lambda": "weight λ"}.get(data["name"], data["name"])
    figure = empty_figure(420, xaxis=titled_axis(words), yaxis=percent_axis("accuracy"))
    for name in METRICS:
        ours = data["ours"][name]
        figure.add_scatter(
            x=data["values"],
            y=[value for value, _, _ in ours],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - value for value, _, high in ours],
                "arrayminus": [value - low for value, low, _ in ours],
            },
            name=f"ours, {name}",
            line={"color": colours[name]},
        )
        figure.add_scatter(
            x=data["values"],
            y=[None if value is None else value / 100 for value in data["paper"][name]],
            name=f"paper, {name}",
            line={"color": colours[name], "dash": "dot"},
        )
    return figure


def _rows(letter: str, option: str, printed: Mapping[str, Any], title: str) -> tuple[Row, ...]:
    values = [key.partition("=")[2] for key in printed]
    return (
        Row("erm", "erm"),
        *(
            Row(f"{letter}={v}", "mr2", f"MR², {title} = {v}", {option: float(v)})
            for v in values
            if float(v) > 0
        ),
    )


register(
    Recipe(
        name="sweep-mean-margin",
        source="figure and table of the mean margin c̄, CIFAR-100 with ResNet-32",
        question="How does accuracy depend on the mean margin c̄?",
        blocks=(Block("cifar100", "CIFAR-100, ResNet-32", _rows("c", "mean_margin", MEAN_MARGIN, "c̄")),),
        scales={
            "smoke": smoke(cifar100={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, ResNet-20, 18 epochs.",
                {"data": {"fraction": 0.1}, "backbone": {"name": "resnet20"}, "loop": {"epochs": 18}},
            ),
            "paper": paper(),
        },
        printed={"cifar100": MEAN_MARGIN},
        doubts=(
            f"c̄ = 0 is printed ({MEAN_MARGIN['c=0']}), but not run.",
            DOUBTS["hyperparameters"],
        ),
        figure=sweep_data,
        draw=draw_sweep,
    )
)

register(
    Recipe(
        name="sweep-representation-weight",
        source="figure and table of the weight λ, CIFAR-100 with ResNet-32",
        question="How does accuracy depend on the weight λ of the representation margin?",
        blocks=(
            Block(
                "cifar100",
                "CIFAR-100, ResNet-32",
                _rows("lambda", "representation_weight", REPRESENTATION_WEIGHT, "λ"),
            ),
        ),
        scales={
            "smoke": smoke(cifar100={"backbone": {"name": "resnet20"}}),
            "laptop": laptop(
                "CIFAR-100 at 10 % of the training data, ResNet-20, 14 epochs; λ multiplies the scale-free term of the "
                "recommended settings, not the printed one.",
                {"data": {"fraction": 0.1}, "backbone": {"name": "resnet20"}, "loop": {"epochs": 14}},
            ),
            "paper": paper(),
        },
        printed={"cifar100": REPRESENTATION_WEIGHT},
        doubts=(
            "λ of the paper, of the released code and of the recommended settings are on different scales.",
            DOUBTS["hyperparameters"],
        ),
        figure=sweep_data,
        draw=draw_sweep,
    )
)
