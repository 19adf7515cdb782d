"""What the verbs share: how one becomes a command, options, reading files, checks of places, and printing.

A verb is a plain function: positional parameters are the arguments of its command, keyword-only ones the options. What each means
stands in its docstring under ``Options:``, or here. A parameter whose type is a dataclass is one option per field of it.

Options:
    predictions: Predictions: .npz (labels and logits, probabilities or predictions), .parquet or .csv (columns label and
        logit_<class> or p_<class> for every class, or prediction), or a run folder.
    run: Run folder.
    output: How to print the results.
    out: Also write a self-contained HTML report.
    class_names: Names of the classes, one a line or a JSON list.
    num_classes: Number of classes, where neither scores nor names tell it.
    max_memory: Most memory that the contents of files may take, e.g. 500MB or 16GB (default: half of what is free, at most
        8 GiB for predictions and 64 GiB for data; also CLASSMARGIN_MAX_MEMORY).
    top: How many classes to list.
    confidence: Level of the intervals.
    bootstrap: Bootstrap resamples.
    seed: Seed of everything that is drawn.
    engine: local: processes on this machine; ray: a Ray cluster (RAY_ADDRESS), or a local one.
    jobs: Runs side by side, one thread each, each with its own accelerators.
    equal_footing: Compare on an equal footing: choose each row's settings among N on validation first, and add cross-entropy
        with the compute of costlier methods and a null row. 0: settings as given.
    root: Folder of data sets (default: $CLASSMARGIN_DATA).
    download: Allow a download where there is a source.
    overrides: Any other setting (classmargin list settings), e.g. method.mean_margin=2.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer import Argument, Option

from classmargin._files import stated_budget
from classmargin._printable import printable

if TYPE_CHECKING:
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.recipes.record import Record
    from classmargin.report.tables import Table
    from classmargin.training.config import RunConfig

REPORT_SUFFIXES = (".html", ".htm")
SOME_FAILED = 3


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb in the form that Typer reads: one annotated parameter for each argument and option."""
    given = {name: one.annotation for name, one in inspect.signature(verb, eval_str=True).parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in given.items() if dataclasses.is_dataclass(kind)}
    parameters = list(_parameters(verb))

    def command(**values: Any) -> None:
        values = {name: one.value if isinstance(one, Enum) else one for name, one in values.items()}
        for name, group in groups.items():
            values[name] = group(**{key.name: values.pop(key.name) for key in dataclasses.fields(group)})
        verb(**values)

    command.__name__ = verb.__name__
    command.__doc__ = inspect.cleandoc(verb.__doc__ or "").partition("\n\nOptions:")[0]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters(owner: Any) -> Iterator[inspect.Parameter]:
    meanings = described(__doc__ or "", "Options")
    for one in inspect.getmro(owner) if inspect.isclass(owner) else (owner,):
        meanings |= described(one.__doc__ or "", "Options")
    for name, parameter in inspect.signature(owner, eval_str=True).parameters.items():
        hint = parameter.annotation
        if dataclasses.is_dataclass(hint):
            yield from _parameters(hint)
            continue
        kind, *extras = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if get_origin(kind) is Literal:  # old releases of Typer do not know it
            kind = Enum(name, {choice: choice for choice in get_args(kind)})  # type: ignore[misc, no-redef]
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        given = Option(f"--{name.replace('_', '-')}") if is_option else Argument()
        info = copy.copy(extras[0]) if extras else given
        info.help = meanings.get(name, info.help)
        info.metavar = info.metavar if is_option else info.metavar or name.upper()
        # Old releases of Typer show None.
        info.show_default = parameter.default not in (None, parameter.empty)
        yield parameter.replace(annotation=Annotated[kind, info], kind=parameter.KEYWORD_ONLY)


def described(docstring: str, section: str) -> dict[str, str]:
    """Return the entries in a section of a Google-style docstring by name."""
    text = inspect.cleandoc(docstring).partition(f"{section}:\n")[2].partition("\n\n")[0]
    pieces = re.split(r"^ {4}(\w+): ", text, flags=re.MULTILINE)[1:]
    meanings = (" ".join(meaning.replace("``", "").split()) for meaning in pieces[1::2])
    return dict(zip(pieces[::2], meanings, strict=True))


OutputFormat = Literal["table", "json", "markdown", "latex"]
Engine = Literal["local", "ray"]


