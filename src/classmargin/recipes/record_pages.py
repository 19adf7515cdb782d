"""A record as a page: Markdown, LaTeX, and the files of an output folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin._printable import escape_markdown, printable
from classmargin.evaluation.json_values import json_text, to_plain
from classmargin.recipes.measure_runs import MeasuredBlock
from classmargin.recipes.recipe import Recipe, find_recipe
from classmargin.recipes.record import CUSTOM, BlockResult, Record, RowResult, read_record, write_record
from classmargin.recipes.record_predictions import write_record_predictions
from classmargin.recipes.record_tables import default_tables
from classmargin.recipes.run_recipe import Outcome
from classmargin.report.tables import Table, latex_report, markdown_report
from classmargin.training.run_folder import write_json, write_text

# More sentences than these are not a verdict: a page opens with its table.
MOST_VERDICTS = 4


def tables_of(record: Record) -> list[Table]:
    """Return the tables of a record as its recipe wants them."""
    recipe = _recipe_of(record)
    make = recipe.tables if recipe is not None and recipe.tables is not None else default_tables
    return make(record)


def _recipe_of(record: Record) -> Recipe | None:
    try:
        return find_recipe(record.recipe)
    except ValueError:  # a custom comparison, or a recipe of another version
        return None


def verdict_of(record: Record) -> str:
    """Return one sentence for each row that was compared, or one for all where there are many."""
    words = _verdicts(record)
    if not words:
        return f"{record.source}: nothing to compare."
    return " ".join(words) if len(words) <= MOST_VERDICTS else _summary(record)


def _verdicts(record: Record) -> list[str]:
    several = len(record.blocks) > 1
    return [
        f"{block.title}: {row.change.verdict}" if several else row.change.verdict
        for block, row in _compared(record)
        if row.change is not None
    ]


def _compared(record: Record) -> list[tuple[BlockResult, RowResult]]:
    return [(block, row) for block in record.blocks for row in block.rows if row.change is not None]


def _summary(record: Record) -> str:
    """Return whose hard third moved; the sentences of single rows follow after the tables."""
    several = len(record.blocks) > 1
    sides: dict[str, list[str]] = {"higher": [], "lower": []}
    compared = _compared(record)
    for block, row in compared:
        assert row.change is not None
        _, low, high = row.change.crossfit["hard"]
        side = "higher" if low > 0 else "lower" if high < 0 else ""
        if side:
            sides[side].append(f"{row.title} ({block.title})" if several else row.title)
    told = [f"{side} for {', '.join(names)}" for side, names in sides.items() if names]
    rest = len(compared) - sum(map(len, sides.values()))
    told += [f"no clear change for {f'the other {rest}' if told else 'any of them'}"] if rest else []
    return f"{len(compared)} rows against the first, accuracy of the hard third: {'; '.join(told)}."


def notes_of(record: Record) -> list[str]:
    """Return what a reader must know: what was run, how, what is missing, and where the paper is in doubt."""
    notes = [f"Scale {record.scale}: {record.note}"] if record.note else []
    if len(_compared(record)) > MOST_VERDICTS:
        notes.append(f"Row by row: {' '.join(_verdicts(record))}")
    notes += _footing(record)
    for block in record.blocks:
        notes.append(
            f"{block.title}: {len(block.class_names)} classes, {block.num_samples} test samples; "
            f"{_words(block.settings) or 'default settings'}."
        )
        notes += [f"{row.title}: {_words(row.settings)}." for row in block.rows if row.settings]
        if block.printed_for not in ("", block.title) and any(row.paper for row in block.rows):
            notes.append(
                f"Printed values beside {block.title} are those of {block.printed_for}: order and sign of changes can be "
                "compared, not the level."
            )
    notes += [f"Left out: {title} ({reason})." for title, reason in record.left_out.items()]
    notes += [f"Failed: {title} ({error})." for title, error in record.failed.items()]
    doubts = {
        str(row.paper["doubt"]): row.title
        for block in record.blocks
        for row in block.rows
        if row.paper and row.paper.get("doubt")
    }
    notes += [f"Doubt about the printed row {title}: {doubt}." for doubt, title in doubts.items()]
    notes += [f"Doubt about the paper: {doubt}" for doubt in record.doubts]
    return list(dict.fromkeys(notes))


def _footing(record: Record) -> list[str]:
    lacking = [block.lacks for block in record.blocks if any(row.change for row in block.rows)]
    lacks = list(dict.fromkeys(words for one in lacking for words in one or ()))
    if lacks:
        return [
            f"Not on equal footing: the comparison lacks {'; '.join(lacks)} (--equal-footing N brings them)."
        ]
    return (
        ["Not on equal footing: an older record, which does not say how settings were searched."]
        if None in lacking
        else []
    )


def _words(settings: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{part}.{key}={value}" for part, table in settings.items() for key, value in table.items()
    )


def record_markdown(record: Record, *, level: int = 2) -> str:
    """Return the section of a page about one record."""
    mark = "#" * level
    git = record.session.get("git") or {}
    versions = record.session.get("versions") or {}
    made = [f"made {str(record.session.get('started', '?'))[:10]}"]
    made += [f"{name} {versions[name]}" for name in ("classmargin", "torch") if versions.get(name)]
    if git.get("commit"):
        made.append(f"commit {git['commit'][:10]}" + (" (modified)" if git.get("modified") else ""))
    head = [
        f"{mark} {_shown(_heading(record))}",
        f"*{_shown(record.question)}*",
        f"`{printable(record.command).replace('`', '?')}` — {_shown(', '.join(made))}",
    ]
    body = markdown_report(verdict_of(record), tables_of(record), notes_of(record))
    return "\n\n".join([*head, body])


def _heading(record: Record) -> str:
    """Return what tells a record from the others of a page: a comparison without a table in the paper is its data."""
    titles = "; ".join(block.title for block in record.blocks)
    return titles if record.recipe == CUSTOM and titles else f"{record.recipe}: {record.source}"


def _shown(text: str) -> str:
    return escape_markdown(printable(text))


def render_records(paths: Sequence[str | Path], *, title: str = "") -> str:
    """Return the Markdown page of several records, made from the records alone.

    Args:
        paths: Files, or folders that hold a ``record.json``.
        title: Heading of the page; empty for none.

    Raises:
        ValueError: A path does not hold a record.
    """
    parts = [f"# {title}"] if title else []
    return "\n\n".join([*parts, *(_section(path) for path in paths)]) + "\n"


def _section(path: str | Path) -> str:
    record = read_record(path)
    try:
        return record_markdown(record)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is damaged: a value is not of its kind ({error!r})") from error


def write_outputs(
    record: Record, folder: str | Path, measured: Sequence[MeasuredBlock] = (), *, html: bool = True
) -> list[Path]:
    """Write ``record.json``, ``table.md``, ``table.tex``, predictions and pages; return what was written.

    Args:
        record: What is shown.
        folder: Where.
        measured: Blocks with their comparisons, for a page with all classes each and the predictions of every run.
        html: Whether pages are wanted.
    """
    place = Path(folder)
    tables, verdict, notes = tables_of(record), verdict_of(record), notes_of(record)
    written = [write_record(record, place / "record.json"), place / "table.md", place / "table.tex"]
    write_text(written[1], record_markdown(record, level=1) + "\n")
    write_text(written[2], latex_report(verdict, tables, notes) + "\n")
    written += write_record_predictions(measured, place / "predictions")
    if html:
        try:
            written += _write_pages(record, place, measured, tables)
        except ImportError as error:
            write_json(place / "report_missing.json", {"reason": str(error)})
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


def write_comparison(outcome: Outcome, folder: str | Path, *, title: str) -> list[Path]:
    """Write what ``compare-methods`` found: JSON, Markdown, LaTeX and, where the packages are there, ``report.html``."""
    place, record = Path(folder), outcome.record
    verdict, tables, notes = verdict_of(record), tables_of(record), notes_of(record)
    written = [place / "comparison.json", place / "table.md", place / "table.tex"]
    write_text(written[0], json_text(comparison_dict(outcome)) + "\n")
    write_text(written[1], markdown_report(verdict, tables, notes) + "\n")
    write_text(written[2], latex_report(verdict, tables, notes) + "\n")
    comparison = outcome.measured[0].comparison
    if comparison is not None:
        from classmargin.report.html_pages import write_comparison_html

        try:
            page = write_comparison_html(comparison, place / "report.html", title=title, tables=tables)
            written.append(page)
        except ImportError as error:
            write_json(place / "report_missing.json", {"reason": str(error)})
    return written


def _write_pages(
    record: Record, place: Path, measured: Sequence[MeasuredBlock], tables: Sequence[Table]
) -> list[Path]:
    from classmargin.report.html_pages import write_comparison_html, write_tables_html

    figures, written = {}, []
    recipe = _recipe_of(record)
    if record.figure is not None and recipe is not None and recipe.draw is not None:
        figures["figure"] = (recipe.draw(record.figure), record.source, record.question)
        write_json(place / "figure.json", to_plain(record.figure))
        written.append(place / "figure.json")
    written.append(
        write_tables_html(
            place / "report.html",
            title=f"{record.recipe}: {record.source}",
            verdict=verdict_of(record),
            tables=tables,
            figures=figures,
            notes=notes_of(record),
        )
    )
    for block in measured:
        if block.comparison is not None:
            path = place / f"classes-{block.result.key}.html"
            title = f"{record.recipe}: {block.result.title}"
            written.append(write_comparison_html(block.comparison, path, title=title))
    return written
