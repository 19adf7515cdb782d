"""Reports as files: one self-contained HTML page that opens offline, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path
from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.report.audit_page import audit_page
from classmargin.report.comparison_page import comparison_page
from classmargin.report.tables import Table, format_value, is_missing, json_text

_TEMPLATES = Path(__file__).parent / "templates"


def write_audit_html(
    audit: Audit,
    path: str | os.PathLike[str],
    baseline: Audit | None = None,
    *,
    comparison: Comparison | None = None,
    title: str = "Class audit",
    feature_map: bool = True,
) -> Path:
    """Write the audit as one HTML file and return where it is.

    Args:
        audit: What is shown.
        path: The file to write; its folder is created. It is replaced only when the new one is complete.
        baseline: Another model's audit on the same samples, shown beside.
        comparison: Comparison of the two, where the caller has it already.
        title: Words above the verdict and in the browser's tab.
        feature_map: Whether to place features by t-SNE (some ten seconds; needs features in the audit).
    """
    if comparison is None and baseline is not None:
        from classmargin.evaluation.comparison import compare

        comparison = compare(baseline, audit)
    content = audit_page(audit, title=title, comparison=comparison, baseline=baseline, with_map=feature_map)
    return write_page(path, "audit.html.j2", content)


def write_comparison_html(
    comparison: Comparison | ComparisonSet,
    path: str | os.PathLike[str],
    *,
    title: str = "Comparison of classifiers",
    tables: Sequence[Table] = (),
) -> Path:
    """Write a comparison of two or more models as one HTML file and return where it is.

    Args:
        comparison: Two models, or several against one baseline.
        path: Where the page goes.
        title: Heading of the page.
        tables: Further tables to show below the summary.
    """
    return write_page(path, "comparison.html.j2", comparison_page(comparison, title=title, tables=tables))


def write_page(path: str | os.PathLike[str], template: str, content: Mapping[str, Any]) -> Path:
    """Fill a template of this package and write the page whole or not at all."""
    text = _render(template, content)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def _render(template: str, content: Mapping[str, Any]) -> str:
    from classmargin import __version__
    from classmargin._checks import require_extra

    jinja2 = require_extra("jinja2", "report", "an HTML report")
    safe = require_extra("markupsafe", "report", "an HTML report").Markup
    plotly = require_extra("plotly.offline", "report", "an HTML report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": format_value, "sort_value": sort_value}
    figures = content["figures"]
    own_files = {
        name: safe((_TEMPLATES / file).read_text("utf-8"))
        for name, file in (("css", "report.css"), ("script", "report.js"))
    }
    payload = {
        "figures": safe(
            _script_json(
                "{" + ",".join(f'"{key}":{figure.to_json()}' for key, figure in figures.items()) + "}"
            )
        ),
        "figure_ids": set(figures),
        "cells": safe(_script_json(json_text(content["cells"], indent=None))) if content["cells"] else None,
        "plotly": safe(plotly.get_plotlyjs()),
        "version": __version__,
    }
    return str(environment.get_template(template).render({**content, **own_files, **payload}))


def _script_json(text: str) -> str:
    """Return JSON that cannot end the script element it stands in, whatever a class is called.

    Inside JSON the sign "<" only occurs in strings, where its escape means the same.
    """
    return text.replace("<", "\\u003c")


def sort_value(value: Any) -> str:
    """Return what the page sorts a number by: the number itself, empty where there is none."""
    if isinstance(value, tuple):  # an interval sorts by its lower end
        value = value[0]
    return "" if is_missing(value) else f"{float(value):.7g}"
