"""The outcome of ``improve`` as tables, as a page with a Pareto figure, and as the files of an output folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path
from classmargin._printable import printable
from classmargin.evaluation.comparison import points
from classmargin.evaluation.json_values import json_text
from classmargin.recipes.improve.improvement import Improvement, with_interval
from classmargin.recipes.improve.judging import SHOWN
from classmargin.report import figures as drawing
from classmargin.report.tables import NO_VALUE, Table, columns, frame_rows

PAGE_FILE = "report.html"
_STAGE_COLOURS = {
    "finalist": drawing.ACCENT,
    "combined": drawing.TIER_COLOURS["easy"],
    "screened": drawing.NEUTRAL,
    "tuning": drawing.TIER_COLOURS["medium"],
}
# Classes shown, and of each class samples.
MOST_CHANGED, MOST_SAMPLES = 20, 5
_TEST = columns("""
    against | Against
    metric | Accuracy
    baseline | Before | percent
    candidate | After | percent
    difference | Change | points
    interval | Interval | points_interval
    validation | Change on validation | points | Inflated: the choice was made there
""")
_REMEDIES = columns("""
    title | Remedy
    chosen | Stage
    cost | Cost | number | Training time relative to one run of the baseline as given
    members | Networks | count | Networks behind one prediction
    runs | Runs | count | Repetitions that were compared
    overall | Overall | value
    easy | Easy | value
    hard | Hard | value
    worst | Worst | value
    note | Guard
""")
_CHANGED = columns("""
    class_name | Class
    baseline | Before | percent
    candidate | After | percent
    difference | Change | points
    outcome | Outcome
    samples | Samples that changed (taken for, where wrong)
""")
_ADVICE = columns("""
    class_name | Class
    accuracy | Accuracy | percent
    reason | Reason
    next_step | What to do
