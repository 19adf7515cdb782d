"""Everything that has a name, in one form: ``classmargin list``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from classmargin._checks import check_choice

Rows = list[dict[str, Any]]


def _data() -> Rows:
    from classmargin.data import list_data

    return [_plain(info, "name", "title", "kind", "classes", "licence", "embedded") for info in list_data()]


def _backbones() -> Rows:
    from classmargin.backbones import list_backbones

    return [
        _plain(info, "name", "title", "kind", "parameters", "weights", "extra") for info in list_backbones()
    ]


def _methods() -> Rows:
    from classmargin.methods import default_hyperparameters, list_methods, requirements_of

    rows = []
    for info in list_methods():
        row = _plain(
            info, "name", "title", "family", "cost", "summary", "paper", "search", "presets", "caveats"
        )
        row["defaults"] = default_hyperparameters(info.name)
        row["needs"] = _needs(requirements_of(info.name))
        rows.append(row)
    return rows


def _needs(requirements: Any) -> dict[str, Any]:
    """Return what differs from the needs of plain cross-entropy."""
    defaults = type(requirements)()
    given = dataclasses.asdict(requirements)
    return {name: value for name, value in given.items() if value != getattr(defaults, name)}


def _presets() -> Rows:
    from classmargin.training.presets import PRESETS

    return [_plain(preset, "name", "title", "values", "mr2", "notes") for preset in PRESETS.values()]


def _recipes() -> Rows:
    from classmargin.recipes.reproduce.recipe import list_recipes

    return [
        {"name": "demo", "title": "ERM against MR² on the embedded data set", "command": "make demo"},
        {
            "name": "compare-methods",
            "title": "Several methods and seeds on one data set, with a paired verdict",
            "command": "classmargin compare-methods --methods erm,mr2 --seeds 3 --out DIR",
        },
        *(_recipe_row(recipe) for recipe in list_recipes()),
    ]


def _recipe_row(recipe: Any) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.source,
        "question": recipe.question,
        "command": f"classmargin reproduce {recipe.name}",
        "scales": {name: scale.note for name, scale in recipe.scales.items()},
        "grid": {block.title: [row.key for row in block.rows] for block in recipe.blocks},
        "doubts": list(recipe.doubts),
    }


KINDS: dict[str, Callable[[], Rows]] = {
    "data": _data,
    "backbones": _backbones,
    "methods": _methods,
    "recipes": _recipes,
    "presets": _presets,
}
# What a terminal has room for; JSON shows all.
SHORT = {
    "data": ("name", "title", "kind", "classes"),
    "backbones": ("name", "title", "kind", "parameters"),
    "methods": ("name", "title", "family", "cost", "summary"),
    "recipes": ("name", "title", "command"),
    "presets": ("name", "title"),
}


def list_things(kind: str) -> Rows:
    """Return a record for each thing of a kind: data, backbones, methods, recipes or presets.

    Example:
        >>> [row["name"] for row in list_things("presets")]
        ['cifar', 'imagenet-scratch', 'clip-finetune', 'mae-finetune', 'moco-probe']
    """
    return KINDS[check_choice("kind", kind, KINDS)]()


def _plain(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names if hasattr(record, name)}
