"""Writes the tables of the documentation that come from registries: ``python scripts/make_docs_tables.py``."""

from __future__ import annotations

from pathlib import Path

from classmargin.methods import methods_table_markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = (
    "# Methods\n\nGenerated from the registry by `python scripts/make_docs_tables.py`; `classmargin list methods` prints the same.\n"
    "`sam+NAME` combines any loss method with sharpness-aware steps.\n\n"
)


def methods_page() -> str:
    """Return the text of ``docs/methods.md``."""
    return HEAD + methods_table_markdown().rstrip() + "\n"


if __name__ == "__main__":
    (DOCS / "methods.md").write_text(methods_page(), encoding="utf-8")
