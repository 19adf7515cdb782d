"""Numbers as printed in the paper, in percent, to be shown beside ours. A doubt mark says where it contradicts itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrintedRow:
    """One printed row: overall and thirds; ``doubt`` names what speaks against it, if anything does."""

    overall: float
    easy: float
    medium: float
    hard: float
    doubt: str = ""


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
    "mr2": PrintedRow(
        73.9, 85.9, 73.8, 61.9, "equals the p = 5 row of the norm table, although the text says p = 2"
    ),
    "mr2-uniform": PrintedRow(70.6, 84.6, 70.8, 56.5),
    "mr2-logit": PrintedRow(72.8, 85.1, 72.9, 60.4),
    "mr2-zero-spread": PrintedRow(71.6, 85.0, 72.2, 57.6),
    "mr2-representation": PrintedRow(72.3, 85.4, 73.1, 58.8),
}
