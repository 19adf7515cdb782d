"""A page of tables and figures, for results that need no layout of their own (sweeps, recipes)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from classmargin._printable import printable
from classmargin.report.figure_parts import Figure
from classmargin.report.render import write_page
from classmargin.report.tables import Table


def write_tables_html(
    path: str | os.PathLike[str],
    *,
    title: str,
    verdict: str,
    tables: Sequence[Table],
    figures: Mapping[str, tuple[Figure, str, str]] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML file and return where it is.

    Args:
        path: Where the page goes; replaced only when the new one is complete.
        title: Heading.
        verdict: The answer in a sentence or two, above everything else.
        tables: Shown in this order.
        figures: Plotly figures by id, each with words for readers who cannot see it and a caption.
        notes: How to read the numbers.
    """
    shown = dict(figures or {})
    sections = [(f"table-{number}", table.title) for number, table in enumerate(tables, start=1)]
    content = {
        "title": printable(title),
        "verdict": printable(verdict),
        "tables": list(tables),
        "drawn": [(name, label, caption) for name, (_, label, caption) in shown.items()],
        "figures": {name: figure for name, (figure, _, _) in shown.items()},
        "cells": None,
        "notes": [printable(note) for note in notes],
        "sections": [*sections, *([("figures", "Figures")] if shown else []), ("notes", "How to read this")],
    }
    return write_page(path, "tables.html.j2", content)
