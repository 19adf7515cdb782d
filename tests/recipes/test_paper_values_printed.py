"""What the paper prints: inner consistency, and agreement with its source where that is at hand.

``CLASSMARGIN_PAPER`` names the LaTeX source; without it only the consistency is checked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from classmargin.recipes import paper_values as values
from classmargin.recipes.paper_values import PrintedRow

THIRDS: dict[str, dict[str, PrintedRow]] = {
    "table 1a": values.TABLE_1A,
    "table 1b": values.TABLE_1B,
    "long tail": values.LONG_TAIL,
    "norms cifar": values.NORMS_CIFAR,
    "norms imagenet": values.NORMS_IMAGENET,
    **values.ARCHITECTURES_CIFAR,
    **values.ARCHITECTURES_IMAGENET,
    **{f"augmentation {name}": rows for name, rows in values.AUGMENTATION.items()},
    **values.FINE_GRAINED,
}


@pytest.mark.parametrize("name", THIRDS)
def test_overall_lies_among_its_thirds(name):
    for row in THIRDS[name].values():
        assert row.hard < row.medium < row.easy
        # Shares of a third differ by one class of 37 at most, and all numbers are rounded.
        assert (row.easy + row.medium + row.hard) / 3 == pytest.approx(row.overall, abs=0.75)


def test_numbers_that_stand_twice_in_the_paper_agree():
    assert values.TABLE_3["mr2"] == values.TABLE_1A["mr2"]
    assert values.MEAN_MARGIN["c=2"]["hard"] == values.TABLE_1A["mr2"].hard
    assert values.REPRESENTATION_WEIGHT["lambda=0.5"]["overall"] == values.TABLE_1A["mr2"].overall
    assert values.AUGMENTATION["standard"]["mr2"] == values.TABLE_1B["mr2"]


def test_known_contradictions_carry_a_doubt_mark():
    """Two different settings with one row, changes that do not fit the values, a division by zero."""
    same = values.NORMS_CIFAR["p=5"], values.TABLE_1A["mr2"]
    assert vars(same[0]).items() - {("doubt", same[0].doubt)} == vars(same[1]).items() - {("doubt", same[1].doubt)}
    assert all(row.doubt for row in same)
    vit, norm = values.ARCHITECTURES_IMAGENET["clip-vit-b32"]["mr2"], values.NORMS_IMAGENET["p=3"]
    assert (norm.overall, norm.hard) == (vit.overall, vit.hard)
    assert norm.doubt
    assert values.TABLE_1B["jtt"].doubt
    assert values.MEAN_MARGIN["c=0"]["doubt"]


def test_mnist_ratio_is_that_of_its_rows():
    ratios = [s / m for s, m in zip(values.MNIST_SPREAD, values.MNIST_MEAN_NORM, strict=True)]
    assert sum(ratios) / 10 == pytest.approx(values.MNIST_RATIO, abs=1e-5)


# Against the source


@pytest.fixture(scope="module")
def source():
    path = os.environ.get("CLASSMARGIN_PAPER")
    if not path:
        pytest.skip("CLASSMARGIN_PAPER does not name the LaTeX source of the paper")
    text = Path(path).read_text(encoding="utf-8")
    # Colours, sizes and bold type off, so that rows are numbers between ampersands.
    text = re.sub(r"\\(?:textbf|scriptsize|color\{gray\}|rowcolor\{\w+\})", "", text)
    return re.sub(r"[{}]", "", text)


def numbers(line: str) -> list[float]:
    return [float(word) for word in re.findall(r"(?<![\w(+.-])\d+\.?\d*(?![\d)])", line)]


def changes(line: str) -> list[float]:
    return [float(word) for word in re.findall(r"\(([+-]\d+\.\d+)\)", line)]


def rows_of(source: str) -> list[tuple[list[float], list[float]]]:
    joined = re.sub(r"\s*\n\s*", " ", source)
    return [(numbers(cells(row)), changes(row)) for row in joined.split(r"\\")]


def cells(row: str) -> str:
    return " ".join(re.sub(r"\([+-]?\d+\.\d+\)", "", part) for part in row.split("&")[1:])


@pytest.mark.parametrize("name", [name for name in THIRDS if "norms" not in name and name not in values.FINE_GRAINED])
def test_every_row_stands_in_the_source(source, name):
    found = [row for row, _ in rows_of(source)]
    for key, row in THIRDS[name].items():
        wanted = [row.overall, row.easy, row.medium, row.hard]
        assert any(line[-4:] == wanted for line in found), (name, key)


@pytest.mark.parametrize("name", ["norms cifar", "norms imagenet"])
def test_norm_tables_stand_in_the_source_metric_by_metric(source, name):
    found = [row for row, _ in rows_of(source)]
    rows = [row for key, row in THIRDS[name].items() if key != "erm"]
    for metric in ("overall", "easy", "medium", "hard"):
        assert [getattr(row, metric) for row in rows] in found, metric


def test_fine_grained_margins_sweeps_classes_and_deviations_stand_in_the_source(source):
    found = [row for row, _ in rows_of(source)]
    for method in ("erm", "mr2"):
        for metric in ("overall", "easy", "medium", "hard"):
            assert [getattr(rows[method], metric) for rows in values.FINE_GRAINED.values()] in found
        assert list(values.MARGINS[method].values()) in found
        assert list(values.PER_CLASS[method]) in found
    for sweep in (values.MEAN_MARGIN, values.REPRESENTATION_WEIGHT):
        for metric in ("overall", "hard"):
            assert [row[metric] for row in sweep.values()] in found
    for table in (values.DEVIATIONS_CIFAR, values.DEVIATIONS_IMAGENET):
        for rows in table.values():
            for row in rows.values():
                assert [row.hard, row.medium, row.easy, row.overall] in found
    assert list(values.MNIST_SPREAD) in found
    assert list(values.MNIST_MEAN_NORM) in found


def test_every_printed_change_that_does_not_fit_its_values_is_in_doubt(source):
    """Rows of Table 1(b) and of the augmentation table, whose changes are printed third by third."""
    tables = {"table 1b": values.TABLE_1B, **{f"a {k}": rows for k, rows in values.AUGMENTATION.items()}}
    wrong = set()
    for table in tables.values():
        base = table["erm"]
        for row in table.values():
            for line, printed in rows_of(source):
                if line[:4] == [row.overall, row.easy, row.medium, row.hard] and printed:
                    thirds = [row.easy - base.easy, row.medium - base.medium, row.hard - base.hard]
                    if any(abs(a - b) > 0.051 for a, b in zip(printed[-3:], thirds, strict=False)):
                        wrong.add((row.overall, row.hard))
                        assert row.doubt, row
    assert (74.8, 55.7) in wrong
