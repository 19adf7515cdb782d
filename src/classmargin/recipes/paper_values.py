"""Numbers as printed in the paper, in percent, in its order; a doubt mark says where it contradicts itself.

What the paper does not print as a number (Fig. 1 and the other plots) is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrintedRow:
    """One printed row: overall and thirds; ``doubt`` names what speaks against it, if anything does."""

    overall: float
    easy: float
    medium: float
    hard: float
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a record keeps it."""
        return {name: value for name, value in vars(self).items() if name != "doubt" or value}


_CHANGE = "the change of the {} third is printed as {}, the values differ by {}"
_IS_P5 = "equals the p = 5 row of the norm table, although the text says p = 2"

TABLE_1A_TITLE = "Printed in the paper: Table 1(a), CIFAR-100, ResNet-32, 300 epochs, three repeats"
TABLE_1A: dict[str, PrintedRow] = {
    "erm": PrintedRow(70.9, 84.5, 71.0, 56.7),
    "lff": PrintedRow(69.1, 83.6, 70.1, 53.7),
    "jtt": PrintedRow(70.6, 84.3, 70.8, 56.2),
    "eql": PrintedRow(70.7, 84.4, 70.9, 56.4),
    "ldam": PrintedRow(71.1, 84.7, 71.2, 57.0),
    "lgm": PrintedRow(70.8, 84.0, 71.4, 56.6),
    "cmic": PrintedRow(71.1, 85.1, 70.9, 56.8),
    "sam": PrintedRow(71.0, 84.6, 71.1, 56.9),
    "center": PrintedRow(71.3, 84.8, 71.3, 57.1),
    "supcon": PrintedRow(71.5, 85.0, 72.1, 57.5),
    "drl": PrintedRow(71.9, 85.5, 72.5, 57.7),
    "csr": PrintedRow(71.2, 85.1, 71.3, 57.1),
    "group-dro": PrintedRow(71.6, 85.1, 72.2, 57.2),
    "fair-dro": PrintedRow(72.0, 85.7, 72.5, 57.7),
    "mr2": PrintedRow(73.9, 85.9, 73.8, 61.9, _IS_P5),
    # Table 3, the same data and network.
    "mr2-uniform": PrintedRow(70.6, 84.6, 70.8, 56.5),
    "mr2-logit": PrintedRow(72.8, 85.1, 72.9, 60.4),
    "mr2-zero-spread": PrintedRow(71.6, 85.0, 72.2, 57.6),
    "mr2-representation": PrintedRow(72.3, 85.4, 73.1, 58.8),
}
COMPONENTS = ("erm", "mr2-uniform", "mr2-logit", "mr2-zero-spread", "mr2-representation", "mr2")
TABLE_3 = {name: TABLE_1A[name] for name in COMPONENTS}

TABLE_1B: dict[str, PrintedRow] = {
    "erm": PrintedRow(75.2, 91.1, 78.3, 56.4),
    "lff": PrintedRow(74.4, 90.2, 77.8, 55.2),
    "jtt": PrintedRow(74.8, 90.7, 77.9, 55.7, _CHANGE.format("hard", "-0.4", "0.7")),
    "eql": PrintedRow(75.3, 91.3, 78.4, 56.2, _CHANGE.format("medium", "+0.3", "0.1")),
    "ldam": PrintedRow(75.4, 91.5, 78.6, 56.1),
    "lgm": PrintedRow(75.3, 90.9, 78.3, 56.6),
    "cmic": PrintedRow(75.2, 91.0, 78.2, 56.5),
    "sam": PrintedRow(75.6, 91.4, 78.8, 56.6),
    "center": PrintedRow(75.8, 91.7, 78.6, 57.1),
    "supcon": PrintedRow(75.7, 91.4, 78.9, 56.7),
    "drl": PrintedRow(75.5, 91.4, 78.5, 56.6),
    "csr": PrintedRow(75.1, 90.8, 77.9, 56.6),
    "group-dro": PrintedRow(75.9, 91.0, 79.3, 57.2),
    "fair-dro": PrintedRow(76.1, 91.5, 79.6, 57.3),
    "mr2": PrintedRow(76.9, 91.5, 79.7, 59.6),
}


