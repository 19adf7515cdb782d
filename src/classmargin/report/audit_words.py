"""What is said about one :class:`~classmargin.evaluation.Audit` in words: the verdict, the names of lagging classes, a short summary."""

from __future__ import annotations

import math

from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_reasons import STEPS
from classmargin.evaluation.corrected import EQUAL_LEVEL
from classmargin.report.tables import format_value

MOST_NAMES = 5
MOST_LETTERS = 70  # of all names in one sentence
MOST_LINES = 8
RANKING_WORDS = {
    "corrected": "estimates of the true class accuracies",
    "own": "thirds ranked on these same samples, as in the paper",
    "reference": "thirds ranked by another model",
    "baseline": "thirds ranked by the baseline",
    "pooled": "thirds ranked by the mean of both models",
    "crossfit": "thirds ranked on one half of the samples and measured on the other",
}
GUIDE = "docs/which_classes_fail.md"


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
        return _no_evidence(audit, present)
    thirds = ""
    if not math.isnan(audit.gap):
        hard = format_value(audit.hard, "percent")
        # A ranking from elsewhere, or on other samples, may be upside down.
        than = "less" if audit.gap >= 0 else "more"
        thirds = (
            f"; the hard third reaches {hard}, {100 * abs(audit.gap):.1f} points {than} than the easy third"
        )
    lagging = _lagging(audit, present)
    worst = f"“{audit.disparity['worst_class']}”"
    value = format_value(_worst_value(audit), "percent")
    ending = "" if worst in lagging else f"; the worst class, {worst}, {value}"
    return f"{lagging}{thirds}{ending}."


def _no_evidence(audit: Audit, present: int) -> str:
    accuracy = format_value(audit.overall, "percent")
    text = (
        f"No evidence that classes differ: {present} classes that are all right {accuracy} of the time would look like this "
        f"(p = {audit.equal_classes:.2f})"
    )
    most = audit.interval("gap")[1]
    if not math.isnan(most):
        text += f"; the true gap between the easy and the hard third is at most {100 * most:.1f} points"
    return text + "."


def _worst_value(audit: Audit) -> float:
    """Return the accuracy of the class that is named as worst; the lowest true accuracy, whichever class has it, is another number."""
    return float(audit.by_class["estimate"].min()) if audit.ranking == "corrected" else audit.worst


def _lagging(audit: Audit, present: int) -> str:
    """Say which classes lie below the overall accuracy by more than chance explains, and how many would by chance."""
    accuracy = format_value(audit.overall, "percent")
    order = "estimate" if audit.ranking == "corrected" else "accuracy"
    frame = audit.by_class[audit.by_class["lags"].astype(bool)].sort_values(order, kind="stable")
    names = [str(name) for name in frame["class_name"]]
    by_chance = audit.lag_by_chance
    if len(names) <= by_chance:
        return f"No more classes lag behind the overall accuracy of {accuracy} than chance would give"
    expected = "less than one" if by_chance < 0.95 else f"about {by_chance:.0f}"
    verb = "lags" if len(names) == 1 else "lag"
    return (
        f"{len(names)} of {present} classes {verb} behind the overall accuracy of {accuracy}: "
        f"{_named(names, format_value(float(frame[order].iloc[0]), 'percent'))} "
        f"(chance would give {expected})"
    )


def _named(names: list[str], worst: str) -> str:
    """Name some of the classes, the worst one with its accuracy."""
    letters = 0
    shown: list[str] = []
    for name in names[:MOST_NAMES]:
        letters += len(name)
        if shown and letters > MOST_LETTERS:
            break
        shown.append(f"“{name}”" if shown else f"“{name}” ({worst})")
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def guide_to(reason: str) -> str:
    """Return where the guide says more about the next step of a reason.

    Example:
        >>> guide_to("label noise")
        'docs/which_classes_fail.md#relabel'
    """
    return f"{GUIDE}#{STEPS[reason].anchor}"


def audit_text(audit: Audit) -> str:
    """Return a short summary: verdict, headline numbers and, for each lagging class, the reason and the next step."""
    lines = [audit_verdict(audit), "", headline(audit)]
    frame = audit.by_class[audit.by_class["lags"].astype(bool)].sort_values("accuracy", kind="stable")
    for row in frame.head(MOST_LINES).to_dict("records"):
        words = f"{format_value(row['accuracy'], 'percent'):>6}  {row['class_name']} (n = {row['n']}): {row['verdict']}"
        lines.append(words + (f" → {row['next_step']}" if row["next_step"] else ""))
    if len(frame) > MOST_LINES:
        lines.append(f"        … and {len(frame) - MOST_LINES} more")
    lines += [
        "",
        "Which samples: .samples and .samples_of(class_name); a page: .to_html(path); all numbers: .by_class",
    ]
    return "\n".join(printable(line) for line in lines)


def headline(audit: Audit) -> str:
    """Return the headline numbers in one line."""
    parts = [
        f"{name} {format_value(getattr(audit, name), 'percent')}"
        for name in ("overall", "easy", "medium", "hard", "worst")
        if not math.isnan(getattr(audit, name))
    ]
    return f"{', '.join(parts)} ({audit.num_samples} samples, {audit.num_classes} classes)"
