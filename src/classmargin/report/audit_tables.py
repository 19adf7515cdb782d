"""What the report says about one :class:`~classmargin.evaluation.Audit`: a verdict, a summary in words, and tables."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_metrics import TIERS
from classmargin.evaluation.corrected import EQUAL_LEVEL
from classmargin.report.tables import (
    NO_VALUE,
    Column,
    Table,
    columns,
    format_value,
    frame_rows,
    is_missing,
    to_html,
)

if TYPE_CHECKING:
    import pandas as pd

MOST_SLICES = 30
MOST_NAMES = 4  # in one sentence
MOST_LINES = 8
RANKING_WORDS = {
    "corrected": "estimates of the true class accuracies",
    "own": "thirds ranked on these same samples, as in the paper",
    "reference": "thirds ranked by another model",
    "baseline": "thirds ranked by the baseline",
    "pooled": "thirds ranked by the mean of both models",
    "crossfit": "thirds ranked on one half of the samples and measured on the other",
}
HEADLINES = {
    "overall": "all samples",
    **{third: f"{third} third of classes" for third in TIERS},
    "worst": "worst class",
    "gap": "gap, easy minus hard",
}
# The worst class has an interval in its own row; this is another number, and is called so.
LOWEST = {True: "lowest true accuracy", False: "lowest observed accuracy"}
CLASS_COLUMNS = columns("""
    class_name | Class
    n | n | count | Test samples of the class
    accuracy | Accuracy | percent | Share of the class's samples that is classified right; also its recall
    estimate | Estimate | percent | Estimate of the true accuracy: moved towards the other classes where samples are few
    interval | Interval | interval | Interval of the true accuracy
    lag | Lags | text | Whether it lies below the overall accuracy by more than chance explains
    tier | Third | text | Third of the classes it belongs to
    verdict | Why | text | The most likely reasons for a low accuracy
    next_step | Next step | text | What to do first, from the leading reason
    train_accuracy | In training | percent | Accuracy on the class's training samples
    nearest_by_confusion | Taken for | text | Class it is most often mistaken for
    confusion_share | Share | percent | Share of its samples that are taken for that class
    separability | Told apart | percent | How often a classifier of this class and the one it is taken for, cross-validated on \
        their features, is right; 50 % is chance
    nearest_by_angle | Nearest weight | text | Class whose classifier weight points in the nearest direction
    nearest_angle | Angle ° | number | Angle to that weight in degrees
    precision | Precision | percent | Share right among the samples predicted as this class
    f1 | F1 | percent | Harmonic mean of precision and recall
    top5 | Top 5 | percent | Share of its samples for which it is among the five most likely classes
    cost | Cost | number | Mean cost of its samples
    spread | Spread ‖ŝ‖² | number | Mean squared distance of its features from their mean
    mean_norm | Mean norm | number | Length of its mean feature
    sqnorm | r² | number | Mean squared norm of its features
    margin | Margin γ | number | Class margin that MR² would give
    output_margin | Output margin | number | Mean of p(true class) minus the largest other probability
    low_confidence | Unsure | percent | Share of its samples with a top probability below 0.5
    confidently_wrong | Sure and wrong | percent | Share of samples that are wrong with a top probability of 0.8 or more
    label_issues | Label issues | count | Samples whose label is doubted (confident learning)
    ece | ECE | percent | Expected calibration error of the class's samples
    weight_norm | Weight norm | number | Length of its classifier weight
""")
FAILING_COLUMNS = ("class_name", "n", "accuracy", "estimate", "interval", "verdict", "next_step")
NARROW_COLUMNS = ("class_name", "n", "accuracy", "interval")
NARROW_LAST = Column("both", "Why → next step")
# Measures of one model, shown as rows: the hint is what the measure means.
DISPARITY = columns("""
    mean_class_accuracy | Mean over classes | percent | Every class counts the same
    worst_5 | Mean of the five worst classes | percent | Fewer where there are fewer classes
    best | Best class | percent
    range | Range, best minus worst | percent
    ratio | Ratio, worst to best | number | 1 is equal treatment
    std | Standard deviation over classes | percent
    gini | Gini index | number | 0 is equal treatment
    generalized_entropy | Generalized entropy (α = 2) | number | 0 is equal treatment
    theil | Theil index | number | 0 is equal treatment
    ece | Calibration error (ECE) | percent | Over all samples