def _tables(lines: str) -> dict[str, dict[str, PrintedRow]]:
    """Return ``{block: {row: values}}`` from lines of a block, a row and its four numbers."""
    tables: dict[str, dict[str, PrintedRow]] = {}
    for block, row, *numbers in map(str.split, lines.strip().splitlines()):
        overall, easy, medium, hard = map(float, numbers)
        tables.setdefault(block, {})[row] = PrintedRow(overall, easy, medium, hard)
    return tables


# Table 2 and, with the row of ℓ_γ alone, the additional component table.
ARCHITECTURES_CIFAR = _tables("""
resnet20           erm        68.7 83.3 70.3 53.0
resnet20           mr2-logit  70.3 84.1 71.7 55.8
resnet20           mr2        70.9 84.4 72.2 56.7
preact-resnet20    erm        69.1 83.8 70.5 53.4
preact-resnet20    mr2-logit  70.2 84.2 71.8 55.1
preact-resnet20    mr2        71.3 84.7 73.2 56.6
preact-resnet32    erm        71.2 85.0 71.7 56.7
preact-resnet32    mr2-logit  72.7 85.8 73.4 59.2
preact-resnet32    mr2        73.3 86.1 73.9 60.1
wide-resnet-22-10  erm        78.4 89.6 80.0 65.4
""")
_WIDER = "the released script trains WideResNet-28-10"
ARCHITECTURES_CIFAR["wide-resnet-22-10"]["mr2"] = PrintedRow(81.2, 90.7, 82.5, 70.2, _WIDER)
ARCHITECTURES_IMAGENET = _tables("""
resnet50       erm        71.7 88.5 74.1 52.6
resnet50       mr2        74.2 89.9 76.9 55.9
moco-resnet50  erm        71.1 89.0 73.5 50.7
moco-resnet50  mr2        72.4 89.6 74.8 52.7
clip-vit-b32   erm        75.6 91.4 78.4 57.0
clip-vit-b32   mr2-logit  76.3 91.5 78.7 58.9
clip-vit-b32   mr2        77.1 91.7 79.9 59.8
mae-vit-b16    erm        80.4 94.5 83.9 62.7
mae-vit-b16    mr2-logit  81.3 94.6 84.5 65.0
mae-vit-b16    mr2        82.0 94.8 85.3 66.1
""")
CLIP_RESNET50_LOGIT = PrintedRow(75.9, 91.2, 78.6, 58.1)

# Output-level margins (difference of probabilities) and the classifier-level margin in degrees.
MARGINS: dict[str, dict[str, Any]] = {
    "erm": {"average": 0.158, "easy": 0.236, "medium": 0.144, "hard": 0.093, "degrees": 58.4},
    "mr2": {"average": 0.373, "easy": 0.435, "medium": 0.396, "hard": 0.289, "degrees": 81.8},
}

# CLIP ResNet-50 on ImageNet.
AUGMENTATION: dict[str, dict[str, PrintedRow]] = {
    "standard": {"erm": TABLE_1B["erm"], "mr2": TABLE_1B["mr2"]},
    "randaugment": {"erm": PrintedRow(75.8, 91.5, 78.8, 57.2), "mr2": PrintedRow(77.3, 92.0, 79.8, 60.1)},
    "autoaugment": {
        "erm": PrintedRow(76.2, 91.9, 79.2, 57.5),
        "mr2": PrintedRow(78.1, 92.3, 81.0, 61.1, _CHANGE.format("hard", "+3.5", "3.6")),
    },
}

