"""Contents of the comparison's HTML page."""

from __future__ import annotations

from typing import Any

from classmargin.evaluation.comparison import Comparison, ComparisonSet
from classmargin.report import plots
from classmargin.report.audit_page import comparison_figure
from classmargin.report.comparison_view import as_set, change_table, pair_summary_table, summary_table
from classmargin.report.tables import printable


def comparison_page(comparison: Comparison | ComparisonSet, *, title: str) -> dict[str, Any]:
    """Return everything the template ``comparison.html.j2`` shows."""
    several = as_set(comparison)
    pairs = several.comparisons
    figures = {"changes": plots.changes_figure({pair.candidate_name: pair.deltas for pair in pairs})}
    figures |= {f"gains-{number}": comparison_figure(pair) for number, pair in enumerate(pairs, start=1)}
    parts = [_part(number, pair) for number, pair in enumerate(pairs, start=1)]
    return {
        "title": title,
        "verdict": printable(several.verdict),
        "facts": _facts(several),
        "summary": pair_summary_table(pairs[0]) if len(pairs) == 1 else summary_table(several),
        "baseline_name": several.names[0],
        "level": f"{100 * pairs[0].confidence:g}%",
        "models": parts,
        "notes": list(dict.fromkeys([*several.notes, *(note for pair in pairs for note in pair.notes)])),
        "figures": figures,
        "cells": None,
        "sections": [
            ("summary", "Summary"),
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


def _facts(several: ComparisonSet) -> str:
    pair = several.comparisons[0]
    models = f"{len(several.names)} models" if len(several.names) > 2 else "Two models"
    return (
        f"{models} on the same {pair.num_samples:,} samples of {len(pair.class_names):,} classes; "
        f"thirds by the rule “{pair.ranking}”; intervals at {100 * pair.confidence:g}%."
    )
