"""``classmargin list``: everything that has a name, in one form."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

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
    from classmargin.recipes.recipe import list_recipes

    return [
        {
            "name": "demo",
            "title": "A remedy for the weak classes of the embedded data set",
            "command": "make demo",
        },
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


def _remedies() -> Rows:
    """Return the ladder of ``classmargin improve``."""
    from classmargin.recipes.improve.remedies import REMEDIES

    return [
        _plain(one, "name", "title", "kind", "cost", "changes", "risk", "default")
        for one in REMEDIES.values()
    ]


def _settings() -> Rows:
    """Return what ``--set`` takes, with the meanings in the docstrings of the configuration."""
    from classmargin.training.config import RunConfig

    rows = []
    for part in dataclasses.fields(RunConfig):
        default = getattr(RunConfig(), part.name)
        meanings = _attributes(type(default).__doc__ or "")
        for item in dataclasses.fields(default):
            if item.name != "options":
                row = {"name": f"{part.name}.{item.name}", "default": getattr(default, item.name)}
                rows.append({**row, "meaning": meanings.get(item.name, _MEANINGS.get(item.name, ""))})
    return [*rows, *_OPEN_SETTINGS]


# The configuration of a method has one line for all of it.
_MEANINGS = {"name": "Registry name.", "preset": "Named hyper-parameters (classmargin list methods --json)."}
_OPEN_SETTINGS: Rows = [
    {
        "name": "backbone.*",
        "default": None,
        "meaning": "Arguments of the network's builder, e.g. backbone.width; a wrong name is answered with the known ones.",
    },
    {
        "name": "method.*",
        "default": None,
        "meaning": "Hyper-parameters of the method, e.g. method.mean_margin (classmargin list methods --json). Where several "
        "methods run, METHOD.* is for one of them: mr2.mean_margin.",
    },
]


def _attributes(docstring: str) -> dict[str, str]:
    r"""Return the attributes of a Google-style docstring by name.

    Example:
        >>> _attributes("A run.\n\n    Attributes:\n        epochs: Passes, over\n            all stages.\n        seed: Of it.")
        {'epochs': 'Passes, over all stages.', 'seed': 'Of it.'}
    """
    section = inspect.cleandoc(docstring).partition("Attributes:\n")[2].partition("\n\n")[0]
    pieces = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    texts = (" ".join(text.replace("``", "").split()) for text in pieces[1::2])
    return dict(zip(pieces[::2], texts, strict=True))


KINDS: dict[str, Callable[[], Rows]] = {
    "data": _data,
    "backbones": _backbones,
    "methods": _methods,
    "recipes": _recipes,
    "presets": _presets,
    "settings": _settings,
    "remedies": _remedies,
}
# What a terminal has room for; JSON shows all.
SHORT = {
    "data": ("name", "title", "kind", "classes"),
    "backbones": ("name", "title", "kind", "parameters"),
    "methods": ("name", "title", "family", "cost", "summary"),
    "recipes": ("name", "title", "command"),
    "presets": ("name", "title"),
    "remedies": ("name", "title", "cost", "changes", "risk"),
    "settings": ("name", "default", "meaning"),
}


def rows_of(kind: str) -> Rows:
    """Return a record for each thing of a kind: data, backbones, methods, recipes, presets or settings.

    Example:
        >>> [row["name"] for row in rows_of("presets")]
        ['cifar', 'imagenet-scratch', 'clip-finetune', 'mae-finetune', 'moco-probe']
    """
    from classmargin._checks import check_choice

    return KINDS[check_choice("kind", kind, KINDS)]()


def _plain(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def list_things(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="data|backbones|methods|recipes|presets|settings|remedies", help="What to list."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Every field, for machines.")] = False,
) -> None:
    """List data sets, networks, methods, recipes, presets, settings or remedies."""
    from classmargin.evaluation.json_values import json_text
    from classmargin.report.tables import Column, Table, terminal, to_rich

    rows = rows_of(kind)
    if as_json:
        typer.echo(json_text(rows))
        return
    columns = tuple(
        Column(name, name.capitalize(), "value" if name == "cost" else "text") for name in SHORT[kind]
    )
    # A cost is rough: four thirds of a plain training are 1.3 times it.
    shown = [{**row, "cost": f"{row['cost']:.2g}"} if "cost" in row else row for row in rows]
    terminal().print(to_rich(Table(kind.capitalize(), columns, shown)))
