"""Recipes at their smallest, trained in this process: starting workers costs seconds each."""

from __future__ import annotations

from classmargin.recipes import runner
from classmargin.recipes.recipe_plan import plan_comparison, plan_recipe
from classmargin.recipes.run_recipe import reproduce


def train_here(runs, *, engine="local", jobs=1, show=None):
    """Stand for the runner where only its result matters."""
    return runner.run_all(runs, engine="inline", show=False)


def reproduce_here(recipe, folder, *, scale="smoke", seeds=1, **more):
    """Run a recipe in this process and return its outcome."""
    plan = plan_recipe(recipe, scale, seeds=seeds, folder=folder)
    return reproduce(plan, engine="inline", show=False, **more)


def plan_runs(*arguments):
    """Return the runs of a comparison by method."""
    (block,) = plan_comparison(*arguments).blocks
    return {row.key: list(row.runs) for row in block.rows}
