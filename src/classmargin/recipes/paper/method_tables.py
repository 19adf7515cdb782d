"""Which method, which of its parts, which norm, which hyper-parameters: Table 1 and 3, long tail, norms, curves over c̄ and λ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from classmargin.recipes import paper_values as published
from classmargin.recipes import recipe as parts
from classmargin.recipes.recipe import Block, Folders, Recipe, Row, Scale, given, network_block
from classmargin.recipes.record import Record, interval_bars
from classmargin.report.figures import NEUTRAL, TIER_COLOURS, empty_figure, percent_axis, titled_axis

THIRDS_AND_HYPERPARAMETERS = (published.DOUBTS["thirds"], published.DOUBTS["hyperparameters"])
# LGM brings its own head, so that the one of the preset is left open there.
ALL_METHODS = tuple(
    Row(name, name, settings={"backbone": {"head": "none"}} if name == "lgm" else {}) for name in published.TABLE_1B
)
COMPONENTS_CIFAR = ("resnet20", "preact-resnet20", "preact-resnet32")
COMPONENTS_IMAGENET = ("clip-resnet50", "clip-vit-b32", "mae-vit-b16")
COMPONENT_ROWS = parts.methods("erm", "mr2-logit", "mr2")
FINE_TUNING = "fine-tuning it needs a GPU; in a linear probe the representation margin has nothing to move"
NORM_ROWS = (
    Row("erm", "erm"),
    *(
        # The statistic that has a norm; margins of the recommended settings have none.
        Row(f"p={order}", "mr2", f"MR², p = {order}", {"margin_source": "sqnorm", "norm_order": float(order)})
        for order in (1, 3, 5, 7, 9)
    ),
)


def _cifar(rows: tuple[Row, ...]) -> Block:
    return Block("cifar100", "CIFAR-100, ResNet-32", rows)


RECIPES = (
    Recipe(
        "table1-cifar100",
        "Table 1(a), all methods on CIFAR-100 with ResNet-32",
        "Which method helps the hard classes most, and at whose cost?",
        (_cifar(ALL_METHODS),),
        parts.laptop_scales(
            "CIFAR-100 at 20 % of the training data, the small CNN, 20 epochs: fifteen methods and three seeds are 45 runs.",
            "data.fraction=0.2 backbone.name=small-cnn loop.epochs=20",
        ),
        printed={"cifar100": {row.key: published.TABLE_1A[row.key] for row in ALL_METHODS}},
        doubts=THIRDS_AND_HYPERPARAMETERS,
    ),
    Recipe(
        "table1-imagenet",
        "Table 1(b), all methods on ImageNet with CLIP ResNet-50",
        "Which method helps the hard classes most when a pretrained network is fine-tuned?",
        (network_block("clip-resnet50", ALL_METHODS),),
        parts.pretrained_scales(2),
        printed={"clip-resnet50": published.TABLE_1B},
        doubts=(
            *THIRDS_AND_HYPERPARAMETERS,
            "the released code reports an average of zero-shot and fine-tuned weights (0.6), which the paper does not mention.",
        ),
    ),
    Recipe(
        "table3-components",
        "Table 3, component analysis on CIFAR-100 with ResNet-32",
        "Which part of MR² helps: class margins on the logits, the representation margin, or both?",
        (_cifar(parts.methods(*published.COMPONENTS)),),
        parts.cifar_scales(20),
        printed={"cifar100": published.TABLE_3},
        doubts=THIRDS_AND_HYPERPARAMETERS,
    ),
    Recipe(
        "table-components-more",
        "additional component analysis: six networks on CIFAR-100 and ImageNet",
        "Does the representation margin add to the class margins in every network?",
        tuple(network_block(name, COMPONENT_ROWS) for name in (*COMPONENTS_CIFAR, *COMPONENTS_IMAGENET)),
        parts.laptop_scales(
            "CIFAR-100 at 10 % of the training data, 10 epochs.",
            "data.fraction=0.1 loop.epochs=10",
            leave_out=dict.fromkeys(COMPONENTS_IMAGENET, FINE_TUNING),
        ),
        printed={
            **{name: published.ARCHITECTURES_CIFAR[name] for name in COMPONENTS_CIFAR},
            **{name: published.ARCHITECTURES_IMAGENET[name] for name in COMPONENTS_IMAGENET[1:]},
            "clip-resnet50": {
                "erm": published.TABLE_1B["erm"],
                "mr2-logit": published.CLIP_RESNET50_LOGIT,
                "mr2": published.TABLE_1B["mr2"],
            },
        },
        doubts=THIRDS_AND_HYPERPARAMETERS,
    ),
    Recipe(
        "table-long-tail",
        "table of CIFAR-100-IB-100 with ResNet-32",
        "On a long tail, does MR² add to logit adjustment?",
        (
            Block(
                "cifar100-ib100",
                "CIFAR-100-IB-100, ResNet-32",
                parts.methods(*published.LONG_TAIL),
                settings=given("data.imbalance=100.0"),
            ),
        ),
        parts.laptop_scales(
            "CIFAR-100-IB-100 (all of it but the validation part), ResNet-20, 16 epochs.",
            "backbone.name=resnet20 loop.epochs=16",
            smallest=replace(parts.SMOKE, blocks={"cifar100-ib100": given("data.imbalance=4.0")}),
        ),
        printed={"cifar100-ib100": published.LONG_TAIL},
        doubts=("which form of logit adjustment was combined with MR² is not stated.", published.DOUBTS["thirds"]),
    ),
    Recipe(
        "table-norms-cifar",
        "table of Lp norms, CIFAR-100 with ResNet-32",
        "Does the norm of the feature statistics matter for a linear classifier?",
        (_cifar(NORM_ROWS),),
        parts.cifar_scales(20),
        printed={"cifar100": published.NORMS_CIFAR},
        doubts=("p = 2, the norm that the text uses, is not in this table.", published.DOUBTS["hyperparameters"]),
    ),
    Recipe(
        "table-norms-imagenet",
        "table of Lp norms, cosine classifier on ImageNet",
        "Does the norm matter for a cosine classifier, where p = 2 would give equal margins?",
        (network_block("clip-resnet50", NORM_ROWS),),
        parts.pretrained_scales(5),
        printed={"clip-resnet50": published.NORMS_IMAGENET},
        doubts=(published.DOUBTS["hyperparameters"],),
    ),
)


METRICS = ("overall", "hard")
SCALES_OF_LAMBDA = "λ of the paper, of the released code and of the recommended settings are on different scales."
NO_NUMBERS = "the values of this figure are not printed; the grid is that of CIFAR-100 or of the text."


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
    words = {"c": "mean margin c̄", "lambda": "weight λ"}.get(data["name"], data["name"])
    figure = empty_figure(420, xaxis=titled_axis(words), yaxis=percent_axis("accuracy"))
    for name, colour in (("overall", NEUTRAL), ("hard", TIER_COLOURS["hard"])):
        ours = data["ours"][name]
        theirs = [None if value is None else value / 100 for value in data["paper"][name]]
        bars, mean = interval_bars(ours), [value for value, _, _ in ours]
        figure.add_scatter(x=data["values"], y=mean, error_y=bars, name=f"ours, {name}", line={"color": colour})
        dotted = {"color": colour, "dash": "dot"}
        figure.add_scatter(x=data["values"], y=theirs, name=f"paper, {name}", line=dotted)
    return figure


def _margin_rows(keys: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return a row for each positive value of c̄ or λ among keys like ``c=0.5``."""
    options = {"c": ("mean_margin", "c̄"), "lambda": ("representation_weight", "λ")}
    rows = [Row("erm", "erm")]
    for key in keys:
        letter, _, value = key.partition("=")
        option, sign = options[letter]
        if float(value) > 0:
            rows.append(Row(key, "mr2", f"MR², {sign} = {value}", {option: float(value)}))
    return tuple(rows)


