"""What mkdocs calls while it builds the site (``hooks`` in mkdocs.yml): parts from code, then formulas as MathML."""

from __future__ import annotations

import re
from typing import Any

# mkdocs puts the folder of a hook on the path while it loads the hook.
from docs_formulas import with_mathml
from docs_parts import fill_in

_METHOD_NAME = re.compile(r"^\| `([\w-]+)` \|", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the parts that come from code into the page; link the table of methods to their cards."""
    if page.file.src_uri == "methods.md":
        markdown = _METHOD_NAME.sub(r"| [`\1`](method_cards.md#\1) |", markdown)
    return _located(fill_in, markdown, page)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Turn marked formulas into MathML."""
    return _located(with_mathml, html, page)


def _located(change: Any, text: str, page: Any) -> str:
    from mkdocs.exceptions import PluginError

    try:
        changed: str = change(text)
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
    return changed
