"""A record for people: verdict, tables and notes as Markdown, LaTeX and HTML, and the files of an output folder.

What every run answered travels with it, so that a reader can check its numbers with ``classmargin compare``, without the runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classmargin._atomic import atomic_path
from classmargin._printable import escape_markdown, printable
from classmargin.evaluation.json_values import json_text
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.existing_runs import settings_words
from classmargin.recipes.recipe import Recipe, list_recipes
from classmargin.recipes.record import (
    CUSTOM,
    BlockResult,
    Change,
    Record,
    RowResult,
    default_tables,
    read_record,
    write_record,
)
from classmargin.recipes.run_recipe import MeasuredBlock, Outcome
from classmargin.report.tables import Table, latex_report, markdown_report
from classmargin.training.run_folder import write_text
from classmargin.training.run_progress import say

# More sentences than these are not a verdict: a page opens with its table.
MOST_VERDICTS = 4
# Logits of more numbers (200 classes on 50 000 samples: 20 MB) stay in the run folders.
LARGEST = 10_000_000
_HALF = np.finfo(np.float16)


def tables_of(record: Record) -> list[Table]:
    """Return the tables of a record as its recipe wants them."""
    recipe = _recipe_of(record)
    return (recipe.tables if recipe and recipe.tables else default_tables)(record)


def _recipe_of(record: Record) -> Recipe | None:
    """Return the recipe; a custom comparison, or a recipe of another version, has none."""
    return next((recipe for recipe in list_recipes() if recipe.name == record.recipe), None)


def verdict_of(record: Record) -> str:
    """Return one sentence for each row that was compared, or one for all where there are many."""
    words = _verdicts(record)
    if not words:
        return f"{record.source}: nothing to compare."
    return " ".join(words) if len(words) <= MOST_VERDICTS else _summary(record)


def _verdicts(record: Record) -> list[str]:
    before = "{}: " if len(record.blocks) > 1 else ""
    return [f"{before.format(block.title)}{change.verdict}" for block, _, change in _compared(record)]


def _compared(record: Record) -> list[tuple[BlockResult, RowResult, Change]]:
    rows = [(block, row) for block in record.blocks for row in block.rows]
    return [(block, row, row.change) for block, row in rows if row.change is not None]


def _summary(record: Record) -> str:
    """Return whose hard third moved; the sentences of single rows follow after the tables."""
    several, compared = len(record.blocks) > 1, _compared(record)
    sides: dict[str, list[str]] = {"higher": [], "lower": [], "": []}
    for block, row, change in compared:
        _, low, high = change.crossfit["hard"]
        side = "higher" if low > 0 else "lower" if high < 0 else ""
        sides[side].append(f"{row.title} ({block.title})" if several else row.title)
    rest = len(sides.pop(""))
    told = [f"{side} for {', '.join(names)}" for side, names in sides.items() if names]
    told += [f"no clear change for {f'the other {rest}' if told else 'any of them'}"] if rest else []
    return f"{len(compared)} rows against the first, accuracy of the hard third: {'; '.join(told)}."


def notes_of(record: Record) -> list[str]:
    """Return what a reader must know: what was run, how, what is missing, and where the paper is in doubt."""
    notes = [f"Scale {record.scale}: {record.note}"] if record.note else []
    if len(verdicts := _verdicts(record)) > MOST_VERDICTS:
        notes.append(f"Row by row: {' '.join(verdicts)}")
    lacking = [block.lacks for block in record.blocks if any(row.change for row in block.rows)]
    lacks = "; ".join(dict.fromkeys(words for one in lacking for words in one or ()))
    if lacks:
        notes.append(f"Not on equal footing: the comparison lacks {lacks} (--equal-footing N brings them).")
    elif None in lacking:
        notes.append("Not on equal footing: an older record, which does not say how settings were searched.")
    doubts: dict[str, str] = {}
    for block in record.blocks:
        notes.append(
            f"{block.title}: {len(block.class_names)} classes, {block.num_samples} test samples; "
            f"{settings_words(block.settings) or 'default settings'}."
        )
        notes += [f"{row.title}: {settings_words(row.settings)}." for row in block.rows if row.settings]
        if block.printed_for not in ("", block.title) and any(row.paper for row in block.rows):
            notes.append(
                f"Printed values beside {block.title} are those of {block.printed_for}: order and sign of changes can be "
                "compared, not the level."
            )
        doubts |= {str(row.paper["doubt"]): row.title for row in block.rows if row.paper and row.paper.get("doubt")}
    notes += [f"Left out: {title} ({reason})." for title, reason in record.left_out.items()]
    notes += [f"Failed: {title} ({error})." for title, error in record.failed.items()]
    notes += [f"Doubt about the printed row {title}: {doubt}." for doubt, title in doubts.items()]
    notes += [f"Doubt about the paper: {doubt}" for doubt in record.doubts]
    return list(dict.fromkeys(notes))


def record_markdown(record: Record, *, level: int = 2) -> str:
    """Return the section of a page about one record."""
    git = record.session.get("git") or {}
    versions = record.session.get("versions") or {}
    made = [f"made {str(record.session.get('started', '?'))[:10]}"]
    made += [f"{name} {versions[name]}" for name in ("classmargin", "torch") if versions.get(name)]
    if git.get("commit"):
        made.append(f"commit {git['commit'][:10]}" + (" (modified)" if git.get("modified") else ""))
    # What tells a record from the others of a page: a comparison without a table in the paper is its data.
    titles = "; ".join(block.title for block in record.blocks)
    heading = titles if record.recipe == CUSTOM and titles else f"{record.recipe}: {record.source}"
    head = [
        f"{'#' * level} {_shown(heading)}",
        f"*{_shown(record.question)}*",
        f"`{printable(record.command).replace('`', '?')}` — {_shown(', '.join(made))}",
    ]
    body = markdown_report(verdict_of(record), tables_of(record), notes_of(record))
    return "\n\n".join([*head, body])


def _shown(text: str) -> str:
    return escape_markdown(printable(text))


def render_records(paths: Sequence[str | Path], *, title: str = "") -> str:
    """Return the Markdown page of several records (files, or folders with a ``record.json``), made from them alone."""
    parts = [f"# {title}"] if title else []
    for path in paths:
        record = read_record(path)
        try:
            parts.append(record_markdown(record))
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} is damaged: a value is not of its kind ({error!r})") from error
    return "\n\n".join(parts) + "\n"


def write_outputs(
    record: Record, folder: str | Path, measured: Sequence[MeasuredBlock] = (), *, html: bool = True
) -> list[Path]:
    """Write ``record.json``, ``table.md``, ``table.tex``, the predictions of every run of the measured blocks and, if wanted,
    ``report.html``; return what was written.
    """
    from classmargin.report.html_pages import write_tables_html

    place, recipe = Path(folder), _recipe_of(record)
    written = [write_record(record, place / "record.json")]
    written += _write_texts(record, place, record_markdown(record, level=1))
    for block in measured:
        written += _write_predictions(block, place / "predictions")

    def write_page() -> Path:
        figures = {}
        if record.figure is not None and recipe is not None and recipe.draw is not None:
            figures["figure"] = (recipe.draw(record.figure), record.source, record.question)
        words: dict[str, Any] = {"verdict": verdict_of(record), "tables": tables_of(record), "notes": notes_of(record)}
        title = f"{record.recipe}: {record.source}"
        return write_tables_html(place / "report.html", title=title, figures=figures, **words)

    return written + (written_page(write_page) if html else [])


def written_page(write: Callable[[], Path]) -> list[Path]:
    """Write a page; nothing where the packages for it are not installed, which is told."""
    try:
        return [write()]
    except ImportError as error:
        say(f"no report.html: {error}")
        return []


def write_comparison(outcome: Outcome, folder: str | Path, *, title: str) -> list[Path]:
    """Write what ``compare-methods`` found: JSON, Markdown, LaTeX and, where the packages are there, ``report.html``."""
    from classmargin.report.html_pages import write_comparison_html

    place, record, (measured,) = Path(folder), outcome.record, outcome.measured
    tables, found = tables_of(record), measured.comparison
    written = [place / "comparison.json"]
    write_text(written[0], json_text(comparison_dict(outcome)) + "\n")
    written += _write_texts(record, place, markdown_report(verdict_of(record), tables, notes_of(record)))
    if found is not None:
        written += written_page(lambda: write_comparison_html(found, place / "report.html", title=title, tables=tables))
    return written


def comparison_dict(outcome: Outcome) -> dict[str, Any]:
    """Return a comparison of methods as plain values for JSON."""
    (measured,) = outcome.measured
    paired = measured.comparison
    return {
        "methods": [
            {"name": row.key, "title": row.title, "seeds": len(row.runs), "values": dict(row.values)}
            for row in measured.result.rows
        ],
        "verdict": paired.verdict if paired else None,
        "comparisons": [pair.to_dict() for pair in paired.comparisons] if paired else [],
        "failed": dict(outcome.record.failed),
    }


def _write_texts(record: Record, place: Path, markdown: str) -> list[Path]:
    latex = latex_report(verdict_of(record), tables_of(record), notes_of(record))
    write_text(place / "table.md", markdown + "\n")
    write_text(place / "table.tex", latex + "\n")
    return [place / "table.md", place / "table.tex"]


def _write_predictions(block: MeasuredBlock, folder: Path) -> list[Path]:
    """Write ``BLOCK/ROW-seedS.npz`` for every finished run of every row."""
    written = []
    for row in block.result.rows:
        name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", row.key).strip("-")[:150]
        for run, score in zip(block.folders[row.key], row.runs, strict=True):
            found = read_predictions(run.predictions_file)
            if found.logits is None or found.logits.size > LARGEST:
                continue
            path = folder / block.result.key / f"{name}-seed{score.seed}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = {"labels": found.labels, "logits": half_precision(found.logits), "sample_id": found.sample_id}
            known: dict[str, Any] = {key: values for key, values in arrays.items() if values is not None}
            with atomic_path(path) as temporary, temporary.open("wb") as stream:
                np.savez_compressed(stream, class_names=np.array(found.class_names), **known)
            written.append(path)
    return written


def half_precision(logits: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return logits below a largest one of 0 as float16; the class that is chosen stays the same."""
    chosen = logits.argmax(axis=1)
    below = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    half: npt.NDArray[np.float16] = np.clip(below, _HALF.min, 0.0).astype(np.float16)
    # What rounds to a tie with the largest goes just below it.
    half[half == 0.0] = -_HALF.smallest_subnormal
    half[np.arange(len(half)), chosen] = 0.0
    return half