MNIST_SPREAD = (0.0041, 0.0032, 0.0048, 0.0051, 0.0056, 0.0063, 0.0040, 0.0056, 0.0056, 0.0063)
MNIST_MEAN_NORM = (6.6982, 6.7474, 6.5227, 6.8819, 6.7275, 6.9866, 6.4091, 6.4091, 6.7820, 6.6932)
MNIST_RATIO = 7.5e-4
IMAGENET_RATIO = 0.3285

LONG_TAIL: dict[str, PrintedRow] = {
    "erm": PrintedRow(37.7, 69.6, 38.9, 5.4),
    "logit-adjustment": PrintedRow(41.9, 66.9, 43.9, 15.6),
    "mr2-la": PrintedRow(44.2, 68.1, 46.3, 18.9),
}

_OVERALL_FROM_708 = "the printed changes of overall are relative to 70.8, while ERM is 70.9 elsewhere"
_IS_HEADLINE = "equals the headline row of MR², although the text says p = 2 there; "
NORMS_CIFAR: dict[str, PrintedRow] = {
    "erm": TABLE_1A["erm"],
    "p=1": PrintedRow(73.4, 85.8, 73.5, 60.7, _OVERALL_FROM_708),
    "p=3": PrintedRow(73.7, 85.9, 73.7, 61.4, _OVERALL_FROM_708),
    "p=5": PrintedRow(73.9, 85.9, 73.8, 61.9, _IS_HEADLINE + _OVERALL_FROM_708),
    "p=7": PrintedRow(73.7, 85.9, 73.6, 61.5, _OVERALL_FROM_708),
    "p=9": PrintedRow(73.2, 85.8, 73.4, 60.2, _OVERALL_FROM_708),
}
_IS_VIT = "captioned CLIP ResNet-50, but the printed changes are relative to the CLIP ViT-B/32 baseline"
NORMS_IMAGENET: dict[str, PrintedRow] = {
    "erm": PrintedRow(75.6, 91.4, 78.4, 57.0, _IS_VIT + "; this is that baseline"),
    "p=1": PrintedRow(76.5, 91.6, 79.3, 58.8, _IS_VIT),
    "p=3": PrintedRow(77.1, 91.7, 79.9, 59.8, _IS_VIT + "; equals the MR² row of CLIP ViT-B/32"),
    "p=5": PrintedRow(76.9, 91.5, 79.6, 60.0, _IS_VIT),
    "p=7": PrintedRow(77.1, 91.7, 79.9, 59.7, _IS_VIT),
    "p=9": PrintedRow(76.8, 91.5, 79.4, 59.6, _IS_VIT),
}

FINE_GRAINED: dict[str, dict[str, PrintedRow]] = {
    "stanford-cars": {"erm": PrintedRow(75.8, 92.0, 77.9, 57.4), "mr2": PrintedRow(76.4, 92.2, 78.4, 58.7)},
    "oxford-pets": {"erm": PrintedRow(89.2, 97.4, 90.6, 79.7), "mr2": PrintedRow(90.4, 97.8, 91.7, 81.6)},
    "flowers-102": {"erm": PrintedRow(96.7, 100.0, 99.3, 90.9), "mr2": PrintedRow(97.3, 100.0, 99.9, 92.2)},
    "food-101": {"erm": PrintedRow(81.4, 91.0, 82.9, 70.2), "mr2": PrintedRow(81.9, 91.1, 83.3, 71.3)},
    "fgvc-aircraft": {"erm": PrintedRow(34.5, 65.7, 29.4, 8.4), "mr2": PrintedRow(35.5, 65.8, 30.0, 10.8)},
}