""")


def tables_of(found: Improvement) -> list[Table]:
    """Return the test, the remedies, who gained with samples, what is left to do, and the commands."""
    remedies = frame_rows(found.table)
    not_tried = [row for row in remedies if row["stage"] == "not tried"]
    commands = [{"command": command} for command in found.commands]
    tables = (
        _test_table(found),
        _remedy_table(found, [row for row in remedies if row["stage"] != "not tried"]),
        _changed_table(found),
        Table("Classes that nothing helped", _ADVICE, frame_rows(found.advice)),
        Table("Not tried", columns("title | Remedy\nnote | Reason"), not_tried),
        Table("Train the winner anew", columns("command | Command"), commands),
    )
    return [table for table in tables if table.rows]


def _test_table(found: Improvement) -> Table:
    first = next(iter(found.comparisons), None)
    there = {name: delta[0] for name, delta in found.validation.items()}
    rows = [
        {**row, "against": name, "validation": there.get(row["metric"]) if name == first else None}
        for name, pair in found.comparisons.items()
        for row in frame_rows(pair.summary)
        if row["metric"] in SHOWN
    ]
    many = " Intervals hold for both baselines at once." if len(found.comparisons) > 1 else ""
    return Table(f"Test set: {printable(found.choice or '')}", _TEST, rows, f"The test set was read once.{many}")


def _remedy_table(found: Improvement, tried: list[dict[str, Any]]) -> Table:
    rows = []
    for row in tried:
        changes = {name: (row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in SHOWN}
        shown = {name: with_interval(delta) if delta[0] == delta[0] else NO_VALUE for name, delta in changes.items()}
        rows.append({**row, "chosen": "chosen" if row["title"] == found.choice else row["stage"], **shown})
    note = (
        "Changes on validation against the tuned baseline, in points. Intervals of finalists and combinations hold for all of them at "
        "once; screened remedies had one run each."
    )
    guarded = any(row["note"] for row in rows)
    return Table("Remedies", _REMEDIES if guarded else _REMEDIES[:-1], rows, note)


def _changed_table(found: Improvement) -> Table:
    """Return the classes that gained, those that may have, and those that lost, with samples."""
    rows = []
    pair = next(iter(found.comparisons.values()), None)
    order: dict[str, Any] = {"ascending": False, "kind": "stable"}
    changed = [] if pair is None else frame_rows(pair.by_class.sort_values("difference", **order))
    gained, lost = ([row for row in changed if row["outcome"] == outcome] for outcome in ("gained", "lost"))
    rest = [row for row in changed if row["outcome"] == "noise" and row["difference"] > 0]
    frame = found.flipped
    for row in [*gained, *rest][: max(len(gained), MOST_CHANGED - len(lost))] + lost:
        way, taken = ("wrong→right", "baseline") if row["difference"] > 0 else ("right→wrong", "candidate")
        mine = frame[(frame["class_name"] == row["class_name"]) & (frame["change"] == way)].head(MOST_SAMPLES)
        samples = ", ".join(f"{one['sample_id']} ({one[taken]})" for one in mine.to_dict("records"))
        outcome = "may be noise" if row["outcome"] == "noise" else row["outcome"]
        rows.append({**row, "outcome": outcome, "samples": samples})
    return Table("Classes that gained and lost, with samples of the test set", _CHANGED, rows)


def _pareto_figure(found: Improvement) -> drawing.Figure:
    """Return what each candidate costs the easy third against what it gains in the objective, on validation."""
    titles = {"xaxis": "change of the easy third, points", "yaxis": f"change of {found.facts['objective']}, points"}
    axes_options = {axis: drawing.titled_axis(title, zeroline=True) for axis, title in titles.items()}
    figure = drawing.empty_figure(420, **axes_options)
    tried = found.table[found.table["objective"].notna()]
    for stage, colour in _STAGE_COLOURS.items():
        rows = tried[tried["stage"] == stage]
        if not len(rows):
            continue
        axes: dict[str, Any] = {}
        for axis, name in (("x", "easy"), ("y", "objective")):
            value, low, high = (rows[f"{name}{end}"] for end in ("", "_low", "_high"))
            bars = {"array": (100 * (high - value)).tolist(), "arrayminus": (100 * (value - low)).tolist()}
            style = {"type": "data", "color": f"{colour}60", "thickness": 1, "width": 0}
            axes |= {axis: (100 * value).tolist(), f"error_{axis}": {**bars, **style}}
        words = rows["title"].map(lambda title: f"<b>{drawing.plotly_text(title, longest=60)}</b><br>")
        words += rows["objective"].map(points) + " against easy " + rows["easy"].map(points)
        hover = {"text": words.tolist(), "hovertemplate": "%{text}<extra></extra>"}
        looks = [(15, "star") if title == found.choice else (9, "circle") for title in rows["title"]]
        size, symbol = map(list, zip(*looks, strict=True))
        marker = {"color": colour, "size": size, "symbol": symbol}
        figure.add_scatter(**axes, mode="markers", name=stage, marker=marker, **hover)
    return figure


def write_improvement_html(found: Improvement, path: str | os.PathLike[str]) -> Path:
    """Write the page: answer, tables, Pareto figure, changes on the test set."""
    from classmargin.report.html_pages import write_tables_html

    figures: dict[str, tuple[drawing.Figure, str, str]] = {}
    if found.table["objective"].notna().any():
        words = "Gain of each candidate against its price, on validation"
        caption = f"{words}: right and above is better. The star was chosen. Bars are intervals."
        figures["pareto"] = (_pareto_figure(found), words, caption)
    if found.comparisons:
        changes = {f"against {name}": pair.deltas for name, pair in found.comparisons.items()}
        words = "Changes on the test set with intervals"
        figures["changes"] = (drawing.changes_figure(changes), words, f"{words}.")
    return write_tables_html(
        path,
        title=f"classmargin improve: {found.facts['data']}",
        verdict=found.verdict,
        tables=tables_of(found),
        figures=figures,
        notes=found.notes,
    )


def write_improvement(found: Improvement, folder: Path) -> None:
    """Write JSON, Markdown and, where the packages are there, the pages."""
    _write_text(folder / "improvement.json", json_text(found.to_dict()) + "\n")
    _write_text(folder / "improvement.md", found.to_markdown() + "\n")
    if any(found.offsets):
        pairs = zip(found.audits["baseline"].class_names, found.offsets, strict=True)
        lines = ["class_name,offset", *(f"{name},{value:.6f}" for name, value in pairs)]
        _write_text(folder / "offsets.csv", "\n".join(lines) + "\n")
    try:
        if "choice" in found.audits:
            from classmargin.report.html_pages import write_audit_html

            write_audit_html(
                found.audits["choice"],
                folder / "classes.html",
                found.audits["baseline"],
                comparison=next(iter(found.comparisons.values())),
                title=printable(f"{found.choice} against the baseline, class by class"),
                feature_map=False,
                images=found.images,
            )
        found.to_html(folder / PAGE_FILE)
    except ImportError as error:
        _write_text(folder / "report_missing.json", json_text({"reason": str(error)}) + "\n")


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")
