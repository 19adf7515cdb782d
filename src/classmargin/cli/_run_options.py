"""Options that the verbs around training share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="NAME|PATH", help="Data set: a name (classmargin list data), a file or a folder."
    ),
]
BackboneName = Annotated[
    str | None, typer.Option("--backbone", metavar="NAME", help="Network (classmargin list backbones).")
]
PresetName = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Training recipe of the paper (classmargin list presets)."),
]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Passes over the training set.")]
Fraction = Annotated[
    float | None, typer.Option("--fraction", help="Share of the training samples, class by class.")
]
Imbalance = Annotated[
    float | None, typer.Option("--imbalance", help="Long tail: ratio of the largest to the smallest class.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PART.KEY=VALUE", help="Any other setting, e.g. method.mean_margin=2."),
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
