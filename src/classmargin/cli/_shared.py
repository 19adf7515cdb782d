"""What several verbs share: options, reading prediction files, and printing in the chosen format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from classmargin.evaluation.audit import Audit
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.report.tables import Table

PREDICTIONS_HELP = (
    "Predictions: .npz (labels and logits, probabilities or predictions), .parquet, .csv, or a run folder."
)


class OutputFormat(str, Enum):
    """How results are printed."""

    table = "table"
    json = "json"
    markdown = "markdown"
    latex = "latex"


FormatOption = Annotated[OutputFormat, typer.Option("--format", help="How to print the results.")]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Also write a self-contained HTML report.", show_default=False
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
TopOption = Annotated[int, typer.Option("--top", min=1, help="How many classes to list.")]
ConfidenceOption = Annotated[float, typer.Option("--confidence", help="Level of the intervals.")]
BootstrapOption = Annotated[int, typer.Option("--bootstrap", min=100, help="Bootstrap resamples.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")]


def read(path: Path, class_names: Path | None) -> Predictions:
    """Read one prediction file, with class names from a file of their own where one is given."""
    from classmargin.evaluation.prediction_files import read_class_names, read_predictions

    names = None if class_names is None else read_class_names(class_names)
    return read_predictions(path, class_names=names)


def audit_file(path: Path, class_names: Path | None, **options: Any) -> Audit:
    """Read and audit one prediction file."""
    return read(path, class_names).audit(**options)


def check_html_path(out: Path | None) -> None:
    """Refuse a report that could not be written *before* minutes are spent on its contents."""
    if out is None:
        return
    if out.is_dir():
        raise ValueError(f"--out must name a file, got the folder {str(out)!r}")
    from classmargin._checks import require_extra

    require_extra("plotly", "report", "an HTML report")
    require_extra("jinja2", "report", "an HTML report")


def said(path: Path) -> None:
    """Tell on standard error where a file was written; standard output belongs to the results."""
    typer.echo(f"report written to {path}", err=True)


def show(
    output: OutputFormat,
    *,
    verdict: str,
    tables: Sequence[Table],
    notes: Sequence[str],
    data: Mapping[str, Any],
) -> None:
    """Print one result in the chosen format."""
    from classmargin.report import tables as table_formats
    from classmargin.report import text

    if output is OutputFormat.json:
        typer.echo(table_formats.json_text(data))
    elif output is OutputFormat.markdown:
        typer.echo(text.markdown_report(verdict, tables, notes))
    elif output is OutputFormat.latex:
        typer.echo(text.latex_report(verdict, tables, notes))
    else:
        text.print_report(verdict, tables, notes)


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
