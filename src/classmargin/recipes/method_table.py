"""The paper-style table of a comparison of methods, and the changes beside it."""

from __future__ import annotations

from collections.abc import Sequence

from classmargin.recipes.compare_methods import SHOWN, MethodComparison
from classmargin.recipes.paper_values import TABLE_1A, TABLE_1A_TITLE, PrintedRow
from classmargin.report.tables import Column, Table

NOTE = (
    "Test accuracy in percent, mean over seeds, with 95 % intervals over test samples and seeds. Easy, medium "
    "and hard are the thirds of the classes ranked by each run's own accuracies; worst is the lowest class."
)
CHANGE_NOTE = (
    "Percentage points, paired on the same test samples, with 95 % intervals over samples and seeds "
    "(* excludes zero); "
    "thirds are ranked on one half of the samples and measured on the other."
)
PRINTED = ("overall", "easy", "medium", "hard")
PRINTED_NOTE = (
    "Accuracy in percent as printed, beside ours for orientation: unless this comparison is CIFAR-100 with "
    "ResNet-32 and 300 epochs, only the order of the methods can be compared. The paper states no worst class."
)


def tables_of(comparison: MethodComparison) -> list[Table]:
    """Return the table of accuracies, that of the changes against the first, and what the paper printed."""
    tables = [accuracy_table(comparison)]
    if comparison.paired is not None:
        tables.append(change_table(comparison))
    printed = printed_table(comparison)
    return tables if printed is None else [*tables, printed]


def printed_table(comparison: MethodComparison) -> Table | None:
    """Return the paper's numbers for the methods compared, or None if it has none of them.

    They are of another data set, network and length unless the run says ``cifar100``, ``resnet32`` and 300 epochs; the
    note says so, and the *order* of methods is what can be compared at any scale.
    """
    rows = [
        {"title": result.title, **_printed(TABLE_1A[result.name])}
        for result in comparison.results
        if result.name in TABLE_1A
    ]
    if not rows:
        return None
    columns = (Column("title", "Method"), *_value_columns(PRINTED), Column("doubt", "Doubt"))
    return Table(TABLE_1A_TITLE, columns, rows, PRINTED_NOTE)


def _printed(row: PrintedRow) -> dict[str, str]:
    return {**{name: f"{getattr(row, name):.1f}" for name in PRINTED}, "doubt": row.doubt}


def accuracy_table(comparison: MethodComparison) -> Table:
    """Return one row a method: overall, easy, medium, hard, worst, each with its interval."""
    columns = (Column("title", "Method"), Column("seeds", "Seeds", "count"), *_value_columns())
    rows = [
        {
            "title": result.title,
            "seeds": result.seeds,
            **{name: _percent(*result.values[name]) for name in SHOWN},
        }
        for result in comparison.results
    ]
    return Table("Accuracy on the test set", columns, rows, NOTE)


def change_table(comparison: MethodComparison) -> Table:
    """Return one row a method but the first: change of each value, and whether its interval excludes zero."""
    assert comparison.paired is not None
    rows = [
        {"title": pair.candidate_name, **{name: _points(*pair.delta(name)) for name in SHOWN}}
        for pair in comparison.paired.comparisons
    ]
    title = f"Change against {comparison.paired.names[0]}"
    return Table(title, (Column("title", "Method"), *_value_columns()), rows, CHANGE_NOTE)


def verdict_of(comparison: MethodComparison) -> str:
    """Return the paired verdict, one sentence a candidate."""
    if comparison.paired is None:
        return f"Only {comparison.results[0].title} was run: nothing to compare."
    return " ".join(pair.verdict for pair in comparison.paired.comparisons)


def _value_columns(names: Sequence[str] = SHOWN) -> tuple[Column, ...]:
    return tuple(Column(name, name.capitalize(), "value") for name in names)


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def _points(value: float, low: float, high: float) -> str:
    sure = "*" if low > 0 or high < 0 else ""
    return f"{100 * value:+.1f}{sure} ({100 * low:+.1f} to {100 * high:+.1f})"
