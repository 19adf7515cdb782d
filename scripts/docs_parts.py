"""Parts of the documentation that come from the code: method cards, presets, recipes, commands, examples.

A page holds a line ``<!-- from code: NAME -->`` or ``<!-- example: FILE -->``; :func:`fill_in` puts the part of that name, or the
file of ``examples/``, in its place when the site is built. Nothing of it is written by hand, so it cannot drift.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MARKER = re.compile(r"^<!-- from code: ([\w-]+) -->$", re.MULTILINE)
EXAMPLE = re.compile(r"^<!-- example: ([\w.]+) -->$", re.MULTILINE)
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_HEADING = re.compile(r"^(Idea|Use|Hyper-parameters|Cost|Caveats|Source): ", re.MULTILINE)
# Arguments of MR2Loss in which the presets differ, in the order of the formulas.
_PRESET_ARGUMENTS = (
    "mean_margin",
    "margin_source",
    "margin_power",
    "norm_order",
    "label_smoothing",
    "representation_weight",
    "representation",
    "spread_slack",
    "ema_decay",
)


def fill_in(markdown: str) -> str:
    """Return a page with every marker replaced by the part it names.

    Raises:
        ValueError: There is no part or no example of that name.
    """
    return EXAMPLE.sub(lambda found: _example(found[1]), MARKER.sub(lambda found: _part(found[1]), markdown))


def _example(name: str) -> str:
    file = EXAMPLES / name
    if not file.exists():
        raise ValueError(f"there is no example {name!r}")
    return f'```python title="examples/{name}"\n{file.read_text(encoding="utf-8").rstrip()}\n```'


def _part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    return PARTS[name]().strip()


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    r"""Return a Markdown table; bars inside cells are escaped, except in code.

    Example:
        >>> print(table(("a",), [("x|y",)]))
        | a |
        |---|
        | x\|y |
    """
    columns = list(head)
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    pieces = " ".join(str(value).split()).split("`")
    # Between backticks a bar is code and needs no escape.
    return "`".join(piece if odd % 2 else piece.replace("|", "\\|") for odd, piece in enumerate(pieces))


# --- methods ---------------------------------------------------------------------------------------------------


def method_cards() -> str:
    """Return one card a method: what it does, its defaults, search ranges, cost, caveats and source."""
    from classmargin.methods import list_methods

    return "\n\n".join(_card(info) for info in list_methods())


def _card(info: Any) -> str:
    from classmargin.methods import default_hyperparameters, requirements_of
    from classmargin.methods.method_registry import needs_text

    paragraphs = card_paragraphs(_class_of(info.name).__doc__ or "")
    balanced = "On balanced data its loss is cross-entropy." if info.equals_erm_when_balanced else ""
    facts = [
        ("family", info.family),
        ("needs", needs_text(requirements_of(info.name)) or "nothing beyond inputs and labels"),
        ("passes", f"{info.cost:.3g} times the forward and backward passes of ERM"),
        ("to watch", info.caveats),
        ("balanced data", balanced),
        ("paper", info.paper),
    ]
    lines = [f"## {info.title} {{ #{info.name} }}", f"`{info.name}` · {info.summary}"]
    lines += [f"**{head}:** {text}" for head, text in paragraphs if head != "Source"]
    lines.append("\n".join(f"- **{name}:** {text}" for name, text in facts if text))
    defaults = default_hyperparameters(info.name)
    rows = [(f"`{key}`", f"`{value!r}`", _search_text(info.search.get(key))) for key, value in defaults.items()]
    lines.append(table(("hyper-parameter", "default", "search range"), rows) if rows else "No hyper-parameters.")
    return "\n\n".join(lines)


def _class_of(name: str) -> type:
    from classmargin.methods.method_registry import _CLASSES

    return _CLASSES[name]


def card_paragraphs(docstring: str) -> list[tuple[str, str]]:
    r"""Return the headed paragraphs of a method's docstring (Idea, Use, …, Source) as head and text.

    Example:
        >>> card_paragraphs("X.\n\nIdea: small\n  steps.\nCost: one pass.")
        [('Idea', 'small steps.'), ('Cost', 'one pass.')]
    """
    text = inspect.cleandoc(docstring).split("\n\nExample")[0]
    pieces = _HEADING.split(text)[1:]
    return [(head, plain_roles(" ".join(body.split()))) for head, body in zip(pieces[::2], pieces[1::2], strict=True)]


def plain_roles(text: str) -> str:
    """Return text with Sphinx roles and double backticks as Markdown code.

    Example:
        >>> plain_roles(":class:`~a.b.C` and ``x``")
        '`C` and `x`'
    """
    text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")


def _search_text(values: tuple[Any, ...] | None) -> str:
    if not values:
        return ""
    if values[-1] == "log":
        return f"{values[0]:g} to {values[1]:g}, logarithmic"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


# --- presets, recipes, commands -----------------------------------------------------------------------------------


def loss_presets() -> str:
    """Return the arguments of ``MR2Loss`` under each preset, side by side."""
    from classmargin.mr2 import PRESETS, MR2Loss

    signature = inspect.signature(MR2Loss).parameters
    names = ("recommended", "paper", "release")

    def shown(preset: str, argument: str) -> str:
        value = PRESETS[preset].get(argument, signature[argument].default)
        return f"{value:.4g}" if isinstance(value, float) else f"`{value}`"

    rows = [(f"`{key}`", *(shown(name, key) for name in names)) for key in _PRESET_ARGUMENTS]
    return table(("argument", *(f"`{name}`" for name in names)), [row for row in rows if len(set(row[1:])) > 1])


def training_presets() -> str:
    """Return the training recipes of the paper by name."""
    from classmargin.training.presets import PRESETS

    rows = [(f"`{preset.name}`", preset.title, preset.notes) for preset in PRESETS.values()]
    return table(("preset", "what", "what the paper leaves open"), rows)


def recipes() -> str:
    """Return every recipe of ``classmargin reproduce`` with its question."""
    from classmargin.recipes.recipe import list_recipes

    rows = [
        (f"`{recipe.name}`", recipe.source, recipe.question, recipe.scales["laptop"].note) for recipe in list_recipes()
    ]
    return table(("recipe", "in the paper", "question", "scale `laptop`"), rows)


def recipe_doubts() -> str:
    """Return where the paper contradicts itself, recipe by recipe."""
    from classmargin.recipes.recipe import list_recipes

    return "\n".join(f"- `{recipe.name}`: {doubt}" for recipe in list_recipes() for doubt in recipe.doubts)


def command_line() -> str:
    """Return every command with its arguments and options."""
    import typer

    from classmargin.cli.main import VERBS, build_app

    group: Any = typer.main.get_command(build_app())
    return "\n\n".join(_command(name, group.commands[name], verb) for name, verb in VERBS.items())


def _command(name: str, command: Any, function: Callable[..., None]) -> str:
    types = typing.get_type_hints(function)
    lines = [f"## classmargin {name} {{ #{name} }}", inspect.cleandoc(command.help or "")]
    rows = [_parameter(item, types.get(item.name)) for item in command.params if item.name != "help"]
    lines.append(table(("argument", "what", "default"), rows))
    return "\n\n".join(lines)


def _parameter(parameter: Any, annotation: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
    text = _as_text(parameter.help or "")
    if typing.get_origin(annotation) is typing.Literal:
        text += f" One of: {', '.join(f'`{choice}`' for choice in typing.get_args(annotation))}."
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, str | int | float) and default not in ("", False) else ""
    return f"`{name}`", text, "required" if parameter.required else shown


def _as_text(words: str) -> str:
    """Return words of a help text so that Markdown shows them literally."""
    return re.sub(r"([*_<>\[\]$])", r"\\\1", words)


PARTS: dict[str, Callable[[], str]] = {
    "method-cards": method_cards,
    "loss-presets": loss_presets,
    "training-presets": training_presets,
    "recipes": recipes,
    "recipe-doubts": recipe_doubts,
    "command-line": command_line,
}
