"""``classmargin compare-methods``: several methods and seeds on one data set, with a paired verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classmargin._printable import printable
from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, OutputFormat, show

SOME_FAILED = 3


def compare_methods(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the comparison.")],
    data: options.Data = None,
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B,…", help="Methods, the baseline first; or all.")
    ] = "erm,mr2",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each method.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs side by side, one thread each.")] = 1,
    backbone: options.BackboneName = None,
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    overrides: options.Overrides = None,
    config: options.ConfigFile = None,
    root: options.Root = None,
    download: options.Download = None,
    output: FormatOption = OutputFormat.table,
) -> None:
    """Train methods with several seeds (finished runs are skipped, broken ones go on) and compare them.

    Hyper-parameters of one method: --set mr2.mean_margin=2.
    """
    from classmargin.recipes.compare_methods import (
        claim_comparison_folder,
        method_names,
        plan_runs,
        to_dict,
        write_comparison,
    )
    from classmargin.recipes.compare_methods import (
        compare_methods as run_comparison,
    )
    from classmargin.recipes.method_table import tables_of, verdict_of
    from classmargin.recipes.out_folder import removed_unless_begun
    from classmargin.recipes.run_options import gather_config, split_overrides
    from classmargin.recipes.session import download_data

    names = method_names(methods)
    if not names:
        raise ValueError(f"--methods must name at least one method, got {methods!r}")
    shared, own = split_overrides(overrides or (), names)
    flags: dict[str, dict[str, object]] = {
        "data": {
            "name": data,
            "fraction": fraction,
            "imbalance": imbalance,
            "root": None if root is None else str(root),
        },
        "backbone": {"name": backbone},
        "loop": {"epochs": epochs},
    }
    run = gather_config(flags=flags, overrides=shared, preset=preset, file=config)
    plan = plan_runs(run, names, seeds, out, own)
    if download:
        download_data(run)
    with removed_unless_begun(out):
        claim_comparison_folder(out, plan)
        comparison = run_comparison(plan, jobs=jobs)
    write_comparison(comparison, out, title=f"Methods on {run.data.name}")
    show(
        output,
        verdict=verdict_of(comparison),
        tables=tables_of(comparison),
        notes=[],
        data=to_dict(comparison),
    )
    typer.echo(f"written to {out}", err=True)
    for title, error in comparison.failed.items():
        typer.echo(printable(f"classmargin: error: {title} failed: {error}"), err=True)
    if comparison.failed:
        raise typer.Exit(SOME_FAILED)
