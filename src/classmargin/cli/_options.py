"""How a verb becomes a command, and the options that several verbs share.

A verb is a plain function: positional parameters are the arguments of its command, keyword-only ones the options, and what each
means stands in its docstring under ``Options:``. A parameter whose type is a dataclass is one option per field of it.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Argument, Option

from classmargin._files import stated_budget

if TYPE_CHECKING:
    from classmargin.training.config import RunConfig


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a verb in the form that Typer reads: one annotated parameter for each argument and option."""
    given = {name: one.annotation for name, one in inspect.signature(verb, eval_str=True).parameters.items()}
    groups: dict[str, Any] = {name: kind for name, kind in given.items() if dataclasses.is_dataclass(kind)}
    parameters = list(_parameters(verb))

    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{key.name: values.pop(key.name) for key in dataclasses.fields(group)})
        verb(**values)

    command.__name__ = verb.__name__
    command.__doc__ = inspect.cleandoc(verb.__doc__ or "").partition("\n\nOptions:")[0]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters(owner: Any) -> Iterator[inspect.Parameter]:
    meanings: dict[str, str] = {}
    for one in inspect.getmro(owner) if inspect.isclass(owner) else (owner,):
        meanings |= described(one.__doc__ or "", "Options")
    for name, parameter in inspect.signature(owner, eval_str=True).parameters.items():
        hint = parameter.annotation
        if dataclasses.is_dataclass(hint):
            yield from _parameters(hint)
            continue
        kind, *extras = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        is_option = parameter.kind is parameter.KEYWORD_ONLY
        given = Option(f"--{name.replace('_', '-')}") if is_option else Argument()
        info = copy.copy(extras[0]) if extras else given
        info.help = meanings.get(name, info.help)
        info.metavar = info.metavar if is_option else info.metavar or name.upper()
        # Old releases of Typer show None.
        info.show_default = parameter.default not in (None, parameter.empty)
        yield parameter.replace(annotation=Annotated[kind, info], kind=parameter.KEYWORD_ONLY)


def described(docstring: str, section: str) -> dict[str, str]:
    r"""Return the entries in a section of a Google-style docstring by name.

    Example:
        >>> described("A run.\n\n    Options:\n        epochs: Passes, over\n            all stages.\n        seed: Of it.", "Options")
        {'epochs': 'Passes, over all stages.', 'seed': 'Of it.'}
    """
    text = inspect.cleandoc(docstring).partition(f"{section}:\n")[2].partition("\n\n")[0]
    pieces = re.split(r"^ {4}(\w+): ", text, flags=re.MULTILINE)[1:]
    meanings = (" ".join(meaning.replace("``", "").split()) for meaning in pieces[1::2])
    return dict(zip(pieces[::2], meanings, strict=True))


class OutputFormat(str, Enum):
    """How results are printed."""

    table, json, markdown, latex = "table", "json", "markdown", "latex"


class Engine(str, Enum):
    """Where runs are trained."""

    local, ray = "local", "ray"


def state_budget(context: typer.Context, size: str | None) -> str | None:
    """Let ``--max-memory`` hold for every reader until the command ends, also in processes that it starts."""
    if size is not None:
        try:
            context.with_resource(stated_budget(size))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return size


PredictionsFile = Annotated[
    Path,
    Argument(
        help="Predictions: .npz (labels and logits, probabilities or predictions), .parquet or .csv (columns label and "
        "logit_<class> or p_<class> for every class, or prediction), or a run folder."
    ),
]
FormatOption = Annotated[OutputFormat, Option("--format", help="How to print the results.")]
OutOption = Annotated[Path | None, Option(metavar="FILE.html", help="Also write a self-contained HTML report.")]
ClassNamesOption = Annotated[
    Path | None, Option(metavar="FILE", help="Names of the classes, one a line or a JSON list.")
]
NumClassesOption = Annotated[
    int | None, Option(min=1, help="Number of classes, where neither scores nor names tell it.")
]
MaxMemoryOption = Annotated[
    str | None,
    Option(
        metavar="SIZE",
        help="Most memory that the contents of files may take, e.g. 500MB or 16GB (default: half of what is free, at most "
        "8 GiB for predictions and 64 GiB for data; also CLASSMARGIN_MAX_MEMORY).",
        callback=state_budget,
    ),
]
TopOption = Annotated[int, Option(min=1, help="How many classes to list.")]
ConfidenceOption = Annotated[float, Option(help="Level of the intervals.")]
BootstrapOption = Annotated[int, Option(min=100, max=1_000_000, help="Bootstrap resamples.")]
SeedOption = Annotated[int, Option(help="Seed of everything that is drawn.")]
SamplesOption = Annotated[Path | None, Option(metavar="FILE.csv")]
EngineOption = Annotated[
    Engine, Option(help="local: processes on this machine; ray: a Ray cluster (RAY_ADDRESS), or a local one.")
]
JobsOption = Annotated[
    int, Option(min=1, max=1024, help="Runs side by side, one thread each, each with its own accelerators.")
]
EqualFootingOption = Annotated[
    int,
    Option(
        metavar="N",
        min=0,
        max=1000,
        help="Compare on an equal footing: choose each row's settings among N on validation first, and add cross-entropy "
        "with the compute of costlier methods and a null row. 0: settings as given.",
    ),
]

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
        overrides: Any other setting (classmargin list settings), e.g. method.mean_margin=2.
        devices: Devices of each run, one process each.
        root: Folder of data sets (default: $CLASSMARGIN_DATA).
    """

    fraction: float | None = None
    overrides: Annotated[list[str] | None, Option("--set", metavar="PART.KEY=VALUE")] = None
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
        download: Allow a download where there is a source.
    """

    data: Annotated[str | None, Option(metavar="NAME|PATH")] = None
    config: Annotated[Path | None, Option(metavar="FILE.toml", exists=True, dir_okay=False)] = None
    download: bool | None = None

    def gather(
        self,
        tables: dict[str, dict[str, Any]],
        overrides: Iterable[str] | None = None,
        base: RunConfig | None = None,
    ) -> RunConfig:
        """Return the configuration from tables, file, preset and ``--set`` (or the ``overrides`` in its place)."""
        from classmargin.recipes.run_options import gather_config

        words = (self.overrides or ()) if overrides is None else overrides
        return gather_config(flags=tables, overrides=words, preset=self.preset, file=self.config, base=base)


def _check_machine(**counts: int | None) -> None:
    """Refuse processes or threads that would only stand in one another's way until memory or patience ends."""
    if all(count is None for count in counts.values()):
        return
    from classmargin.training.devices import (
        usable_cores,
    )  # brings torch, which two prediction files do without

    cores = usable_cores()
    most = max(8, 4 * cores)
    for name, count in counts.items():
        if count is not None and count > most:
            raise ValueError(f"--{name} must be at most {most} on a machine with {cores} usable cores, got {count}")
