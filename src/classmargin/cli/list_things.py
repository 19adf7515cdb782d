"""``classmargin list``: what can be named."""

from __future__ import annotations

from typing import Annotated

import typer


def list_things(
    kind: Annotated[
        str, typer.Argument(metavar="data|backbones|methods|recipes|presets|settings", help="What to list.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Every field, for machines.")] = False,
) -> None:
    """List data sets, networks, methods, recipes, presets or settings."""
    from classmargin.recipes.catalogue import SHORT
    from classmargin.recipes.catalogue import list_things as rows_of
    from classmargin.report.tables import Column, Table, json_text, to_rich
    from classmargin.report.text import terminal

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
