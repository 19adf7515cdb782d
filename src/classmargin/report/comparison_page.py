"""Contents of the comparison's HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from classmargin._printable import printable
from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.report import plots
from classmargin.report.audit_page import comparison_figure
from classmargin.report.comparison_view import change_table, pairs_of, summary_table
from classmargin.report.tables import Table


def comparison_page(
    comparison: Comparison | ComparisonSet, *, title: str, tables: Sequence[Table] = ()
) -> dict[str, Any]:
    """Return everything the template ``comparison.html.j2`` shows."""
    pairs = pairs_of(comparison)
    figures = {"changes": plots.changes_figure({pair.candidate_name: pair.deltas for pair in pairs})}
    figures |= {f"gains-{number}": comparison_figure(pair) for number, pair in enumerate(pairs, start=1)}
    parts = [_part(number, pair) for number, pair in enumerate(pairs, start=1)]
    return {
        "title": title,
        "verdict": printable(comparison.verdict),
        "facts": _facts(pairs),
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


def _part(number: int, pair: Comparison) -> dict[str, Any]:
    return {
        "id": number,
        "title": f"{printable(pair.candidate_name)} against {printable(pair.baseline_name)}",
        "verdict": printable(pair.verdict),
        "alpha": pair.alpha,
        "classes": change_table(pair),
    }


def _facts(pairs: Sequence[Comparison]) -> str:
    pair = pairs[0]
    models = f"{len(pairs) + 1} models" if len(pairs) > 1 else "Two models"
    return (
        f"{models} on the same {pair.num_samples:,} samples of {len(pair.class_names):,} classes; "
        f"thirds by the rule “{pair.ranking}”; intervals at {100 * pair.confidence:g}%."
    )
