"""How much do the two hyper-parameters matter? Mean margin c̄ and weight λ of the representation margin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from classmargin.recipes.paper_values import DOUBTS, MEAN_MARGIN, REPRESENTATION_WEIGHT
from classmargin.recipes.recipe import Block, Folders, Recipe, Row, register
from classmargin.recipes.recipe_settings import cifar_scales, imagenet_block, pretrained_scales
from classmargin.recipes.record import Record
from classmargin.recipes.record_tables import interval_bars

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
    from classmargin.report.figures import NEUTRAL, TIER_COLOURS, empty_figure, percent_axis, titled_axis

    colours = {"overall": NEUTRAL, "hard": TIER_COLOURS["hard"]}
    words = {"c": "mean margin c̄", "lambda": "weight λ"}.get(data["name"], data["name"])
    figure = empty_figure(420, xaxis=titled_axis(words), yaxis=percent_axis("accuracy"))
    for name in METRICS:
        ours = data["ours"][name]
        figure.add_scatter(
            x=data["values"],
            y=[value for value, _, _ in ours],
            error_y=interval_bars(ours),
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


def _sweep(
    name: str, what: str, block: Block, printed: Mapping[str, Any], scales: Any, *doubts: str
) -> Recipe:
    return Recipe(
        name=name,
        source=f"figure and table of the {what}, {block.title}",
        question=f"How does accuracy depend on the {what}?",
        blocks=(block,),
        scales=scales,
        printed={block.key: printed} if printed else {},
        doubts=(*doubts, DOUBTS["hyperparameters"]),
        figure=sweep_data,
        draw=draw_sweep,
    )


def _cifar(letter: str, option: str, printed: Mapping[str, Any], title: str) -> Block:
    return Block("cifar100", "CIFAR-100, ResNet-32", _rows(letter, option, printed, title))


C_BAR, LAMBDA = "mean margin c̄", "weight λ of the representation margin"
OTHER_SCALE = "; λ multiplies the scale-free term of the recommended settings, not the printed one"
SCALES_OF_LAMBDA = (
    "λ of the paper, of the released code and of the recommended settings are on different scales."
)
NO_NUMBERS = "the values of this figure are not printed; the grid is that of CIFAR-100 or of the text."
IMAGENET_C = _rows("c", "mean_margin", dict.fromkeys(MEAN_MARGIN), "c̄")
TENTHS = [f"lambda={number / 10}" for number in range(1, 10)]
IMAGENET_LAMBDA = _rows("lambda", "representation_weight", dict.fromkeys(TENTHS), "λ")

register(
    _sweep(
        "sweep-mean-margin",
        C_BAR,
        _cifar("c", "mean_margin", MEAN_MARGIN, "c̄"),
        MEAN_MARGIN,
        cifar_scales("cifar100", 18),
        f"c̄ = 0 is printed ({MEAN_MARGIN['c=0']}), but not run.",
    )
)
register(
    _sweep(
        "sweep-representation-weight",
        LAMBDA,
        _cifar("lambda", "representation_weight", REPRESENTATION_WEIGHT, "λ"),
        REPRESENTATION_WEIGHT,
        cifar_scales("cifar100", 14, more=OTHER_SCALE),
        SCALES_OF_LAMBDA,
    )
)
register(
    _sweep(
        "sweep-mean-margin-imagenet",
        C_BAR,
        imagenet_block("clip-resnet50", IMAGENET_C),
        {},
        pretrained_scales(3),
        NO_NUMBERS,
    )
)
register(
    _sweep(
        "sweep-representation-weight-imagenet",
        LAMBDA,
        imagenet_block("clip-resnet50", IMAGENET_LAMBDA),
        {},
        pretrained_scales(3),
        NO_NUMBERS,
        SCALES_OF_LAMBDA,
    )
)
