"""What all figures share: colours, escaped names, and an empty plotly figure without a theme.

A figure carries no theme: backgrounds are transparent and text colours are set in the browser, which knows
whether the reader wants light or dark. Trace colours are chosen to be read on both.

Plotly reads some HTML in every text it shows. All names therefore pass :func:`plotly_text` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from classmargin._printable import printable

Figure = Any  # plotly.graph_objects.Figure; plotly is an optional dependency and imported late

TIER_COLOURS = {"easy": "#2a9d8f", "medium": "#d99a1c", "hard": "#d1495b"}
NEUTRAL = "#8a93a3"
ACCENT = "#4c78c8"
SERIES_COLOURS = (
    "#d1495b",
    ACCENT,
    "#d99a1c",
    "#2a9d8f",
    "#9b5fc0",
    "#e377a8",
    "#8c6d46",
    "#17a2c4",
    "#7f9c1f",
    "#e8743b",
)


def plotly_text(text: str, *, longest: int | None = None) -> str:
    """Return ``text`` such that plotly shows exactly its characters, cut in the middle where it is too long.

    Example:
        >>> plotly_text("<b>R&D</b>")
        '&lt;b&gt;R&amp;D&lt;/b&gt;'
        >>> plotly_text("american pit bull terrier", longest=12)
        'americ…rrier'
    """
    text = printable(text)
    if longest is not None and len(text) > longest:
        # Cut in the middle: names of related classes often differ only at the end.
        tail = (longest - 1) // 2
        text = f"{text[: longest - 1 - tail]}…{text[-tail:]}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis_labels(names: Sequence[str], *, longest: int = 20) -> list[str]:
    """Return short labels, all different, because plotly merges equal categories of an axis.

    Example:
        >>> axis_labels(["cat", "cat", "dog"])
        ['cat', 'cat (1)', 'dog']
    """
    seen: set[str] = set()
    labels = []
    for index, name in enumerate(names):
        label = plotly_text(name, longest=longest)
        if label in seen:
            label = f"{label} ({index})"
        seen.add(label)
        labels.append(label)
    return labels


def empty_figure(height: int, **layout: Any) -> Figure:
    """Return a figure without traces and without a theme."""
    from classmargin._checks import require_extra

    graph_objects = require_extra("plotly.graph_objects", "report", "an HTML report")
    figure = graph_objects.Figure()
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 16, "r": 12, "t": 12, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
        **layout,
    )
    return figure


def titled_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis whose title keeps clear of its numbers."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False, **more}


def percent_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis of fractions that shows percent."""
    return titled_axis(title, tickformat=".0%", **more)