""")
GEOMETRY = columns("""
    output_margin | Output margin | number | Mean of p(true class) minus the largest other probability
    output_margin_easy | Output margin, easy third | number
    output_margin_medium | Output margin, medium third | number
    output_margin_hard | Output margin, hard third | number | Smaller than for the easy third: these classes are decided by less
    classifier_margin_degrees | Classifier margin (degrees) | number | Smallest angle between the weights of two classes
    weight_norm_mean | Mean weight norm | number | Length of a class's classifier weight
    weight_norm_cv | Weight norms, relative deviation | number | Near 0: disparity does not come from the head's norms
    nc1 | Neural collapse NC1 | number | Variability within classes in units of that between them; 0 is collapse
    within_between_ratio | Within / between variance | number | Traces of the two covariances
    mean_equinorm_cv | Lengths of class means, relative deviation | number | 0 at neural collapse
    mean_equiangularity | Cosines of class means, deviation | number | 0: all angles equal
    mean_max_angle_gap | Class means, distance from a simplex | number | 0 at neural collapse
    weight_equinorm_cv | Lengths of centred weights, relative deviation | number | 0 at neural collapse
    weight_equiangularity | Cosines of weights, deviation | number | 0: all angles equal
    weight_max_angle_gap | Weights, distance from a simplex | number | 0 at neural collapse
    self_duality | Weights against class means | number | Squared distance once both are normalised; 0 at neural collapse
    spread_to_mean_norm | Mean of ‖ŝ‖ / ‖μ̂‖ | number | The paper's measure of how far features are from collapse
