"""Recipes at their smallest, trained in this process: starting workers costs seconds each."""

from __future__ import annotations

from classmargin.recipes.reproduce import run as run_module
from classmargin.recipes.reproduce.spread_log import SpreadLog
from classmargin.recipes.train_run import train


def train_here(runs, *, jobs=1, show=None):
    """Stand for the pool of processes."""
    failed = {}
    for run in runs:
        if run.folder.done:
            continue
        try:
            observers = [SpreadLog(run.folder.path)] if run.watch_spread else []
            train(run.config, run.folder.path, resume=True, show=False, observers=observers)
        except (ValueError, ImportError) as error:
            failed[run.title] = str(error)
    return failed


def reproduce_here(recipe, folder, *, scale="smoke", seeds=1, **more):
    """Run a recipe in this process and return its outcome."""
    original, run_module.run_all = run_module.run_all, train_here
    try:
        return run_module.reproduce(recipe, scale, folder, seeds=seeds, show=False, **more)
    finally:
        run_module.run_all = original
