"""What the report says about one :class:`~classmargin.evaluation.Audit`: a verdict and tables."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.report.audit_words import MOST_LINES, RANKING_WORDS, audit_verdict, headline
from classmargin.report.tables import (
    NO_VALUE,
    Column,
    Table,
    format_value,
    frame_rows,
    is_missing,
    markdown_report,
    to_html,
)

if TYPE_CHECKING:
    import pandas as pd

MOST_SLICES = 30
HEADLINES = {
    "overall": "all samples",
    "easy": "easy third of classes",
    "medium": "medium third of classes",
    "hard": "hard third of classes",
    "worst": "worst class",
    "gap": "gap, easy minus hard",
}
# The worst class has an interval in its own row; this is another number, and is called so.
LOWEST = {True: "lowest true accuracy", False: "lowest observed accuracy"}
CLASS_COLUMNS = (
    Column("class_name", "Class"),
    Column("n", "n", "count", "Test samples of the class"),
    Column(
        "accuracy",
        "Accuracy",
        "percent",
        "Share of the class's samples that is classified right; also its recall",
    ),
    Column(
        "estimate",
        "Estimate",
        "percent",
        "Estimate of the true accuracy: moved towards the other classes where samples are few",
    ),
    Column("interval", "Interval", "interval", "Interval of the true accuracy"),
    Column("lag", "Lags", "text", "Whether it lies below the overall accuracy by more than chance explains"),
    Column("tier", "Third", "text", "Third of the classes it belongs to"),
    Column("verdict", "Why", "text", "The most likely reasons for a low accuracy"),
    Column("next_step", "Next step", "text", "What to do first, from the leading reason"),
    Column("train_accuracy", "In training", "percent", "Accuracy on the class's training samples"),
    Column("nearest_by_confusion", "Taken for", "text", "Class it is most often mistaken for"),
    Column("confusion_share", "Share", "percent", "Share of its samples that are taken for that class"),
    Column(
        "separability",
        "Told apart",
        "percent",
        "How often a classifier of this class and the one it is taken for, cross-validated on their features, is right; 50 % is chance",
    ),
    Column(
        "nearest_by_angle",
        "Nearest weight",
        "text",
        "Class whose classifier weight points in the nearest direction",
    ),
    Column("nearest_angle", "Angle °", "number", "Angle to that weight in degrees"),
    Column("precision", "Precision", "percent", "Share right among the samples predicted as this class"),
    Column("f1", "F1", "percent", "Harmonic mean of precision and recall"),
    Column(
        "top5", "Top 5", "percent", "Share of its samples for which it is among the five most likely classes"
    ),
    Column("cost", "Cost", "number", "Mean cost of its samples"),
    Column("spread", "Spread ‖ŝ‖²", "number", "Mean squared distance of its features from their mean"),
    Column("mean_norm", "Mean norm", "number", "Length of its mean feature"),
    Column("sqnorm", "r²", "number", "Mean squared norm of its features"),
    Column("margin", "Margin γ", "number", "Class margin that MR² would give"),
    Column(
        "output_margin",
        "Output margin",
        "number",
        "Mean of p(true class) minus the largest other probability",
    ),
    Column("low_confidence", "Unsure", "percent", "Share of its samples with a top probability below 0.5"),
    Column(
        "confidently_wrong",
        "Sure and wrong",
        "percent",
        "Share of samples that are wrong with a top probability of 0.8 or more",
    ),
    Column("label_issues", "Label issues", "count", "Samples whose label is doubted (confident learning)"),
    Column("ece", "ECE", "percent", "Expected calibration error of the class's samples"),
    Column("weight_norm", "Weight norm", "number", "Length of its classifier weight"),
)
FAILING_COLUMNS = ("class_name", "n", "accuracy", "estimate", "interval", "verdict", "next_step")
NARROW_COLUMNS = ("class_name", "n", "accuracy", "interval")
NARROW_LAST = Column("both", "Why → next step")
LAGS = "lags"
DISPARITY = {
    "mean_class_accuracy": ("Mean over classes", "percent", "Every class counts the same"),
    "worst_5": ("Mean of the five worst classes", "percent", "Fewer where there are fewer classes"),
    "best": ("Best class", "percent", ""),
    "range": ("Range, best minus worst", "percent", ""),
    "ratio": ("Ratio, worst to best", "number", "1 is equal treatment"),
    "std": ("Standard deviation over classes", "percent", ""),
    "gini": ("Gini index", "number", "0 is equal treatment"),
    "generalized_entropy": ("Generalized entropy (α = 2)", "number", "0 is equal treatment"),
    "theil": ("Theil index", "number", "0 is equal treatment"),
}
GEOMETRY = {
    "output_margin": ("Output margin", "Mean of p(true class) minus the largest other probability"),
    "output_margin_easy": ("Output margin, easy third", ""),
    "output_margin_medium": ("Output margin, medium third", ""),
    "output_margin_hard": (
        "Output margin, hard third",
        "Smaller than for the easy third: these classes are decided by less",
    ),
    "classifier_margin_degrees": (
        "Classifier margin (degrees)",
        "Smallest angle between the weights of two classes",
    ),
    "weight_norm_mean": ("Mean weight norm", "Length of a class's classifier weight"),
    "weight_norm_cv": (
        "Weight norms, relative deviation",
        "Near 0: disparity does not come from the head's norms",
    ),
    "nc1": ("Neural collapse NC1", "Variability within classes in units of that between them; 0 is collapse"),
    "within_between_ratio": ("Within / between variance", "Traces of the two covariances"),
    "mean_equinorm_cv": ("Lengths of class means, relative deviation", "0 at neural collapse"),
    "mean_equiangularity": ("Cosines of class means, deviation", "0: all angles equal"),
    "mean_max_angle_gap": ("Class means, distance from a simplex", "0 at neural collapse"),
    "weight_equinorm_cv": ("Lengths of centred weights, relative deviation", "0 at neural collapse"),
    "weight_equiangularity": ("Cosines of weights, deviation", "0: all angles equal"),
    "weight_max_angle_gap": ("Weights, distance from a simplex", "0 at neural collapse"),
    "self_duality": (
        "Weights against class means",
        "Squared distance once both are normalised; 0 at neural collapse",
    ),
    "spread_to_mean_norm": ("Mean of ‖ŝ‖ / ‖μ̂‖", "The paper's measure of how far features are from collapse"),
}
BOUND_WORDS = {
    "class_name": "Class",
    "bound": "Bound",
    "empirical": "Empirical margin loss",
    "complexity": "Complexity of features and head",
    "confidence": "Confidence term",
    "total": "Bound on the error, the sum of these",
    "delta": "Probability δ that the bound fails",
    "weight_bound": "Largest weight Λ",
    "error": "Measured error",
}


def headline_table(audit: Audit) -> Table:
    """Return overall, thirds, worst and gap with their intervals."""
    rows = [
        {
            "metric": LOWEST[audit.ranking == "corrected"] if key == "worst" else words,
            "value": getattr(audit, key),
            "interval": audit.interval(key),
        }
        for key, words in HEADLINES.items()
    ]
    columns = (
        Column("metric", "Accuracy of"),
        Column("value", "Value", "percent"),
        Column("interval", "Interval", "interval"),
    )
    note = f"{audit.num_samples} samples, {audit.num_classes} classes, {RANKING_WORDS[audit.ranking]}"
    return Table("Accuracy", columns, rows, note)


def class_rows(audit: Audit) -> list[dict[str, Any]]:
    """Return one dictionary per class, in class order, with the interval as a pair."""
    rows: list[dict[str, Any]] = frame_rows(audit.by_class)
    corrected = audit.ranking == "corrected"
    for row in rows:
        # One interval per class and page: that of the true accuracy, or Wilson's where all else is observed, too.
        if corrected:
            row["interval"] = (row["estimate_low"], row["estimate_high"])
        else:
            row["interval"], row["estimate"] = (row["low"], row["high"]), None
        row["lag"] = LAGS if row["lags"] else ""
    return rows


def class_table(audit: Audit) -> Table:
    """Return every class, worst first, with all that is known; columns without any value are left out."""
    rows = sorted(class_rows(audit), key=_accuracy_then_absent)
    known = tuple(column for column in CLASS_COLUMNS if any(_has_value(row.get(column.key)) for row in rows))
    return Table("All classes", known, rows)


def _accuracy_then_absent(row: dict[str, Any]) -> float:
    value = row["accuracy"] if is_missing(row["estimate"]) else row["estimate"]
    return math.inf if is_missing(value) else float(value)


def failing_table(audit: Audit, top: int, *, narrow: bool = False) -> Table:
    """Return the ``top`` classes that lag behind, worst first, with reason and next step; the worst ones where none lags.

    Args:
        audit: What is shown.
        top: Most rows.
        narrow: Whether the leading reason and the next step share a column, for 80 characters.
    """
    present = sorted((row for row in class_rows(audit) if row["n"] > 0), key=_accuracy_then_absent)
    lagging = [row for row in present if row["lags"]]
    rows = lagging or present
    shown = rows[:top]
    columns = tuple(
        column
        for column in CLASS_COLUMNS
        if column.key in FAILING_COLUMNS and any(_has_value(row.get(column.key)) for row in shown)
    )
    if narrow:
        columns = (*(column for column in columns if column.key in NARROW_COLUMNS), NARROW_LAST)
        shown = [
            {**row, "both": " → ".join(filter(None, (row["reason"], row["next_step"])))} for row in shown
        ]
    title = "Classes that lag behind" if lagging else "Worst classes (none lags behind)"
    return Table(title, columns, shown, more_classes(len(rows) - len(shown)))


def more_classes(rest: int) -> str:
    """Return the words for classes that a table does not show, empty where there are none."""
    return f"and {rest} more class{'es' if rest != 1 else ''}" if rest else ""


def tier_table(audit: Audit) -> Table:
    """Return the thirds: how many classes, which accuracy, which margin and spread."""
    rows = frame_rows(audit.tiers)
    for row in rows:
        row["interval"] = (row["low"], row["high"])
    columns = (
        Column("tier", "Third"),
        Column("classes", "Classes", "count"),
        Column("n", "Samples", "count"),
        Column("accuracy", "Accuracy", "percent"),
        Column("interval", "Interval", "interval"),
        Column("output_margin", "Output margin", "number"),
        Column("spread", "Spread ‖ŝ‖²", "number"),
    )
    return Table("Thirds", tuple(c for c in columns if any(_has_value(row.get(c.key)) for row in rows)), rows)


def disparity_table(audit: Audit) -> Table:
    """Return the measures of the gap between classes."""
    rows = [
        {"measure": words, "value": format_value(audit.disparity.get(key), kind), "meaning": meaning}  # type: ignore[arg-type]
        for key, (words, kind, meaning) in DISPARITY.items()
    ]
    if not math.isnan(audit.ece):
        rows.append(
            {
                "measure": "Calibration error (ECE)",
                "value": format_value(audit.ece, "percent"),
                "meaning": "Over all samples",
            }
        )
    return Table(
        "Disparity",
        (Column("measure", "Measure"), Column("value", "Value", "value"), Column("meaning", "Meaning")),
        rows,
    )


def geometry_table(audit: Audit) -> Table:
    """Return margins, norms and neural-collapse diagnostics, as far as the given arrays tell them."""
    rows = [
        {"measure": words, "value": audit.geometry[key], "meaning": meaning}
        for key, (words, meaning) in GEOMETRY.items()
        if not is_missing(audit.geometry.get(key))
    ]
    return Table(
        "Geometry",
        (Column("measure", "Measure"), Column("value", "Value", "number"), Column("meaning", "Meaning")),
        rows,
    )


def correlation_table(audit: Audit) -> Table:
    """Return correlations over classes with their intervals."""
    rows = [
        row | {"pair": f"{row['x']} – {row['y']}", "range": _correlation_range(row["low"], row["high"])}
        for row in frame_rows(audit.correlations)
        if not is_missing(row["value"])
    ]
    columns = (
        Column("pair", "Over classes"),
        Column("measure", "Correlation"),
        Column("value", "Value", "number"),
        Column("range", "Interval"),
        Column("classes", "Classes", "count"),
    )
    return Table("Correlations", columns, rows)


def _correlation_range(low: float, high: float) -> str:
    return NO_VALUE if is_missing(low) or is_missing(high) else f"{low:+.2f} to {high:+.2f}"


def confusion_table(audit: Audit, top: int) -> Table:
    """Return the most frequent errors."""
    rows = frame_rows(audit.top_confusions(top))
    columns = (
        Column("truth", "True class"),
        Column("predicted", "Taken for"),
        Column("count", "Samples", "count"),
        Column("share", "Of the class", "percent"),
    )
    return Table("Most frequent errors", columns, rows)


def bound_tables(audit: Audit) -> list[Table]:
    """Return the terms of Proposition 1 and the bounds of the classes (Eq. 15), greatest first."""
    if audit.bounds is None:
        return []
    terms = [
        {"term": BOUND_WORDS.get(name, name), "value": value}
        for name, value in audit.bounds["terms"].items()
        if isinstance(value, (int, float))
    ]
    term_columns = (Column("term", "Term"), Column("value", "Value", "number"))
    frame = audit.bounds["by_class"]
    rows = frame_rows(frame.sort_values("bound", ascending=False, kind="stable"))
    columns = tuple(
        Column(key, BOUND_WORDS.get(key, key), "text" if key == "class_name" else "number")
        for key in frame.columns
    )
    return [
        Table("Terms of the bound (Proposition 1)", term_columns, terms),
        Table("Bounds of the classes (Eq. 15)", columns, rows),
    ]


def report_tables(audit: Audit, top: int, *, full: bool = False, narrow: bool = False) -> list[Table]:
    """Return the tables for the terminal, Markdown and LaTeX: headlines and failing classes, or all."""
    tables = [headline_table(audit), failing_table(audit, top, narrow=narrow and not full)]
    if not full:
        return tables
    tables += [tier_table(audit), confusion_table(audit, top), disparity_table(audit)]
    tables += [
        table
        for table in (cost_table(audit, top), geometry_table(audit), correlation_table(audit))
        if table.rows
    ]
    return tables


def cost_table(audit: Audit, top: int) -> Table:
    """Return the ``top`` classes with the highest mean cost, with their share of all costs; no rows without costs."""
    rows = [row for row in class_rows(audit) if not is_missing(row["cost"])]
    total = sum(row["cost"] * row["n"] for row in rows)
    for row in rows:
        row["range"] = f"{row['cost_low']:.3g} to {row['cost_high']:.3g}"
        row["share"] = row["cost"] * row["n"] / total if total > 0 else None
    rows.sort(key=lambda row: -row["cost"])
    columns = (
        Column("class_name", "Class"),
        Column("n", "n", "count"),
        Column("cost", "Mean cost", "number"),
        Column("range", "Interval"),
        Column("share", "Of all costs", "percent"),
    )
    return Table("Costliest classes", columns, rows[:top], more_classes(max(0, len(rows) - top)))


def _has_value(value: Any) -> bool:
    if isinstance(value, tuple):
        return not any(is_missing(part) for part in value)
    return not is_missing(value) and value != ""


def audit_markdown(audit: Audit, top: int) -> str:
    """Return headline numbers, the ``top`` worst classes and the notes in Markdown."""
    return markdown_report("", [headline_table(audit), failing_table(audit, top)], audit.notes) + "\n"


def audit_fragment(audit: Audit) -> str:
    """Return verdict, headline numbers and failing classes as a piece of HTML for notebooks; everything of the data is escaped."""
    words = (
        f"<p><b>{html.escape(printable(audit_verdict(audit)))}</b></p><p>{html.escape(headline(audit))}</p>"
    )
    return f"<div>{words}{to_html(failing_table(audit, MOST_LINES))}</div>"


def slice_table(slices: pd.DataFrame) -> Table:
    """Return the slices that were found, or words that there is none."""
    found = slices[slices["found"].astype(bool)]
    rows = frame_rows(found.head(MOST_SLICES))
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
            "Accuracy of the rest, or what the accuracies of its classes predict",
        ),
        Column("q_value", "q", "p_value", "p after control of the false discovery rate over all slices"),
    )
    note = f"{len(found)} of {len(slices)} slices that are worse than the rest are so by more than chance."
    if len(found) > MOST_SLICES:
        note += f" The first {MOST_SLICES} are shown."
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
