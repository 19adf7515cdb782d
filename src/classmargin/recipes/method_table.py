"""The paper-style table of a comparison of methods, and the changes beside it."""

from __future__ import annotations

from classmargin.recipes.compare_methods import SHOWN, MethodComparison
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


def tables_of(comparison: MethodComparison) -> list[Table]:
    """Return the table of accuracies and, with several methods, that of the changes against the first."""
    tables = [accuracy_table(comparison)]
    if comparison.paired is not None:
        tables.append(change_table(comparison))
    return tables


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


def _value_columns() -> tuple[Column, ...]:
    return tuple(Column(name, name.capitalize(), "value") for name in SHOWN)


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def _points(value: float, low: float, high: float) -> str:
    sure = "*" if low > 0 or high < 0 else ""
    return f"{100 * value:+.1f}{sure} ({100 * low:+.1f} to {100 * high:+.1f})"
