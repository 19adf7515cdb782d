"""What the report says about one :class:`~classmargin.evaluation.audit.Audit`: a verdict and tables."""

from __future__ import annotations

import math
from typing import Any

from classmargin.evaluation.audit import Audit
from classmargin.report.tables import NO_VALUE, Column, Table, format_value, frame_rows, is_missing

HEADLINES = {
    "overall": "all samples",
    "easy": "easy third of classes",
    "medium": "medium third of classes",
    "hard": "hard third of classes",
    "worst": "worst class",
    "gap": "gap, easy minus hard",
}

CLASS_COLUMNS = (
    Column("class_name", "Class"),
    Column("n", "n", "count", "Test samples of the class"),
    Column(
        "accuracy",
        "Accuracy",
        "percent",
        "Share of the class's samples that is classified right; also its recall",
    ),
    Column("interval", "Interval", "interval", "Wilson interval of the accuracy"),
    Column("tier", "Third", "text", "Third of the classes it belongs to"),
    Column("verdict", "Why", "text", "The most likely reason for a low accuracy"),
    Column("nearest_by_confusion", "Taken for", "text", "Class it is most often mistaken for"),
    Column("confusion_share", "Share", "percent", "Share of its samples that are taken for that class"),
    Column(
        "nearest_by_angle",
        "Nearest weight",
        "text",
        "Class whose classifier weight points in the nearest direction",
    ),
    Column("nearest_angle", "Angle °", "number", "Angle to that weight in degrees"),
    Column("precision", "Precision", "percent", "Share right among the samples predicted as this class"),
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
    Column(
        "label_issues", "Label issues", "count", "Samples that confident learning takes for another class"
    ),
    Column("ece", "ECE", "percent", "Expected calibration error of the class's samples"),
    Column("weight_norm", "Weight norm", "number", "Length of its classifier weight"),
)

WORST_COLUMNS = ("class_name", "n", "accuracy", "interval", "verdict")

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


def audit_verdict(audit: Audit) -> str:
    """Return the one sentence a reader should take home."""
    present = int((audit.by_class["n"] > 0).sum())
    accuracy = format_value(audit.overall, "percent")
    if present < 2:
        return f"The only class with samples is right {accuracy} of the time (n = {audit.num_samples})."
    if audit.worst == 1.0:
        return f"All {present} classes are classified without an error on {audit.num_samples} samples."
    if audit.overall == 0.0:
        return f"Not one of {audit.num_samples} samples of {present} classes is classified right."
    thirds = ""
    if not math.isnan(audit.gap):
        hard = format_value(audit.hard, "percent")
        # A ranking from elsewhere, or on other samples, may be upside down.
        than = "less" if audit.gap >= 0 else "more"
        thirds = (
            f"; the hard third reaches {hard}, {100 * abs(audit.gap):.1f} points {than} than the easy third"
        )
    worst = format_value(audit.worst, "percent")
    return (
        f"{_lagging(audit, present)}{thirds}; the worst class, “{audit.disparity['worst_class']}”, {worst}."
    )


def _lagging(audit: Audit, present: int) -> str:
    """Say how many classes lie below the overall accuracy with their whole interval; how many by chance."""
    accuracy = format_value(audit.overall, "percent")
    behind = int((audit.by_class["high"] < audit.overall).sum())
    by_chance = present * (1 - audit.confidence) / 2
    if behind <= by_chance:
        return f"No more classes lag behind the overall accuracy of {accuracy} than chance would give"
    expected = "less than one" if by_chance < 0.95 else f"about {by_chance:.0f}"
    verb = "lags" if behind == 1 else "lag"
    return (
        f"{behind} of {present} classes {verb} behind the overall accuracy of {accuracy} "
        f"(chance would give {expected})"
    )


def headline_table(audit: Audit) -> Table:
    """Return overall, thirds, worst and gap with their intervals."""
    rows = [
        {"metric": words, "value": getattr(audit, key), "interval": audit.interval(key)}
        for key, words in HEADLINES.items()
    ]
    columns = (
        Column("metric", "Accuracy of"),
        Column("value", "Value", "percent"),
        Column("interval", "Interval", "interval"),
    )
    note = f"{audit.num_samples} samples, {audit.num_classes} classes, thirds by the rule “{audit.ranking}”"
    return Table("Accuracy", columns, rows, note)


def class_rows(audit: Audit) -> list[dict[str, Any]]:
    """Return one dictionary a class, in class order, with the interval as a pair."""
    rows: list[dict[str, Any]] = frame_rows(audit.by_class)
    for row in rows:
        row["interval"] = (row["low"], row["high"])
    return rows


def class_table(audit: Audit) -> Table:
    """Return every class, worst first, with all that is known; columns without any value are left out."""
    rows = sorted(class_rows(audit), key=_accuracy_then_absent)
    known = tuple(column for column in CLASS_COLUMNS if any(_has_value(row.get(column.key)) for row in rows))
    return Table("All classes", known, rows)


def _accuracy_then_absent(row: dict[str, Any]) -> float:
    return math.inf if is_missing(row["accuracy"]) else float(row["accuracy"])


def worst_table(audit: Audit, top: int) -> Table:
    """Return the ``top`` classes with the lowest accuracy and how many more there are."""
    present = sorted((row for row in class_rows(audit) if row["n"] > 0), key=_accuracy_then_absent)
    shown = present[:top]
    columns = tuple(
        column
        for column in CLASS_COLUMNS
        if column.key in WORST_COLUMNS and any(_has_value(row.get(column.key)) for row in shown)
    )
    return Table("Worst classes", columns, shown, more_classes(len(present) - len(shown)))


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


def report_tables(audit: Audit, top: int) -> list[Table]:
    """Return the tables of the short report, for the terminal, Markdown and LaTeX."""
    tables = [headline_table(audit), worst_table(audit, top), disparity_table(audit)]
    tables += [table for table in (geometry_table(audit), correlation_table(audit)) if table.rows]
    return tables


def _has_value(value: Any) -> bool:
    if isinstance(value, tuple):
        return not any(is_missing(part) for part in value)
    return not is_missing(value) and value != ""