def _sweep(
    name: str, block: Block, sizes: Mapping[str, Scale], *doubts: str, printed: Mapping[str, Any] | None = None
) -> Recipe:
    what = "mean margin c̄" if "mean-margin" in name else "weight λ of the representation margin"
    return Recipe(
        name,
        f"figure and table of the {what}, {block.title}",
        f"How does accuracy depend on the {what}?",
        (block,),
        sizes,
        printed={block.key: printed} if printed else {},
        doubts=(*doubts, published.DOUBTS["hyperparameters"]),
        figure=sweep_data,
        draw=draw_sweep,
    )


_TENTHS = dict.fromkeys(f"lambda={number / 10}" for number in range(1, 10))

SWEEPS = (
    _sweep(
        "sweep-mean-margin",
        _cifar(_margin_rows(published.MEAN_MARGIN)),
        parts.cifar_scales(18),
        f"c̄ = 0 is printed ({published.MEAN_MARGIN['c=0']}), but not run.",
        printed=published.MEAN_MARGIN,
    ),
    _sweep(
        "sweep-representation-weight",
        _cifar(_margin_rows(published.REPRESENTATION_WEIGHT)),
        parts.cifar_scales(
            14, more="; λ multiplies the scale-free term of the recommended settings, not the printed one"
        ),
        SCALES_OF_LAMBDA,
        printed=published.REPRESENTATION_WEIGHT,
    ),
    _sweep(
        "sweep-mean-margin-imagenet",
        network_block("clip-resnet50", _margin_rows(published.MEAN_MARGIN)),
        parts.pretrained_scales(3),
        NO_NUMBERS,
    ),
    _sweep(
        "sweep-representation-weight-imagenet",
        network_block("clip-resnet50", _margin_rows(_TENTHS)),
        parts.pretrained_scales(3),
        NO_NUMBERS,
        SCALES_OF_LAMBDA,
    ),
)
