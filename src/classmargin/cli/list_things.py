"""``classmargin list``: everything that has a name, in one form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer import Argument

from classmargin.cli import _shared as shared

Rows = list[dict[str, Any]]


def _recipes() -> Rows:
    from classmargin.recipes.recipe import list_recipes

    demo = {"name": "demo", "title": "A remedy for the weak classes of the embedded data set", "command": "make demo"}
    several = {
        "name": "compare-methods",
        "title": "Several methods and seeds on one data set, with a paired verdict",
        "command": "classmargin compare-methods --methods erm,mr2 --seeds 3 --out DIR",
    }
    recipes = [
        {
            "name": recipe.name,
            "title": recipe.source,
            "question": recipe.question,
            "command": f"classmargin reproduce {recipe.name}",
            "scales": {name: scale.note for name, scale in recipe.scales.items()},
            "grid": {block.title: [row.key for row in block.rows] for block in recipe.blocks},
            "doubts": list(recipe.doubts),
        }
        for recipe in list_recipes()
    ]
    return [demo, several, *recipes]


def _settings() -> Rows:
    """Return what ``--set`` takes, with the meanings in the docstrings of the configuration."""
    from classmargin.training.config import RunConfig

    rows: Rows = []
    for part, default in vars(RunConfig()).items():
        meanings = _MEANINGS | shared.described(type(default).__doc__ or "", "Attributes")
        rows += [
            {"name": f"{part}.{key}", "default": value, "meaning": meanings.get(key, "")}
            for key, value in vars(default).items()
            if key != "options"
        ]
    return rows + [{"name": name, "default": None, "meaning": text} for name, text in _OPEN_SETTINGS.items()]


# The configuration of a method has one line for all of it.
_MEANINGS = {"name": "Registry name.", "preset": "Named hyper-parameters (classmargin list methods --json)."}
_OPEN_SETTINGS = {
    "backbone.*": "Arguments of the network's builder, e.g. backbone.width; a wrong name is answered with the known ones.",
    "method.*": "Hyper-parameters of the method, e.g. method.mean_margin (classmargin list methods --json). Where several "
    "methods run, METHOD.* is for one of them: mr2.mean_margin.",
}
# What there is: what a terminal has room for, and what JSON shows beside it.
KINDS = {
    "data": ("name title kind classes", "licence embedded"),
    "backbones": ("name title kind parameters", "weights extra"),
    "methods": ("name title family cost summary", "paper search presets caveats"),
    "recipes": ("name title command", ""),
    "presets": ("name title", "values mr2 notes"),
    "settings": ("name default meaning", ""),
    "remedies": ("name title cost changes risk", "kind default"),
}


def rows_of(kind: str) -> Rows:
    """Return a record for each thing of a kind (see :data:`KINDS`)."""
    from classmargin._checks import check_choice
    from classmargin.backbones import list_backbones
    from classmargin.data import list_data
    from classmargin.methods import default_hyperparameters, list_methods, requirements_of
    from classmargin.recipes.improve.remedies import REMEDIES
    from classmargin.training.presets import PRESETS

    fields = " ".join(KINDS[check_choice("kind", kind, KINDS)]).split()
    if kind in ("recipes", "settings"):
        return _recipes() if kind == "recipes" else _settings()
    records: dict[str, Iterable[Any]] = {
        "data": list_data(),
        "backbones": list_backbones(),
        "methods": list_methods(),
        "presets": PRESETS.values(),
        "remedies": REMEDIES.values(),
    }
    rows = [{name: getattr(record, name) for name in fields if hasattr(record, name)} for record in records[kind]]
    for row in rows if kind == "methods" else ():
        row["defaults"] = default_hyperparameters(row["name"])
        needs = requirements_of(row["name"])
        plain = vars(type(needs)())  # what cross-entropy needs goes without saying
        row["needs"] = {key: value for key, value in vars(needs).items() if value != plain[key]}
    return rows


def list_things(
    kind: Annotated[str, Argument(metavar="data|backbones|methods|recipes|presets|settings|remedies")],
    *,
    json: bool = False,
) -> None:
    """List data sets, networks, methods, recipes, presets, settings or remedies.

    Options:
        kind: What to list.
        json: Every field, for machines.
    """
    from classmargin.evaluation.json_values import json_text
    from classmargin.report.tables import Column, Table, terminal, to_rich

    rows = rows_of(kind)
    if json:
        typer.echo(json_text(rows))
        return
    columns = tuple(
        Column(name, name.capitalize(), "value" if name == "cost" else "text") for name in KINDS[kind][0].split()
    )
    # A cost is rough: four thirds of a plain training are 1.3 times it.
    shown = [{**row, "cost": f"{row['cost']:.2g}"} if "cost" in row else row for row in rows]
    terminal().print(to_rich(Table(kind.capitalize(), columns, shown)))