def state_budget(context: typer.Context, size: str | None) -> str | None:
    """Let ``--max-memory`` hold for every reader until the command ends, also in processes that it starts."""
    if size is not None:
        try:
            context.with_resource(stated_budget(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return size


FormatOption = Annotated[OutputFormat, Option("--format")]
OutOption = Annotated[Path | None, Option(metavar="FILE.html")]
ClassNamesOption = Annotated[Path | None, Option(metavar="FILE")]
NumClassesOption = Annotated[int | None, Option(min=1)]
MaxMemoryOption = Annotated[str | None, Option(metavar="SIZE", callback=state_budget)]
TopOption = Annotated[int, Option(min=1)]
BootstrapOption = Annotated[int, Option(min=100, max=1_000_000)]
SamplesOption = Annotated[Path | None, Option(metavar="FILE.csv")]
JobsOption = Annotated[int, Option(min=1, max=1024)]
EqualFootingOption = Annotated[int, Option(metavar="N", min=0, max=1000)]
OverridesOption = Annotated[list[str] | None, Option("--set", metavar="PART.KEY=VALUE")]

# Where an option of its own stands in the configuration of a run.
_PLACES = {
    "data": ("data", "name"),
    "fraction": ("data", "fraction"),
    "imbalance": ("data", "imbalance"),
    "root": ("data", "root"),
    "allow_download": ("data", "download"),
    "skip_corrupt": ("data", "skip_corrupt"),
    "backbone": ("backbone", "name"),
    "method": ("method", "name"),
    "epochs": ("loop", "epochs"),
    "seed": ("loop", "seed"),
    "compile_network": ("loop", "compile"),
    "devices": ("machine", "devices"),
    "threads": ("machine", "threads"),
}


@dataclass(frozen=True, kw_only=True)
class RecipeFlags:
    """What can be said of the runs of every command that trains.

    Options:
        fraction: Share of the training samples, class by class.
        devices: Devices of each run, one process each.
    """

    fraction: float | None = None
    overrides: OverridesOption = None
    devices: Annotated[int | None, Option(min=1)] = None
    root: Path | None = None

    def tables(self, **more: Any) -> dict[str, dict[str, Any]]:
        """Return options of their own as tables of a configuration; those not given are left out."""
        given = {**vars(self), **more}
        _check_machine(devices=given["devices"], threads=given.get("threads"))
        tables: dict[str, dict[str, Any]] = {}
        for name, (part, key) in _PLACES.items():
            value = given.get(name)
            if value is not None:
                tables.setdefault(part, {})[key] = str(value) if isinstance(value, Path) else value
        return tables


@dataclass(frozen=True, kw_only=True)
class TrainingFlags(RecipeFlags):
    """What else can be said where no recipe decides it.

    Options:
        backbone: Network (classmargin list backbones). Default: small-cnn, or the preset's.
        preset: Training recipe of the paper (classmargin list presets).
        epochs: Passes over the training set. Default: 30, or the preset's.
        imbalance: Long tail: ratio of the largest to the smallest class.
    """

    backbone: Annotated[str | None, Option(metavar="NAME")] = None
    preset: Annotated[str | None, Option(metavar="NAME")] = None
    epochs: Annotated[int | None, Option(min=1)] = None
    imbalance: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(TrainingFlags):
    """The whole configuration of a run.

    Options:
        data: Data set: a name (classmargin list data), a file or a folder. Default: fashion-mnist-mini, or the preset's.
        config: Settings as a file.
    """

    data: Annotated[str | None, Option(metavar="NAME|PATH")] = None
    config: Annotated[Path | None, Option(metavar="FILE.toml", exists=True, dir_okay=False)] = None
    download: bool | None = None

    def gather(
        self, tables: dict[str, dict[str, Any]], overrides: Iterable[str] | None = None, base: RunConfig | None = None
    ) -> RunConfig:
        """Return the configuration from tables, file, preset and ``--set`` (or the ``overrides`` in its place)."""
        from classmargin.recipes.run_options import gather_config

        words = (self.overrides or ()) if overrides is None else overrides
        return gather_config(flags=tables, overrides=words, preset=self.preset, file=self.config, base=base)


def _check_machine(**counts: int | None) -> None:
    """Refuse processes or threads that would only stand in one another's way until memory or patience ends."""
    if not any(counts.values()):
        return
    from classmargin.training.devices import usable_cores  # brings torch, which two prediction files do without

    cores = usable_cores()
    most = max(8, 4 * cores)
    for name, count in counts.items():
        if count is not None and count > most:
            raise ValueError(f"--{name} must be at most {most} on a machine with {cores} usable cores, got {count}")


def read(path: Path, class_names: Path | None) -> Predictions:
    """Read one prediction file, with class names from a file of their own where one is given."""
    from classmargin.evaluation.prediction_files import read_class_names, read_predictions

    return read_predictions(path, class_names=None if class_names is None else read_class_names(class_names))


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
    """Refuse a file that could not be written.

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
        reason = f"{error.strerror or error}: {str(place)!r}"
        raise ValueError(f"{option} {str(file)!r} cannot be written ({reason})") from error


def announce(path: Path, what: str = "report") -> None:
    """Tell on standard error where a file was written; standard output belongs to the results."""
    typer.echo(f"{what} written to {path}", err=True)


def show(
    output: OutputFormat, *, verdict: str, tables: Sequence[Table], notes: Sequence[str], data: Mapping[str, Any]
) -> None:
    """Print one result in the chosen format."""
    from classmargin.evaluation.json_values import json_text
    from classmargin.report.tables import latex_report, markdown_report, print_report

    if output == "table":
        print_report(verdict, tables, notes)
    elif output == "json":
        typer.echo(json_text(data))
    else:
        write = markdown_report if output == "markdown" else latex_report
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