""")
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
    if audit.overall == 1.0:
        return f"All {present} classes are classified without an error on {audit.num_samples} samples."
    if audit.overall == 0.0:
        return f"Not one of {audit.num_samples} samples of {present} classes is classified right."
    if audit.ranking == "corrected" and audit.equal_classes > EQUAL_LEVEL:
        most = audit.interval("gap")[1]
        end = f"; the true gap between the easy and the hard third is at most {100 * most:.1f} points"
        same = f"{present} classes that are all right {accuracy} of the time would look like this (p = {audit.equal_classes:.2f})"
        return f"No evidence that classes differ: {same}{'' if math.isnan(most) else end}."
    thirds = ""
    if not math.isnan(audit.gap):
        hard = format_value(audit.hard, "percent")
        than = "less" if audit.gap >= 0 else "more"  # a ranking from elsewhere, or on other samples, may be upside down
        thirds = f"; the hard third reaches {hard}, {100 * abs(audit.gap):.1f} points {than} than the easy third"
    lagging = _lagging(audit, present)
    worst = f"“{audit.disparity['worst_class']}”"
    # Of the class that is named as worst; the lowest true accuracy, whichever class has it, is another number.
    lowest = float(audit.by_class["estimate"].min()) if audit.ranking == "corrected" else audit.worst
    value = format_value(lowest, "percent")
    ending = "" if worst in lagging else f"; the worst class, {worst}, {value}"
    return f"{lagging}{thirds}{ending}."


def _lagging(audit: Audit, present: int) -> str:
    accuracy = format_value(audit.overall, "percent")
    order = "estimate" if audit.ranking == "corrected" else "accuracy"
    frame = audit.by_class[audit.by_class["lags"].astype(bool)].sort_values(order, kind="stable")
    names = [str(name) for name in frame["class_name"]]
    if len(names) <= audit.lag_by_chance:
        return f"No more classes lag behind the overall accuracy of {accuracy} than chance would give"
    expected = "less than one" if audit.lag_by_chance < 0.95 else f"about {audit.lag_by_chance:.0f}"
    verb = "lags" if len(names) == 1 else "lag"
    named = _named(names, format_value(float(frame[order].iloc[0]), "percent"))
    return f"{len(names)} of {present} classes {verb} behind the overall accuracy of {accuracy}: {named} (chance would give {expected})"


def _named(names: list[str], worst: str) -> str:
    """Name some of the classes, the worst one with its accuracy."""
    shown = [f"“{name}”" for name in names[:MOST_NAMES]]
    shown[0] += f" ({worst})"
    last = f"{len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def audit_text(audit: Audit) -> str:
    """Return a short summary: verdict, headline numbers and, for each lagging class, the reason and the next step."""
    lines = [audit_verdict(audit), "", headline(audit)]
    frame = audit.by_class[audit.by_class["lags"].astype(bool)].sort_values("accuracy", kind="stable")
    for row in frame.head(MOST_LINES).to_dict("records"):
        words = f"{format_value(row['accuracy'], 'percent'):>6}  {row['class_name']} (n = {row['n']}): {row['verdict']}"
        lines.append(words + (f" → {row['next_step']}" if row["next_step"] else ""))
    if len(frame) > MOST_LINES:
        lines.append(f"        … and {len(frame) - MOST_LINES} more")
    lines += ["", "Which samples: .samples and .samples_of(class_name); a page: .to_html(path); all numbers: .by_class"]
    return "\n".join(printable(line) for line in lines)


def headline(audit: Audit) -> str:
    """Return the headline numbers in one line."""
    values = {name: getattr(audit, name) for name in ("overall", *TIERS, "worst")}
    parts = [f"{name} {format_value(value, 'percent')}" for name, value in values.items() if not math.isnan(value)]
    return f"{', '.join(parts)} ({audit.num_samples} samples, {audit.num_classes} classes)"


def headline_table(audit: Audit) -> Table:
    """Return overall, thirds, worst and gap with their intervals."""
    words = HEADLINES | {"worst": LOWEST[audit.ranking == "corrected"]}
    rows = [
        {"key": key, "metric": each, "value": getattr(audit, key), "interval": audit.interval(key)}
        for key, each in words.items()
    ]
    shown = columns("metric | Accuracy of\n value | Value | percent\n interval | Interval | interval")
    note = f"{audit.num_samples} samples, {audit.num_classes} classes, {RANKING_WORDS[audit.ranking]}"
    return Table("Accuracy", shown, rows, note)


def class_rows(audit: Audit) -> list[dict[str, Any]]:
    """Return one dictionary per class, worst first and absent ones last, with the interval as a pair."""
    rows = frame_rows(audit.by_class)
    order = "estimate" if audit.ranking == "corrected" else "accuracy"
    for row in rows:
        # One interval per class and page: that of the true accuracy, or Wilson's where all else is observed, too.
        if order == "estimate":
            row["interval"] = (row["estimate_low"], row["estimate_high"])
        else:
            row["estimate"] = None
        row["lag"] = "lags" if row["lags"] else ""
    return sorted(rows, key=lambda row: math.inf if is_missing(row[order]) else row[order])


def _with_values(shown: tuple[Column, ...], rows: list[dict[str, Any]]) -> tuple[Column, ...]:
    """Return the columns in which some row has a value."""
    nothing = ("", NO_VALUE)
    return tuple(c for c in shown if any(format_value(row.get(c.key), c.kind) not in nothing for row in rows))


def class_table(audit: Audit) -> Table:
    """Return every class with all that is known; columns without any value are left out."""
    rows = class_rows(audit)
    return Table("All classes", _with_values(CLASS_COLUMNS, rows), rows)


def failing_table(audit: Audit, top: int, *, narrow: bool = False) -> Table:
    """Return the ``top`` classes that lag behind (or are worst) with reason and next step, in one column of a ``narrow`` table."""
    present = [row for row in class_rows(audit) if row["n"] > 0]
    lagging = [row for row in present if row["lags"]]
    rows = lagging or present
    top_rows = rows[:top]
    wanted = NARROW_COLUMNS if narrow else FAILING_COLUMNS
    shown = _with_values(tuple(column for column in CLASS_COLUMNS if column.key in wanted), top_rows)
    if narrow:
        shown = (*shown, NARROW_LAST)
        for row in top_rows:
            row["both"] = " → ".join(filter(None, (row["reason"], row["next_step"])))
    title = "Classes that lag behind" if lagging else "Worst classes (none lags behind)"
    return Table(title, shown, top_rows, more_classes(len(rows) - len(top_rows)))


def more_classes(rest: int) -> str:
    """Return the words for classes that a table does not show, empty where there are none."""
    return f"and {rest} more class{'es' if rest != 1 else ''}" if rest else ""


def tier_table(audit: Audit) -> Table:
    """Return the thirds: how many classes, which accuracy, which margin and spread."""
    rows = frame_rows(audit.tiers)
    shown = columns("""
        tier | Third
        classes | Classes | count
        n | Samples | count
        accuracy | Accuracy | percent
        interval | Interval | interval
        output_margin | Output margin | number
        spread | Spread ‖ŝ‖² | number
    """)
    return Table("Thirds", _with_values(shown, rows), rows)


def _measure_table(title: str, measures: tuple[Column, ...], values: dict[str, Any]) -> Table:
    """Return the measures that ``values`` has, one row each."""
    rows = [
        {"measure": each.title, "value": format_value(values[each.key], each.kind), "meaning": each.hint}
        for each in measures
        if each.key in values
    ]
    return Table(title, columns("measure | Measure\n value | Value | value\n meaning | Meaning"), rows)


def disparity_table(audit: Audit) -> Table:
    """Return the measures of the gap between classes."""
    ece = {} if is_missing(audit.ece) else {"ece": audit.ece}
    return _measure_table("Disparity", DISPARITY, {**audit.disparity, **ece})


def geometry_table(audit: Audit) -> Table:
    """Return margins, norms and neural-collapse diagnostics, as far as the given arrays tell them."""
    known = {key: value for key, value in audit.geometry.items() if not is_missing(value)}
    return _measure_table("Geometry", GEOMETRY, known)


def correlation_table(audit: Audit) -> Table:
    """Return correlations over classes with their intervals."""
    rows = [row for row in frame_rows(audit.correlations) if not is_missing(row["value"])]
    for row in rows:
        unknown = any(map(is_missing, row["interval"]))
        row["range"] = NO_VALUE if unknown else f"{row['low']:+.2f} to {row['high']:+.2f}"
        row["pair"] = f"{row['x']} – {row['y']}"
    shown = columns("""
        pair | Over classes
        measure | Correlation
        value | Value | number
        range | Interval
        classes | Classes | count
    """)
    return Table("Correlations", shown, rows)


def confusion_table(audit: Audit, top: int) -> Table:
    """Return the most frequent errors."""
    shown = columns("""
        truth | True class
        predicted | Taken for
        count | Samples | count
        share | Of the class | percent
    """)
    return Table("Most frequent errors", shown, frame_rows(audit.top_confusions(top)))


def bound_tables(audit: Audit) -> list[Table]:
    """Return the terms of Proposition 1 and the bounds of the classes (Eq. 15), greatest first."""
    if audit.bounds is None:
        return []
    terms = [{"term": BOUND_WORDS[name], "value": value} for name, value in audit.bounds["terms"].items()]
    frame = audit.bounds["by_class"].sort_values("bound", ascending=False, kind="stable")
    shown = tuple(Column(key, BOUND_WORDS[key], "text" if key == "class_name" else "number") for key in frame.columns)
    return [
        Table("Terms of the bound (Proposition 1)", columns("term | Term\n value | Value | number"), terms),
        Table("Bounds of the classes (Eq. 15)", shown, frame_rows(frame)),
    ]


def report_tables(audit: Audit, top: int, *, full: bool = False, narrow: bool = False) -> list[Table]:
    """Return the tables for the terminal, Markdown and LaTeX: headlines and failing classes, or all."""
    tables = [headline_table(audit), failing_table(audit, top, narrow=narrow and not full)]
    if not full:
        return tables
    tables += [tier_table(audit), confusion_table(audit, top), disparity_table(audit)]
    tables += [cost_table(audit, top), geometry_table(audit), correlation_table(audit)]
    return [table for table in tables if table.rows]


def cost_table(audit: Audit, top: int) -> Table:
    """Return the ``top`` classes with the highest mean cost, with their share of all costs; no rows without costs."""
    frame = audit.by_class[audit.by_class["cost"].notna()].sort_values("cost", ascending=False, kind="stable")
    costs, rows = frame["cost"] * frame["n"], frame_rows(frame)
    for row, cost in zip(rows, costs, strict=True):
        row["range"] = f"{row['cost_low']:.3g} to {row['cost_high']:.3g}"
        row["share"] = cost / costs.sum() if costs.sum() > 0 else None
    shown = columns("""
        class_name | Class
        n | n | count
        cost | Mean cost | number
        range | Interval
        share | Of all costs | percent
    """)
    return Table("Costliest classes", shown, rows[:top], more_classes(max(0, len(rows) - top)))


def audit_fragment(audit: Audit) -> str:
    """Return verdict, headline numbers and failing classes as a piece of HTML for notebooks; everything of the data is escaped."""
    words = f"<p><b>{html.escape(printable(audit_verdict(audit)))}</b></p><p>{html.escape(headline(audit))}</p>"
    return f"<div>{words}{to_html(failing_table(audit, MOST_LINES))}</div>"


def slice_table(slices: pd.DataFrame) -> Table:
    """Return the slices that were found, or words that there is none."""
    found = slices[slices["found"].astype(bool)]
    rows = frame_rows(found.head(MOST_SLICES))
    for row in rows:
        row["class_name"] = row["class_name"] or "all classes"
        row["slice"] = f"{row['property']}: {row['value']}"
    shown = columns("""
        class_name | Class
        slice | Slice
        n | n | count
        accuracy | Accuracy | percent
        interval | Interval | interval
        elsewhere | Elsewhere | percent | Accuracy of the rest, or what the accuracies of its classes predict
        q_value | q | p_value | p after control of the false discovery rate over all slices
    """)
    note = f"{len(found)} of {len(slices)} slices that are worse than the rest are so by more than chance."
    if len(found) > MOST_SLICES:
        note += f" The first {MOST_SLICES} are shown."
    return Table("Slices where the model is worse", shown, rows, note)


def group_table(groups: pd.DataFrame) -> Table:
    """Return the super-classes, the worst first."""
    shown = columns("""
        group | Group
        classes | Classes | count
        n | n | count
        accuracy | Accuracy | percent
        interval | Interval | interval
        group_accuracy | Right group | percent | Share of samples whose group is right
        inside | Errors inside | percent | Share of the errors that stay in the group
    """)
    return Table("Groups of classes", shown, frame_rows(groups))
