"""``classmargin reproduce``: a table or figure of the paper, run again, ours beside the printed values."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classmargin.cli import _run_options as options
from classmargin.cli._shared import FormatOption, MaxMemoryOption, OutputFormat, show

if TYPE_CHECKING:
    from classmargin.recipes.recipe_plan import Changes, RecipePlan
    from classmargin.recipes.run_recipe import Outcome


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Recipe (classmargin list recipes).", show_default=False),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="smoke|laptop|paper", help="How large.")
    ] = "laptop",
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=10_000, help="Runs of each row.")] = 3,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder (default: runs/NAME-SCALE).", show_default=False),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            max=1024,
            help="Runs side by side, one thread each (default: 2, or 1 at scale paper).",
        ),
    ] = None,
    engine: options.EngineName = options.Engine.local,
    data: options.RecipeData = None,
    root: options.Root = None,
    download: options.Download = None,
    backbone: options.RecipeBackbone = None,
    epochs: options.RecipeEpochs = None,
    fraction: options.Fraction = None,
    overrides: options.Overrides = None,
    equal_footing: options.EqualFooting = 0,
    devices: options.Devices = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option("--checkpoint", metavar="BACKBONE=FILE", help="Pretrained weights of a network."),
    ] = None,
    mr2_preset: Annotated[
        str,
        typer.Option(
            "--mr2-preset",
            metavar="NAME",
            help="Hyper-parameters of MR²: recommended, paper or release.",
        ),
    ] = "",
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="A,B,…",
            help="Run each row of the MR² family with each of these: paper, release, recommended.",
        ),
    ] = "",
    select: Annotated[
        bool, typer.Option("--select", help="First search the paper's grid of c̄ and λ on validation.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: print runs, steps and estimated GPU-hours.")
    ] = False,
    rows: Annotated[
        str, typer.Option("--rows", metavar="A,B,…", help="Only these rows (and the first).")
    ] = "",
    blocks: Annotated[str, typer.Option("--blocks", metavar="A,B,…", help="Only these blocks.")] = "",
    from_runs: Annotated[
        list[Path] | None,
        typer.Option("--from-runs", metavar="DIR", help="Train nothing: measure finished runs found there."),
    ] = None,
    note: Annotated[str, typer.Option("--note", help="With --from-runs: what was run, for the record.")] = "",
    render: Annotated[
        list[Path] | None,
        typer.Option("--render", metavar="RECORD", help="Train nothing: print the Markdown page of records."),
    ] = None,
    output: FormatOption = OutputFormat.table,
    max_memory: MaxMemoryOption = None,
) -> None:
    """Run a table or figure of the paper again (finished runs are skipped, interrupted ones resume).

    Hyper-parameters of one method: --set mr2.mean_margin=2. NAME may be left out, or be "custom", with --from-runs.
    """
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.out_folder import claim_record_folder, removed_unless_begun, results_folder
    from classmargin.recipes.recipe_plan import plan_recipe
    from classmargin.recipes.record import CUSTOM
    from classmargin.recipes.record_pages import render_records, write_outputs
    from classmargin.recipes.run_recipe import from_runs as measure_runs
    from classmargin.recipes.run_recipe import run_plan

    if render:
        typer.echo(render_records(render), nl=False)
        return
    serve_if_helper()
    recipe = _recipe(name, CUSTOM, measured=bool(from_runs))
    command = ["reproduce", *_words_after("reproduce")]
    folder = out if out is not None else _default_folder(name or CUSTOM, CUSTOM if from_runs else scale)
    if from_runs:
        with removed_unless_begun(folder):
            claim_record_folder(folder, name or CUSTOM)
            outcome = measure_runs(from_runs, recipe, note=note, command=command)
    else:
        assert recipe is not None, "only measured runs go without a recipe"
        if select and equal_footing:
            raise ValueError("--select and --equal-footing are two ways to choose settings; give one of them")
        flags = options.run_tables(
            data=data, backbone=backbone, epochs=epochs, fraction=fraction, root=root, devices=devices
        )
        changes = _changes(flags, overrides or [], checkpoint or [], mr2_preset, rows, blocks, recipe)
        changes = replace(changes, objectives=_list(objective))
        if dry_run:
            plan = plan_recipe(recipe, scale, seeds=seeds, folder=folder, changes=changes, must_run=False)
            _show_plan(plan, output, equal_footing)
            return
        side_by_side = jobs if jobs is not None else (1 if scale == "paper" else 2)
        how: dict[str, Any] = {"engine": engine.value, "jobs": side_by_side}
        plan = plan_recipe(
            recipe, scale, seeds=seeds, folder=folder, changes=changes, download=bool(download)
        )
        folder = results_folder(folder, recipe.name, scale)
        outcome = run_plan(plan, folder, search=select, trials=equal_footing, command=command, **how)
    write_outputs(outcome.record, folder, outcome.measured)
    _show(outcome, output, folder)


def _show_plan(plan: RecipePlan, output: OutputFormat, equal_footing: int) -> None:
    from classmargin.recipes.gpu_hours import plan_table, verdict_of
    from classmargin.recipes.validation_search import fair_rows

    notes = [f"Left out: {title} ({reason})." for title, reason in plan.left_out.items()]
    if equal_footing:
        plan = replace(plan, blocks=tuple(fair_rows(block, plan.folder) for block in plan.blocks))
        notes.append(f"The search on validation trains {equal_footing} more runs of each row.")
    table = plan_table(plan)
    data = {"recipe": plan.recipe.name, "scale": plan.scale, "rows": table.rows, "basis": table.note}
    show(output, verdict=verdict_of(plan), tables=[table], notes=notes, data=data)


def _default_folder(name: str, scale: str) -> Path:
    """Return ``runs/NAME-SCALE``; a comparison that is not a recipe has one name for both."""
    return Path("runs") / (name if name == scale else f"{name}-{scale}")


def _recipe(name: str | None, custom: str, *, measured: bool) -> Any:
    from classmargin.recipes.recipe import find_recipe

    if name is None or name == custom:
        if not measured:
            raise ValueError("NAME of a recipe is missing; see classmargin list recipes")
        return None
    return find_recipe(name)


def _words_after(verb: str) -> list[str]:
    """Return the words of the command line after the verb, to be kept in the record."""
    return sys.argv[sys.argv.index(verb) + 1 :] if verb in sys.argv else []


def _changes(
    flags: dict[str, dict[str, Any]],
    overrides: list[str],
    checkpoints: list[str],
    mr2_preset: str,
    rows: str,
    blocks: str,
    recipe: Any,
) -> Changes:
    from classmargin.recipes.recipe_plan import Changes
    from classmargin.recipes.run_options import split_overrides
    from classmargin.training.config_reader import merge, parse_overrides

    methods = {row.method for block in recipe.blocks for row in block.rows}
    shared, own = split_overrides(overrides, methods)
    settings = merge(flags, parse_overrides(shared))
    return Changes(settings, own, _files(checkpoints), mr2_preset, rows=_list(rows), blocks=_list(blocks))


def _files(words: list[str]) -> dict[str, str]:
    files = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise ValueError(f"--checkpoint wants BACKBONE=FILE, e.g. clip-vit-b32=ViT-B-32.pt; got {word!r}")
        if not Path(path).exists():
            raise ValueError(f"--checkpoint {name}: there is no file {path}")
        files[name] = path
    return files


def _list(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())


def _show(outcome: Outcome, output: OutputFormat, folder: Path) -> None:
    from classmargin.recipes.record_pages import notes_of, tables_of, verdict_of

    record = outcome.record
    show(
        output,
        verdict=verdict_of(record),
        tables=tables_of(record),
        notes=notes_of(record),
        data=record.to_dict(),
    )
    typer.echo(f"written to {folder}", err=True)
    options.tell_failures(record.failed)
