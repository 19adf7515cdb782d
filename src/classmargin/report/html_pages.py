"""HTML pages: one self-contained file that opens offline, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from classmargin._atomic import atomic_path
from classmargin._printable import printable
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.evaluation.json_values import json_text
from classmargin.report.audit_page import audit_page
from classmargin.report.audit_words import RANKING_WORDS
from classmargin.report.comparison_tables import change_table, pairs_of, summary_table
from classmargin.report.figures import Figure, changes_figure, comparison_figure
from classmargin.report.tables import Table, format_value, is_missing

# A longer table shows its first rows until it is searched or asked for all: ten thousand rows take a browser many seconds.
ROWS_AT_ONCE = 300
_TEMPLATES = Path(__file__).parent / "templates"


def write_audit_html(
    audit: Audit,
    path: str | os.PathLike[str],
    baseline: Audit | None = None,
    *,
    comparison: Comparison | None = None,
    title: str = "Class audit",
    feature_map: bool = True,
    images: Any = None,
    texts: Sequence[str] | None = None,
    tables: Sequence[Table] = (),
) -> Path:
    """Write the audit as one HTML file and return where it is.

    Args:
        audit: What is shown.
        path: The file to write; its folder is created. It is replaced only when the new one is complete.
        baseline: Another model's audit on the same samples, shown beside.
        comparison: Comparison of the two, where the caller has it already.
        title: Words above the verdict and in the browser's tab.
        feature_map: Whether to place features by t-SNE (some ten seconds; needs features in the audit).
        images: Pictures of the samples: a folder, paths or an array, see :meth:`Audit.to_html`.
        texts: Texts of the samples ``[N]``.
        tables: Further tables, shown after the failing classes.
    """
    if comparison is None and baseline is not None:
        from classmargin.evaluation.comparison import compare

        comparison = compare(baseline, audit)
    content = audit_page(
        audit,
        title=title,
        comparison=comparison,
        baseline=baseline,
        with_map=feature_map,
        images=images,
        texts=texts,
        tables=tables,
    )
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
    environment.globals["rows_at_once"] = ROWS_AT_ONCE
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
        **{
            name: safe(_script_json(json_text(content[name], indent=None))) if content.get(name) else None
            for name in ("cells", "samples")
        },
        "plotly": safe(plotly.get_plotlyjs()),
        "version": __version__,
    }
    return str(environment.get_template(template).render({**content, **own_files, **payload}))


def _script_json(text: str) -> str:
    """Return JSON that cannot close the script element that holds it, whatever the class names are.

    Inside JSON the sign "<" only occurs in strings, where its escape means the same.
    """
    return text.replace("<", "\\u003c")


def sort_value(value: Any) -> str:
    """Return what the page sorts a number by: the number itself, empty where there is none."""
    if isinstance(value, tuple):  # an interval sorts by its lower end
        value = value[0]
    return "" if is_missing(value) else f"{float(value):.7g}"


def comparison_page(
    comparison: Comparison | ComparisonSet, *, title: str, tables: Sequence[Table] = ()
) -> dict[str, Any]:
    """Return everything the template ``comparison.html.j2`` shows."""
    pairs = pairs_of(comparison)
    figures = {"changes": changes_figure({pair.candidate_name: pair.deltas for pair in pairs})}
    figures |= {f"gains-{number}": comparison_figure(pair) for number, pair in enumerate(pairs, start=1)}
    parts = [_model_section(number, pair) for number, pair in enumerate(pairs, start=1)]
    return {
        "title": title,
        "verdict": printable(comparison.verdict),
        "facts": _comparison_facts(pairs),
        "summary": summary_table(comparison),
        "tables": list(tables),
        "baseline_name": pairs[0].baseline_name,
        "level": f"{100 * pairs[0].confidence:g}%",
        "models": parts,
        "notes": comparison.notes,
        "figures": figures,
        "cells": None,
        "sections": [
            ("summary", "Summary"),
            *((f"table-{number}", table.title) for number, table in enumerate(tables, start=1)),
            *((f"model-{part['id']}", part["title"]) for part in parts),
            ("notes", "How to read this"),
        ],
    }


def _model_section(number: int, pair: Comparison) -> dict[str, Any]:
    return {
        "id": number,
        "title": f"{printable(pair.candidate_name)} against {printable(pair.baseline_name)}",
        "verdict": printable(pair.verdict),
        "alpha": pair.alpha,
        "classes": change_table(pair),
    }


def _comparison_facts(pairs: Sequence[Comparison]) -> str:
    pair = pairs[0]
    models = f"{len(pairs) + 1} models" if len(pairs) > 1 else "Two models"
    return (
        f"{models} on the same {pair.num_samples:,} samples of {len(pair.class_names):,} classes; "
        f"{RANKING_WORDS[pair.ranking]}; intervals at {100 * pair.confidence:g}%."
    )


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
