"""What several verbs share: options, reading prediction files, and printing in the chosen format."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classmargin._files import stated_budget

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.report.tables import Table

PREDICTIONS_HELP = (
    "Predictions: .npz (labels and logits, probabilities or predictions), .parquet or .csv (columns label and "
    "logit_<class> or p_<class> for every class, or prediction), or a run folder."
)


REPORT_SUFFIXES = (".html", ".htm")


class OutputFormat(str, Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    markdown = "markdown"
    latex = "latex"


def state_budget(context: typer.Context, size: str | None) -> str | None:
    """Let ``--max-memory`` hold for every reader until the command ends, also in processes that it starts."""
    if size is not None:
        try:
            context.with_resource(stated_budget(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return size


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How to print the results.")]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE.html", help="Also write a self-contained HTML report.", show_default=False
    ),
]
ClassNamesOption = Annotated[
    Path | None,
    typer.Option(
        "--class-names",
        metavar="FILE",
        help="Names of the classes, one a line or a JSON list.",
        show_default=False,
    ),
]
NumClassesOption = Annotated[
    int | None,
    typer.Option(
        "--num-classes",
        min=1,
        help="Number of classes, where neither scores nor names tell it.",
        show_default=False,
    ),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Most memory that the contents of files may take, e.g. 500MB or 16GB (default: half of what is free, at most "
        "8 GiB for predictions and 64 GiB for data; also CLASSMARGIN_MAX_MEMORY).",
        show_default=False,
        callback=state_budget,
    ),
]
TopOption = Annotated[int, typer.Option("--top", min=1, help="How many classes to list.")]
ConfidenceOption = Annotated[float, typer.Option("--confidence", help="Level of the intervals.")]
BootstrapOption = Annotated[
    int, typer.Option("--bootstrap", min=100, max=1_000_000, help="Bootstrap resamples.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")]


def read(path: Path, class_names: Path | None) -> Predictions:
    """Read one prediction file, with class names from a file of their own where one is given."""
    from classmargin.evaluation.prediction_files import read_class_names, read_predictions

    names = None if class_names is None else read_class_names(class_names)
    with _options_in_messages(names_given=class_names is not None):
        return read_predictions(path, class_names=names)


def audit_file(path: Path, class_names: Path | None, **options: Any) -> Audit:
    """Read and audit one prediction file; messages name the options of the command line."""
    return audit_read(read(path, class_names), class_names, **options)


def audit_read(predictions: Predictions, class_names: Path | None, **options: Any) -> Audit:
    """Audit what was read; messages name the options of the command line."""
    with _options_in_messages(names_given=class_names is not None):
        return predictions.audit(**options)


@contextmanager
def _options_in_messages(*, names_given: bool) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(_in_options(str(error), names_given=names_given)) from error


def _in_options(words: str, *, names_given: bool) -> str:
    """Return a message of the library with the options of the command line in place of its arguments.

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

    if output is OutputFormat.json:
        typer.echo(json_text(data))
    elif output is OutputFormat.markdown:
        typer.echo(markdown_report(verdict, tables, notes))
    elif output is OutputFormat.latex:
        typer.echo(latex_report(verdict, tables, notes))
    else:
        print_report(verdict, tables, notes)


def model_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file, all different: as much of the end of its path as is needed.

    Example:
        >>> model_names([Path("runs/erm/predictions.npz"), Path("runs/mr2/predictions.npz")])
        ['erm/predictions', 'mr2/predictions']
        >>> model_names([Path("a.npz"), Path("b.npz")])
        ['a', 'b']
    """
    from classmargin._printable import printable

    parts = [path.with_suffix("").resolve().parts for path in paths]
    longest = max(len(part) for part in parts)
    for length in range(1, longest + 1):
        names = [printable("/".join(part[-length:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"every model must be a file of its own, got {str(paths[0])!r} more than once")
