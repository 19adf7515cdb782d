"""``classmargin compare-methods``: several methods and seeds on one data set, with a paired verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, MaxMemoryOption, OutputFormat, show


def compare_methods(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the comparison.")],
    data: options.Data = None,
    methods: Annotated[
        str, typer.Option("--methods", metavar="A,B,…", help="Methods, the baseline first; or all.")
    ] = "erm,mr2",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=10_000, help="Runs of each method.")] = 3,
    jobs: options.Jobs = 1,
    engine: options.EngineName = options.Engine.local,
    backbone: options.BackboneName = None,
    preset: options.PresetName = None,
    epochs: options.Epochs = None,
    fraction: options.Fraction = None,
    imbalance: options.Imbalance = None,
    overrides: options.Overrides = None,
    equal_footing: options.EqualFooting = 0,
    devices: options.Devices = None,
    config: options.ConfigFile = None,
    root: options.Root = None,
    download: options.Download = None,
    output: FormatOption = OutputFormat.table,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Train methods with several seeds (finished runs are skipped, interrupted ones resume) and compare them.

    Hyper-parameters of one method: --set mr2.mean_margin=2.
    """
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.recipe_plan import plan_comparison
    from classmargin.recipes.record_pages import (
        comparison_dict,
        notes_of,
        tables_of,
        verdict_of,
        write_comparison,
    )
    from classmargin.recipes.run_options import gather_config, method_names, split_overrides
    from classmargin.recipes.run_parts import download_data
    from classmargin.recipes.run_recipe import run_plan

    serve_if_helper()
    names = method_names(methods)
    if not names:
        raise ValueError(f"--methods must name at least one method, got {methods!r}")
    shared, own = split_overrides(overrides or (), names)
    flags = options.run_tables(
        data=data,
        backbone=backbone,
        epochs=epochs,
        fraction=fraction,
        imbalance=imbalance,
        root=root,
        devices=devices,
    )
    run = gather_config(flags=flags, overrides=shared, preset=preset, file=config)
    plan = plan_comparison(run, names, seeds, out, own)
    if download:
        download_data(run)
    outcome = run_plan(plan, out, trials=equal_footing, engine=engine.value, jobs=jobs)
    write_comparison(outcome, out, title=f"Methods on {run.data.name}")
    record = outcome.record
    show(
        output,
        verdict=verdict_of(record),
        tables=tables_of(record),
        notes=notes_of(record),
        data=comparison_dict(outcome),
    )
    typer.echo(f"written to {out}", err=True)
    options.tell_failures(record.failed)