_NO_ZERO = "c̄ = 0 divides by zero; the values are those of row (c), ℓ_γ without ℓ_s̄"
MEAN_MARGIN: dict[str, dict[str, Any]] = {
    "c=0": {"overall": 72.8, "hard": 60.4, "doubt": _NO_ZERO},
    "c=0.5": {"overall": 73.2, "hard": 60.8},
    "c=1": {"overall": 73.7, "hard": 61.6},
    "c=2": {"overall": 73.9, "hard": 61.9},
    "c=3": {"overall": 73.4, "hard": 61.2},
    "c=5": {"overall": 73.1, "hard": 61.0},
}
REPRESENTATION_WEIGHT: dict[str, dict[str, Any]] = {
    "lambda=0.01": {"overall": 73.1, "hard": 60.7},
    "lambda=0.05": {"overall": 73.5, "hard": 61.0},
    "lambda=0.1": {"overall": 73.9, "hard": 61.7},
    "lambda=0.3": {"overall": 73.9, "hard": 61.8},
    "lambda=0.5": {"overall": 73.9, "hard": 61.9},
    "lambda=0.7": {"overall": 73.8, "hard": 61.6},
    "lambda=0.9": {"overall": 73.7, "hard": 61.5},
}

# CIFAR-10 with a tenth of the training data; classes in the order of the paper.
PER_CLASS_NAMES = ("automobile", "truck", "ship", "frog", "horse", "airplane", "deer", "dog", "bird", "cat")
PER_CLASS: dict[str, tuple[float, ...]] = {
    "erm": (91.4, 87.1, 85.5, 80.4, 79.0, 76.5, 76.1, 70.5, 70.1, 62.5),
    "mr2": (92.1, 89.0, 87.4, 83.0, 82.5, 78.9, 79.2, 77.3, 78.3, 71.6),
}


def _deviations(lines: str) -> dict[str, dict[str, PrintedRow]]:
    """Return ``{network: {row: deviations}}`` from lines of a network and eight numbers."""
    tables: dict[str, dict[str, PrintedRow]] = {}
    for network, *words in map(str.split, lines.strip().splitlines()):
        numbers = [float(word) for word in words]
        for row, (hard, medium, easy, overall) in (("erm", numbers[:4]), ("mr2", numbers[4:])):
            tables.setdefault(network, {})[row] = PrintedRow(overall, easy, medium, hard)
    return tables


# Standard deviations over three repeats, as printed (fractions, by their size): hard, medium, easy and overall, of ERM and of MR².
DEVIATIONS_CIFAR = _deviations("""
resnet20           0.0033 0.0029 0.0019 0.0035   0.0012 0.0027 0.0016 0.0022
preact-resnet20    0.0016 0.0030 0.0033 0.0019   0.0027 0.0039 0.0015 0.0024
resnet32           0.0029 0.0036 0.0019 0.0032   0.0019 0.0029 0.0037 0.0017
preact-resnet32    0.0026 0.0016 0.0034 0.0039   0.0030 0.0012 0.0037 0.0022
wide-resnet-22-10  0.0025 0.0038 0.0019 0.0034   0.0013 0.0027 0.0040 0.0022
""")
DEVIATIONS_IMAGENET = _deviations("""
resnet50           0.0023 0.0039 0.0015 0.0028   0.0018 0.0029 0.0032 0.0015
moco-resnet50      0.0015 0.0013 0.0024 0.0008   0.0019 0.0032 0.0011 0.0027
clip-resnet50      0.0036 0.0018 0.0039 0.0015   0.0029 0.0035 0.0012 0.0023
clip-vit-b32       0.0019 0.0017 0.0020 0.0028   0.0021 0.0033 0.0029 0.0037
mae-vit-b16        0.0018 0.0022 0.0034 0.0017   0.0026 0.0038 0.0023 0.0035
""")

# Shared by recipes whose data the paper leaves out or contradicts.
DOUBTS: dict[str, str] = {
    "thirds": (
        "overall is not exactly the mean of the thirds: rows fit different ways of sharing 100 classes among three, and it is "
        "not said whether the ranking is that of ERM or each model's own."
    ),
    "hyperparameters": "c̄, λ and p of each headline row are not stated, nor any hyper-parameter of a baseline.",
}
