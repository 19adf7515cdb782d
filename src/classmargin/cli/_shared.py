"""What several verbs do: read prediction files, check places for reports, and print in the chosen format."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from classmargin._printable import printable
from classmargin.cli._options import OutputFormat

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.recipes.record import Record
    from classmargin.report.tables import Table

REPORT_SUFFIXES = (".html", ".htm")
SOME_FAILED = 3


def read(path: Path, class_names: Path | None) -> Predictions:
    """Read one prediction file, with class names from a file of their own where one is given."""
    from classmargin.evaluation.prediction_files import read_class_names, read_predictions

    names = None if class_names is None else read_class_names(class_names)
    with options_in_messages(names_given=class_names is not None):
        return read_predictions(path, class_names=names)


def audit_file(path: Path, class_names: Path | None, **options: Any) -> Audit:
    """Read and audit one prediction file; messages name the options of the command line."""
    predictions = read(path, class_names)
    with options_in_messages(names_given=class_names is not None):
        return predictions.audit(**options)


@contextmanager
def options_in_messages(*, names_given: bool) -> Iterator[None]:
    """Let messages of the library name the options of the command line in place of its arguments."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(_in_options(str(error), names_given=names_given)) from error


def _in_options(words: str, *, names_given: bool) -> str:
    """Return a message with options in place of arguments.

    Names of classes that were not given as an option are those of the file, unless the message asks for them.

    Example:
        >>> _in_options("a.npz: the number is not known: give num_classes or class_names", names_given=False)
        'a.npz: the number is not known: give --num-classes or --class-names'
    """
    head, give, asked = words.rpartition(": give ")
    if not give:
        head, asked = words, ""
    for name in ("num_classes", "class_names"):
        # Between spaces and brackets only: a folder may be called class_names as well.
        alone, option = rf"(?<=[ (]){name}(?=[ ,;)]|$)", f"--{name.replace('_', '-')}"
        asked = re.sub(alone, option, f" {asked}")[1:]
        if names_given or name == "num_classes":
            head = re.sub(alone, option, head)
    return head + give + asked


def check_html_path(out: Path | None) -> None:
    """Refuse a report that could not be written *before* minutes are spent on its contents."""
    if out is None:
        return
    if os.path.isdir(out):  # Path.is_dir raises where a name is too long
        raise ValueError(f"--out must name a file, got the folder {str(out)!r}")
    if out.suffix.lower() not in REPORT_SUFFIXES:
        raise ValueError(f"--out must end in {' or '.join(REPORT_SUFFIXES)}, got {str(out)!r}")
    check_place("--out", out)
    from classmargin._checks import require_extra

    require_extra("plotly", "report", "an HTML report")
    require_extra("jinja2", "report", "an HTML report")


def check_place(option: str, file: Path | None) -> None:
    """Refuse a file that could not be written, and say which folders will be made for it.

    A file is tried where it, or the first of its missing folders, will be made: permissions do not tell all.
    """
    if file is None:
        return
    # Not "exists": a link to nothing is there, and no folder can be made in its place.
    place = next(folder for folder in file.parents if os.path.lexists(folder))
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=f".{file.stem}.part-", suffix=file.suffix):
            pass
    except OSError as error:
        raise ValueError(
            f"{option} {str(file)!r} cannot be written ({error.strerror or error}: {str(place)!r})"
        ) from error
    if place != file.parent:
        typer.echo(f"the folder {str(file.parent)!r} does not exist yet: it will be made", err=True)


def announce(path: Path, what: str = "report") -> None:
    """Tell on standard error where a file was written; standard output belongs to the results."""
    typer.echo(f"{what} written to {path}", err=True)


def show(
    output: OutputFormat,
    *,
    verdict: str,
    tables: Sequence[Table],
    notes: Sequence[str],
    data: Mapping[str, Any],
) -> None:
    """Print one result in the chosen format."""
    from classmargin.evaluation.json_values import json_text
    from classmargin.report.tables import latex_report, markdown_report, print_report

    if output is OutputFormat.table:
        print_report(verdict, tables, notes)
    elif output is OutputFormat.json:
        typer.echo(json_text(data))
    else:
        write = markdown_report if output is OutputFormat.markdown else latex_report
        typer.echo(write(verdict, tables, notes))


def show_record(output: OutputFormat, record: Record, folder: Path, data: Mapping[str, Any]) -> None:
    """Print what was measured, say which runs failed, and end with the exit code for that if some did."""
    from classmargin.recipes.record_pages import notes_of, tables_of, verdict_of

    show(output, verdict=verdict_of(record), tables=tables_of(record), notes=notes_of(record), data=data)
    typer.echo(f"written to {folder}", err=True)
    for title, error in record.failed.items():
        typer.echo(printable(f"classmargin: error: {title} failed: {error}"), err=True)
    if record.failed:
        raise typer.Exit(SOME_FAILED)


def model_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file, all different: as much of the end of its path as is needed."""
    parts = [path.with_suffix("").resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [printable("/".join(part[-length:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"every model must be a file of its own, got {str(paths[0])!r} more than once")
