"""Docstrings as the site shows them: Sphinx roles become links or code, ``Example`` sections become examples.

The docstrings of the package are written to be read in an editor (Google style, a few Sphinx roles, ``::`` before
indented lines). Markdown knows neither roles nor ``::``; this extension of griffe rewrites them before mkdocstrings reads
them. A role becomes a link if its target has an entry in ``docs/api``, else plain code.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from griffe import Extension

API = Path(__file__).resolve().parents[1] / "docs" / "api"
_ROLE = re.compile(r":(?:func|class|mod|meth|attr|data|obj):`(~?)([\w.]+)`", re.DOTALL)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_LITERAL = re.compile(r"::$", re.MULTILINE)
_RETURNS = re.compile(r"^(Returns:\n +)(?=[^\n]*: )", re.MULTILINE)


class ReadableDocstrings(Extension):
    """Rewrites every docstring once, when griffe has found its object."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is not None and not obj.is_alias:
            text = readable(obj.docstring.value, lambda name: _target(obj, name))
            returned = getattr(obj, "returns", None) if obj.is_function else None
            obj.docstring.value = with_return_type(text, str(returned)) if returned is not None else text


def readable(text: str, target: Any) -> str:
    """Return a docstring in Markdown.

    Args:
        text: The docstring.
        target: Function from the name in a role to the name of an entry of the site, or None.

    Example:
        >>> print(readable("See :func:`f`::", lambda name: None))
        See `f`:
    """

    def replaced(found: re.Match[str]) -> str:
        short, name = found[1], found[2]
        shown = name.rpartition(".")[2] if short else name
        entry = target(name)
        return f"[`{shown}`][{entry}]" if entry else f"`{shown}`"

    text = _EXAMPLE.sub("Examples:", _LITERAL.sub(":", text))
    return _ROLE.sub(replaced, text)


def with_return_type(text: str, annotation: str) -> str:
    r"""Return a docstring whose ``Returns`` section names the type where its first line has a colon.

    Types stand in signatures here; without this, griffe takes the words before the colon for the type.

    Example:
        >>> with_return_type("Returns:\n    Two rows: right, all.", "Tensor").splitlines()[1]
        '    Tensor: Two rows: right, all.'
    """
    return _RETURNS.sub(lambda found: f"{found[1]}{annotation}: ", text)


def _target(obj: Any, name: str) -> str | None:
    """Return the entry that a name inside an object's docstring means, or None."""
    candidates = [name]
    try:
        candidates.append(obj.resolve(name.split(".")[0]) + name[len(name.split(".")[0]) :])
    except Exception:  # griffe raises when a name means nothing here
        return name if name in entries() else None
    return next((candidate for candidate in candidates if candidate in entries()), None)


@cache
def entries() -> frozenset[str]:
    """Return the names of all objects with an entry in ``docs/api``."""
    return frozenset(
        found[1]
        for page in API.glob("*.md")
        for found in re.finditer(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    )
