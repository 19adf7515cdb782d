"""``classmargin reproduce``: a table or figure of the paper, run again, ours beside the printed values."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from classmargin.cli import _shared as shared

if TYPE_CHECKING:
    from classmargin.recipes.recipe_plan import RecipePlan


def reproduce(
    name: Annotated[str | None, Argument(metavar="NAME")] = None,
    *,
    scale: Annotated[str, Option(metavar="smoke|laptop|paper")] = "laptop",
    seeds: Annotated[int, Option(min=1, max=10_000)] = 3,
    out: Annotated[Path | None, Option(metavar="DIR")] = None,
    jobs: Annotated[int | None, Option(min=1, max=1024)] = None,
    engine: shared.Engine = "local",
    data: Annotated[str | None, Option(metavar="NAME|PATH")] = None,
    download: bool | None = None,
    backbone: Annotated[str | None, Option(metavar="NAME")] = None,
    epochs: Annotated[int | None, Option(min=1)] = None,
    flags: shared.RecipeFlags,
    equal_footing: shared.EqualFootingOption = 0,
    checkpoint: Annotated[list[str] | None, Option(metavar="BACKBONE=FILE")] = None,
    mr2_preset: Annotated[str, Option(metavar="NAME")] = "",
    objective: Annotated[str, Option(metavar="A,B,…")] = "",
    select: bool = False,
    dry_run: bool = False,
    rows: Annotated[str, Option(metavar="A,B,…")] = "",
    blocks: Annotated[str, Option(metavar="A,B,…")] = "",
    from_runs: Annotated[list[Path] | None, Option(metavar="DIR")] = None,
    note: str = "",
    render: Annotated[list[Path] | None, Option(metavar="RECORD")] = None,
    output: shared.FormatOption = "table",
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Run a table or figure of the paper again (finished runs are skipped, interrupted ones resume).

    Hyper-parameters of one method: --set mr2.mean_margin=2. NAME may be left out, or be "custom", with --from-runs.

    Options:
        name: Recipe (classmargin list recipes).
        scale: How large.
        seeds: Runs of each row.
        out: Folder (default: runs/NAME-SCALE).
        jobs: Runs side by side, one thread each (default: 2, or 1 at scale paper).
        data: Data set: a name (classmargin list data), a file or a folder. Default: the recipe's.
        backbone: Network (classmargin list backbones). Default: the recipe's.
        epochs: Passes over the training set. Default: the scale's.
        checkpoint: Pretrained weights of a network.
        mr2_preset: Hyper-parameters of MR²: recommended, paper or release.
        objective: Run each row of the MR² family with each of these: paper, release, recommended.
        select: First search the paper's grid of c̄ and λ on validation.
        dry_run: Train nothing: print runs, steps and estimated GPU-hours.
        rows: Only these rows (and the first).
        blocks: Only these blocks.
        from_runs: Train nothing: measure finished runs found there.
        note: With --from-runs: what was run, for the record.
        render: Train nothing: print the Markdown page of records.
    """
    from classmargin.recipes import out_folder, record_pages, run_recipe
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.recipe import find_recipe
    from classmargin.recipes.recipe_plan import Changes, plan_recipe
    from classmargin.recipes.record import CUSTOM
    from classmargin.recipes.run_options import split_overrides
    from classmargin.training.config_reader import merge, parse_overrides

    if render:
        typer.echo(record_pages.render_records(render), nl=False)
        return
    serve_if_helper()
    title = name or CUSTOM
    recipe = None if title == CUSTOM else find_recipe(title)
    command = ["reproduce", *_words_after("reproduce")]
    kind = CUSTOM if from_runs else scale
    folder = out or Path("runs", title if title == kind else f"{title}-{kind}")
    if from_runs:
        with out_folder.removed_unless_begun(folder):
            out_folder.claim_record_folder(folder, title)
            outcome = run_recipe.from_runs(from_runs, recipe, note=note, command=command)
    elif recipe is None:
        raise ValueError("NAME of a recipe is missing; see classmargin list recipes")
    else:
        if select and equal_footing:
            raise ValueError("--select and --equal-footing are two ways to choose settings; give one of them")
        tables = flags.tables(data=data, backbone=backbone, epochs=epochs)
        methods = {row.method for block in recipe.blocks for row in block.rows}
        common, own = split_overrides(flags.overrides or (), methods)
        changes = Changes(
            merge(tables, parse_overrides(common)),
            own,
            _files(checkpoint or []),
            mr2_preset,
            rows=_list(rows),
            blocks=_list(blocks),
            objectives=_list(objective),
        )
        if dry_run:
            plan = plan_recipe(recipe, scale, seeds=seeds, folder=folder, changes=changes, must_run=False)
            _show_plan(plan, output, equal_footing)
            return
        side_by_side = jobs or (1 if scale == "paper" else 2)
        plan = plan_recipe(recipe, scale, seeds=seeds, folder=folder, changes=changes, download=bool(download))
        folder = out_folder.results_folder(folder, recipe.name, scale)
        outcome = run_recipe.run_plan(
            plan, folder, search=select, trials=equal_footing, command=command, engine=engine, jobs=side_by_side
        )
    record_pages.write_outputs(outcome.record, folder, outcome.measured)
    shared.show_record(output, outcome.record, folder, outcome.record.to_dict())


def _show_plan(plan: RecipePlan, output: shared.OutputFormat, equal_footing: int) -> None:
    from classmargin.recipes.gpu_hours import plan_table, verdict_of
    from classmargin.recipes.validation_search import fair_rows

    notes = [f"Left out: {title} ({reason})." for title, reason in plan.left_out.items()]
    if equal_footing:
        plan = replace(plan, blocks=tuple(fair_rows(block, plan.folder) for block in plan.blocks))
        notes.append(f"The search on validation trains {equal_footing} more runs of each row.")
    table = plan_table(plan)
    data = {"recipe": plan.recipe.name, "scale": plan.scale, "rows": table.rows, "basis": table.note}
    shared.show(output, verdict=verdict_of(plan), tables=[table], notes=notes, data=data)


def _words_after(verb: str) -> list[str]:
    """Return the words of the command line after the verb, to be kept in the record."""
    return sys.argv[sys.argv.index(verb) + 1 :] if verb in sys.argv else []


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
