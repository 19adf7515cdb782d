"""``classmargin compare-methods``: several methods and seeds on one data set, with a paired verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from classmargin.cli import _options as options
from classmargin.cli._options import OutputFormat, RunFlags
from classmargin.cli._shared import show_record


def compare_methods(
    *,
    out: Annotated[Path, Option(metavar="DIR")],
    methods: Annotated[str, Option(metavar="A,B,…")] = "erm,mr2",
    seeds: Annotated[int, Option(min=1, max=10_000)] = 3,
    jobs: options.JobsOption = 1,
    engine: options.EngineOption = options.Engine.local,
    equal_footing: options.EqualFootingOption = 0,
    flags: RunFlags,
    output: options.FormatOption = OutputFormat.table,
    max_memory: options.MaxMemoryOption = None,
) -> None:
    """Train methods with several seeds (finished runs are skipped, interrupted ones resume) and compare them.

    Hyper-parameters of one method: --set mr2.mean_margin=2.

    Options:
        out: Folder of the comparison.
        methods: Methods, the baseline first; or all.
        seeds: Runs of each method.
    """
    from classmargin.recipes.launched_ranks import serve_if_helper
    from classmargin.recipes.out_folder import claim_comparison_folder, is_asked, removed_unless_begun
    from classmargin.recipes.recipe_plan import plan_comparison
    from classmargin.recipes.record_pages import comparison_dict, write_comparison
    from classmargin.recipes.run_options import method_names, split_overrides
    from classmargin.recipes.run_parts import download_data
    from classmargin.recipes.run_recipe import compare_methods as run_comparison
    from classmargin.recipes.validation_search import on_equal_footing

    serve_if_helper()
    names = method_names(methods)
    if not names:
        raise ValueError(f"--methods must name at least one method, got {methods!r}")
    shared, own = split_overrides(flags.overrides or (), names)
    run = flags.gather(flags.tables(), shared)
    block = plan_comparison(run, names, seeds, out, own)
    if flags.download:
        download_data(run)
    how: dict[str, Any] = {"engine": engine.value, "jobs": jobs}
    words = ""
    with removed_unless_begun(out):
        if equal_footing:
            if not is_asked(out):
                claim_comparison_folder(out, block)
            (block,), words = on_equal_footing([block], out, equal_footing, **how)
        claim_comparison_folder(out, block)
        outcome = run_comparison(block, trials=equal_footing, words=words, **how)
    write_comparison(outcome, out, title=f"Methods on {run.data.name}")
    show_record(output, outcome.record, out, comparison_dict(outcome))
