"""Which folder ``reproduce`` may write into: see :mod:`classmargin.recipes.out_folder`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from classmargin.recipes.out_folder import QUESTION_FILE, Question, claim_folder, is_empty, make_folder
from classmargin.recipes.reproduce.plan import Changes, in_order, plan_recipe
from classmargin.recipes.reproduce.recipe import Recipe
from classmargin.recipes.reproduce.record import read_record
from classmargin.recipes.reproduce.sample_files import sample_weights
from classmargin.training.config import RunConfig

RECORD_FILE = "record.json"


def claim_recipe_folder(recipe: Recipe, scale: str, folder: Path, *, changes: Changes) -> None:
    """Make the folder of a recipe, or check that it holds the same recipe with the same settings.

    Raises:
        ValueError: As :func:`~classmargin.recipes.out_folder.claim_folder`, or a recipe that cannot be run.
        FileNotFoundError: The data are not on this machine.
    """
    blocks, _ = plan_recipe(recipe, scale, seeds=1, folder=folder, changes=changes)
    configs = {
        f"{block.block.key}/{row.row.key}": _portable(row.runs[0].config, folder)
        for block in blocks
        for row in block.rows
    }
    if (
        not configs and not (folder / QUESTION_FILE).exists()
    ):  # a figure of formulas: its record is all there is
        claim_record_folder(folder, recipe.name)
        return
    question = Question("reproduce", {"recipe": recipe.name, "scale": scale}, configs)
    claim_folder(folder, question, in_order(blocks), results=(RECORD_FILE,))


def _portable(config: RunConfig, folder: Path) -> RunConfig:
    """Return settings without the place of made-up weights, which differs with the way the folder is written."""
    if config.backbone.checkpoint != str(sample_weights(folder, config.backbone.name)):
        return config
    return dataclasses.replace(config, backbone=dataclasses.replace(config.backbone, checkpoint=None))


def claim_record_folder(folder: Path, recipe: str) -> None:
    """Make the folder of a record of finished runs, or check that it holds a record of the same recipe.

    Raises:
        ValueError: It cannot be made, or holds something else.
    """
    make_folder(folder)
    if is_empty(folder):
        return
    if not (folder / RECORD_FILE).exists():
        raise ValueError(f"{folder} exists and holds no record; choose another --out")
    before = read_record(folder).recipe
    if before != recipe:
        raise ValueError(f"{folder} holds a record of {before}, not of {recipe}; choose another --out")
