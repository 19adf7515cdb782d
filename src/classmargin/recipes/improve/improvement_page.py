"""The outcome of ``improve`` as tables, as a page with a Pareto figure, and as the files of an output folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path
from classmargin._printable import printable
from classmargin.evaluation.comparison import points
from classmargin.evaluation.json_values import json_text
from classmargin.recipes.improve.improvement import MOST_SAMPLES, Improvement
from classmargin.recipes.improve.judging import SHOWN
from classmargin.report.figures import (
    ACCENT,
    NEUTRAL,
    TIER_COLOURS,
    Figure,
    changes_figure,
    empty_figure,
    plotly_text,
    titled_axis,
)
from classmargin.report.tables import NO_VALUE, Column, Table, frame_rows

RESULT_FILE, TABLE_FILE, PAGE_FILE, CLASSES_FILE = (
    "improvement.json",
    "improvement.md",
    "report.html",
    "classes.html",
)
OFFSETS_FILE = "offsets.csv"
_STAGE_COLOURS = {
    "finalist": ACCENT,
    "combined": TIER_COLOURS["easy"],
    "screened": NEUTRAL,
    "tuning": TIER_COLOURS["medium"],
}
MOST_CHANGED = 20


def tables_of(found: Improvement) -> list[Table]:
    """Return the test, the remedies, who gained with samples, what is left to do, and the commands."""
    advice = (
        Column("class_name", "Class"),
        Column("accuracy", "Accuracy", "percent"),
        Column("reason", "Reason"),
        Column("next_step", "What to do"),
    )
    not_tried = [row for row in frame_rows(found.table) if row["stage"] == "not tried"]
    commands = [{"command": command} for command in found.commands]
    tables = (
        _test_table(found),
        remedy_table(found),
        _gained_table(found),
        Table("Classes that nothing helped", advice, frame_rows(found.advice)),
        Table("Not tried", (Column("title", "Remedy"), Column("note", "Reason")), not_tried),
        Table("Train the winner anew", (Column("command", "Command"),), commands),
    )
    return [table for table in tables if table.rows]


def _test_table(found: Improvement) -> Table:
    rows = []
    for baseline, pair in found.comparisons.items():
        for row in frame_rows(pair.summary):
            if row["metric"] not in SHOWN:
                continue
            there = found.validation.get(row["metric"]) if baseline == next(iter(found.comparisons)) else None
            rows.append(
                {
                    **row,
                    "against": baseline,
                    "interval": (row["low"], row["high"]),
                    "validation": None if there is None else there[0],
                }
            )
    columns = (
        Column("against", "Against"),
        Column("metric", "Accuracy"),
        Column("baseline", "Before", "percent"),
        Column("candidate", "After", "percent"),
        Column("difference", "Change", "points"),
        Column("interval", "Interval", "points_interval"),
        Column("validation", "Change on validation", "points", "Inflated: the choice was made there"),
    )
    many = " Intervals hold for both baselines at once." if len(found.comparisons) > 1 else ""
    return Table(f"Test set: {printable(found.choice or '')}", columns, rows, f"The test set was read once.{many}")


def remedy_table(found: Improvement) -> Table:
    """Return every remedy with its cost and its changes on validation."""
    rows = [
        {
            **row,
            "chosen": "chosen" if row["title"] == found.choice else row["stage"],
            **{name: _with_interval(row, name) for name in SHOWN},
        }
        for row in frame_rows(found.table)
        if row["stage"] != "not tried"
    ]
    columns = [
        Column("title", "Remedy"),
        Column("chosen", "Stage"),
        Column("cost", "Cost", "number", "Training time relative to one run of the baseline as given"),
        Column("members", "Networks", "count", "Networks behind one prediction"),
        Column("runs", "Runs", "count", "Repetitions that were compared"),
        *(Column(name, name.capitalize(), "value") for name in SHOWN),
    ]
    if any(row["note"] for row in rows):
        columns.append(Column("note", "Guard"))
    note = (
        "Changes on validation against the tuned baseline, in points. Intervals of finalists and combinations hold for all of them at "
        "once; screened remedies had one run each."
    )
    return Table("Remedies", tuple(columns), rows, note)


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return NO_VALUE if value != value else f"{points(value)} ({points(low)} to {points(high)})"


def _gained_table(found: Improvement) -> Table:
    rows = []
    pair = next(iter(found.comparisons.values()), None)
    changed = (
        [] if pair is None else frame_rows(pair.by_class.sort_values("difference", ascending=False, kind="stable"))
    )
    gained = [row for row in changed if row["outcome"] == "gained"]
    lost = [row for row in changed if row["outcome"] == "lost"]
    rest = [row for row in changed if row["outcome"] == "noise" and row["difference"] > 0]
    frame = found.flipped
    for row in [*gained, *rest][: max(len(gained), MOST_CHANGED - len(lost))] + lost:
        way = "wrong→right" if row["difference"] > 0 else "right→wrong"
        mine = frame[(frame["class_name"] == row["class_name"]) & (frame["change"] == way)]
        taken = "baseline" if row["difference"] > 0 else "candidate"
        shown = [f"{one['sample_id']} ({one[taken]})" for one in mine.head(MOST_SAMPLES).to_dict("records")]
        outcome = "may be noise" if row["outcome"] == "noise" else row["outcome"]
        rows.append({**row, "outcome": outcome, "samples": ", ".join(shown)})
    columns = (
        Column("class_name", "Class"),
        Column("baseline", "Before", "percent"),
        Column("candidate", "After", "percent"),
        Column("difference", "Change", "points"),
        Column("outcome", "Outcome"),
        Column("samples", "Samples that changed (taken for, where wrong)"),
    )
    return Table("Classes that gained and lost, with samples of the test set", columns, rows)


def pareto_figure(found: Improvement) -> Figure:
    """Return what each candidate costs the easy third against what it gains in the objective, on validation."""
    figure = empty_figure(
        420,
        xaxis=titled_axis("change of the easy third, points", zeroline=True),
        yaxis=titled_axis(f"change of {found.facts['objective']}, points", zeroline=True),
    )
    frame = found.table[found.table["objective"].notna()] if len(found.table) else found.table
    for stage, colour in _STAGE_COLOURS.items():
        rows = frame[frame["stage"] == stage]
        if not len(rows):
            continue
        bars: dict[str, Any] = {}
        for axis, name in (("x", "easy"), ("y", "objective")):
            bars[f"error_{axis}"] = {
                "type": "data",
                "array": (100 * (rows[f"{name}_high"] - rows[name])).tolist(),
                "arrayminus": (100 * (rows[name] - rows[f"{name}_low"])).tolist(),
                "color": f"{colour}60",
                "thickness": 1,
                "width": 0,
            }
        chosen = [title == found.choice for title in rows["title"]]
        figure.add_scatter(
            x=(100 * rows["easy"]).tolist(),
            y=(100 * rows["objective"]).tolist(),
            mode="markers",
            name=stage,
            marker={
                "color": colour,
                "size": [15 if one else 9 for one in chosen],
                "symbol": ["star" if one else "circle" for one in chosen],
            },
            text=[
                f"<b>{plotly_text(row['title'], longest=60)}</b><br>{points(row['objective'])} against easy {points(row['easy'])}"
                for row in rows.to_dict("records")
            ],
            hovertemplate="%{text}<extra></extra>",
            **bars,
        )
    return figure


def write_improvement_html(found: Improvement, path: str | os.PathLike[str]) -> Path:
    """Write the page: answer, tables, Pareto figure, changes on the test set."""
    from classmargin.report.html_pages import write_tables_html

    figures: dict[str, tuple[Figure, str, str]] = {}
    if len(found.table) and found.table["objective"].notna().any():
        words = "Gain of each candidate against its price, on validation"
        caption = f"{words}: right and above is better. The star was chosen. Bars are intervals."
        figures["pareto"] = (pareto_figure(found), words, caption)
    if found.comparisons:
        changes = {f"against {name}": pair.deltas for name, pair in found.comparisons.items()}
        words = "Changes on the test set with intervals"
        figures["changes"] = (changes_figure(changes), words, f"{words}.")
    return write_tables_html(
        path,
        title=f"classmargin improve: {found.facts['data']}",
        verdict=found.verdict,
        tables=tables_of(found),
        figures=figures,
        notes=found.notes,
    )


def write_improvement(found: Improvement, folder: Path) -> list[Path]:
    """Write JSON, Markdown and, where the packages are there, the pages; return what was written."""
    written = [folder / RESULT_FILE, folder / TABLE_FILE]
    _write_text(written[0], json_text(found.to_dict()) + "\n")
    _write_text(written[1], found.to_markdown() + "\n")
    if any(found.offsets):
        pairs = zip(found.audits["baseline"].class_names, found.offsets, strict=True)
        lines = ["class_name,offset", *(f"{name},{value:.6f}" for name, value in pairs)]
        written.append(folder / OFFSETS_FILE)
        _write_text(written[-1], "\n".join(lines) + "\n")
    try:
        if "choice" in found.audits:
            from classmargin.report.html_pages import write_audit_html

            written.append(
                write_audit_html(
                    found.audits["choice"],
                    folder / CLASSES_FILE,
                    found.audits["baseline"],
                    comparison=next(iter(found.comparisons.values())),
                    title=printable(f"{found.choice} against the baseline, class by class"),
                    feature_map=False,
                    images=found.images,
                )
            )
        written.append(found.to_html(folder / PAGE_FILE))
    except ImportError as error:
        _write_text(folder / "report_missing.json", json_text({"reason": str(error)}) + "\n")
    return written


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path, durable=True) as temporary:
        temporary.write_text(text, encoding="utf-8")


def commands_of(runs: Sequence[Path], folder: Path) -> tuple[str, ...]:
    """Return the commands that train a winner anew from the settings of its runs."""
    names = [f"winner/{number}" if len(runs) > 1 else "winner" for number in range(len(runs))]
    lines = [
        f"classmargin train --config {(run / 'config.toml')} --out {folder / name}"
        for run, name in zip(runs, names, strict=True)
    ]
    if len(runs) > 1:
        lines.append(
            f"classmargin ensemble {' '.join(str(folder / name) for name in names)} --out {folder / 'winner/ensemble'}"
        )
    return tuple(lines)
