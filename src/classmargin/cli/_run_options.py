"""Options that the verbs around training share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

# Defaults of a run (classmargin.training.config), written out because help must not import what makes them.
DATA, BACKBONE, METHOD, EPOCHS = "fashion-mnist-mini", "small-cnn", "erm", 30
_DATA_HELP = "Data set: a name (classmargin list data), a file or a folder."
_BACKBONE_HELP = "Network (classmargin list backbones)."
_EPOCHS_HELP = "Passes over the training set."

Data = Annotated[
    str | None,
    typer.Option("--data", metavar="NAME|PATH", help=f"{_DATA_HELP} Default: {DATA}, or the preset's."),
]
BackboneName = Annotated[
    str | None,
    typer.Option(
        "--backbone", metavar="NAME", help=f"{_BACKBONE_HELP} Default: {BACKBONE}, or the preset's."
    ),
]
Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help=f"{_EPOCHS_HELP} Default: {EPOCHS}, or the preset's.")
]
# The same where a recipe decides what is not given.
RecipeData = Annotated[
    str | None, typer.Option("--data", metavar="NAME|PATH", help=f"{_DATA_HELP} Default: the recipe's.")
]
RecipeBackbone = Annotated[
    str | None, typer.Option("--backbone", metavar="NAME", help=f"{_BACKBONE_HELP} Default: the recipe's.")
]
RecipeEpochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help=f"{_EPOCHS_HELP} Default: the scale's.")
]
PresetName = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Training recipe of the paper (classmargin list presets)."),
]
Fraction = Annotated[
    float | None, typer.Option("--fraction", help="Share of the training samples, class by class.")
]
Imbalance = Annotated[
    float | None, typer.Option("--imbalance", help="Long tail: ratio of the largest to the smallest class.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PART.KEY=VALUE",
        help="Any other setting (classmargin list settings), e.g. method.mean_margin=2.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings as a file.", exists=True, dir_okay=False),
]
Root = Annotated[
    Path | None, typer.Option("--root", help="Folder of data sets (default: $CLASSMARGIN_DATA).")
]
Download = Annotated[
    bool | None, typer.Option("--download", help="Allow a download where there is a source.")
]
SkipCorrupt = Annotated[
    bool | None, typer.Option("--skip-corrupt", help="Leave unreadable files out instead of stopping.")
]


class Engine(str, Enum):
    """Where runs are trained."""

    local = "local"
    ray = "ray"


EngineName = Annotated[
    Engine,
    typer.Option(
        "--engine", help="local: processes on this machine; ray: a Ray cluster (RAY_ADDRESS), or a local one."
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", min=1, max=1024, help="Runs side by side, one thread each, each with its own accelerators."
    ),
]
Devices = Annotated[
    int | None, typer.Option("--devices", min=1, help="Devices of each run, one process each.")
]
EqualFooting = Annotated[
    int,
    typer.Option(
        "--equal-footing",
        metavar="N",
        min=0,
        max=1000,
        help="Compare on an equal footing: choose each row's settings among N on validation first, and add cross-entropy "
        "with the compute of costlier methods and a null row. 0: settings as given.",
    ),
]
SOME_FAILED = 3


def run_tables(
    *,
    data: str | None = None,
    backbone: str | None = None,
    method: str | None = None,
    epochs: int | None = None,
    fraction: float | None = None,
    imbalance: float | None = None,
    root: Path | None = None,
    download: bool | None = None,
    skip_corrupt: bool | None = None,
    seed: int | None = None,
    compile_network: bool | None = None,
    devices: int | None = None,
    threads: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return options of their own as tables of a configuration; those not given are left out."""
    tables: Mapping[str, Mapping[str, Any]] = {
        "data": {
            "name": data,
            "fraction": fraction,
            "imbalance": imbalance,
            "root": None if root is None else str(root),
            "download": download,
            "skip_corrupt": skip_corrupt,
        },
        "backbone": {"name": backbone},
        "method": {"name": method},
        "loop": {"epochs": epochs, "seed": seed, "compile": compile_network},
        "machine": {"devices": devices, "threads": threads},
    }
    _check_machine(devices=devices, threads=threads)
    given = {part: {k: v for k, v in table.items() if v is not None} for part, table in tables.items()}
    return {part: table for part, table in given.items() if table}


def _check_machine(**counts: int | None) -> None:
    """Refuse processes or threads that would only stand in one another's way until memory or patience ends."""
    if all(count is None for count in counts.values()):
        return
    from classmargin.training.devices import usable_cores

    most = max(8, 4 * usable_cores())
    for name, count in counts.items():
        if count is not None and count > most:
            raise ValueError(
                f"--{name} must be at most {most} on a machine with {usable_cores()} usable cores, got {count}"
            )


def tell_failures(failed: Mapping[str, str]) -> None:
    """Say which runs failed, and end with the exit code for that if some did."""
    from classmargin._printable import printable

    for title, error in failed.items():
        typer.echo(printable(f"classmargin: error: {title} failed: {error}"), err=True)
    if failed:
        raise typer.Exit(SOME_FAILED)
