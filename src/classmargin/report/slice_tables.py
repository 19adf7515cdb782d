"""What the report says about slices and super-classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from classmargin.report.tables import Column, Table, frame_rows

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 30


def slice_table(slices: pd.DataFrame) -> Table:
    """Return the slices that were found, or words that there is none."""
    found = slices[slices["found"].astype(bool)]
    rows = frame_rows(found.head(MOST_ROWS))
    for row in rows:
        row["interval"] = (row["low"], row["high"])
        row["class_name"] = row["class_name"] or "all classes"
        row["slice"] = f"{row['property']}: {row['value']}"
    columns = (
        Column("class_name", "Class"),
        Column("slice", "Slice"),
        Column("n", "n", "count"),
        Column("accuracy", "Accuracy", "percent"),
        Column("interval", "Interval", "interval"),
        Column(
            "elsewhere",
            "Elsewhere",
            "percent",
            "Accuracy of the rest, or what the classes of the slice let expect",
        ),
        Column("q_value", "q", "p_value", "p after control of the false discovery rate over all slices"),
    )
    note = f"{len(found)} of {len(slices)} slices that are worse than the rest are more than chance."
    if len(found) > MOST_ROWS:
        note += f" The first {MOST_ROWS} are shown."
    return Table("Slices where the model is worse", columns, rows, note)


def group_table(groups: pd.DataFrame) -> Table:
    """Return the super-classes, the worst first."""
    rows = frame_rows(groups)
    for row in rows:
        row["interval"] = (row["low"], row["high"])
    columns = (
        Column("group", "Group"),
        Column("classes", "Classes", "count"),
        Column("n", "n", "count"),
        Column("accuracy", "Accuracy", "percent"),
        Column("interval", "Interval", "interval"),
        Column("group_accuracy", "Right group", "percent", "Share of samples whose group is right"),
        Column("inside", "Errors inside", "percent", "Share of the errors that stay in the group"),
    )
    return Table("Groups of classes", columns, rows)
