"""HTML pages: what they show, and one self-contained file that opens offline, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from classmargin import __version__
from classmargin._atomic import atomic_path
from classmargin._checks import require_extra
from classmargin._printable import printable
from classmargin._progress import progress
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.class_metrics import TIERS
from classmargin.evaluation.class_reasons import STEPS
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare
from classmargin.evaluation.input_checks import IntArray
from classmargin.evaluation.json_values import json_text
from classmargin.report import audit_tables
from classmargin.report import figures as draw
from classmargin.report.audit_tables import RANKING_WORDS
from classmargin.report.comparison_tables import change_table, pairs_of, summary_table
from classmargin.report.confusion_matrix import ConfusionView, confusion_view
from classmargin.report.sample_view import sample_view
from classmargin.report.tables import Table, format_value, is_missing

# A longer table shows its first rows until it is searched or asked for all: ten thousand rows take a browser many seconds.
ROWS_AT_ONCE = 300
MOST_ERRORS = 50
MOST_FAILING = 25
MARK = "▾ "
MOST_HIGHLIGHTED = 8
FEWEST_POINTS_IN_COLOUR = 4
THIRDS_AND_MORE = (*TIERS, "worst", "overall")
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

    A ``baseline`` on the same samples is shown beside, with its ``comparison`` (made here unless given). ``feature_map`` places the
    features by t-SNE, which takes some ten seconds; ``tables`` come after the failing classes.
    """
    if comparison is None and baseline is not None:
        comparison = compare(baseline, audit)
    hardest = _hardest(audit)
    samples = sample_view(audit, images=images, texts=texts) if len(audit.samples) else None
    figures, confusion = _draw(audit, comparison, baseline)
    sample = audit.feature_sample if feature_map else None
    if sample is not None:  # shows a progress bar of its own
        placed = draw.feature_map(sample.features, sample.labels, hardest)
        if placed is not None:
            correct = np.asarray(sample.correct, dtype=bool)[placed.sample]
            figures["map"] = draw.feature_map_figure(placed, correct, _marked_names(audit), hardest)
    if comparison is not None:
        figures["gains"] = draw.gains_figure(comparison.by_class)
    # The reasons that lead to a next step somewhere, in the order of the list of steps.
    leading = set(audit.by_class["reason"][audit.by_class["next_step"] != ""])
    steps = {reason: step for reason, step in STEPS.items() if reason in leading}
    correlations, geometry = audit_tables.correlation_table(audit), audit_tables.geometry_table(audit)
    sections = {
        "failing": "Lagging classes" if audit.by_class["lags"].any() else "Worst classes",
        "samples": "Samples" if samples else "",
        **{f"table-{place}": table.title for place, table in enumerate(tables, start=1)},
        "comparison": "" if comparison is None else "Against the baseline",
        "thirds": "Thirds",
        "accuracy": "Every class",
        "classes": "All numbers",
        "spread": "Spread" if "spread" in figures or correlations.rows else "",
        "confusion": "Confusion",
        "map": "Map" if "map" in figures else "",
        "disparity": "Disparity",
        "geometry": "Geometry" if geometry.rows else "",
        "bounds": "" if audit.bounds is None else "Bounds",
        "steps": "What to do" if steps else "",
        "notes": "How to read this",
    }
    absent = int((audit.by_class["n"] == 0).sum())
    without = f" ({absent} without samples)" if absent else ""
    level = f"{100 * audit.confidence:g}%"
    content = {
        "title": title,
        "verdict": printable(audit.verdict),
        "facts": (
            f"{audit.num_samples:,} samples, {audit.num_classes:,} classes{without}; {RANKING_WORDS[audit.ranking]}; "
            f"intervals at {level}."
        ),
        "cards": [
            {"key": row["key"], "label": row["metric"], "value": row["value"], "range": row["interval"]}
            for row in audit_tables.headline_table(audit).rows
        ],
        "number": {name: k for k, name in enumerate(audit.class_names)},
        "sample_words": samples["words"] if samples else "",
        "errors": audit_tables.confusion_table(audit, MOST_ERRORS),
        "some_in_colour": len(hardest) < audit.num_classes - absent,
        "sections": [(key, words) for key, words in sections.items() if words],
        "level": level,
        "failing": audit_tables.failing_table(audit, MOST_FAILING),
        "samples": samples,
        "tables": list(tables),
        "comparison": comparison,
        "summary": None if comparison is None else summary_table(comparison),
        "correlations": correlations,
        "tiers": audit_tables.tier_table(audit),
        "classes": audit_tables.class_table(audit),
        "disparity": audit_tables.disparity_table(audit),
        "bounds": audit_tables.bound_tables(audit),
        "geometry": geometry,
        "steps": steps,
        "audit": audit,
        "figures": figures,
        "confusion": confusion,
        "cells": confusion.cells,
    }
    return write_page(path, "audit.html.j2", content)


def _draw(
    audit: Audit, comparison: Comparison | None, baseline: Audit | None
) -> tuple[dict[str, draw.Figure], ConfusionView]:
    """Make all figures but the map; with a thousand classes that takes seconds."""
    frame, names = audit.by_class, _marked_names(audit)
    shown = frame
    if audit.ranking == "corrected":
        shown = frame.assign(accuracy=frame["estimate"], low=frame["estimate_low"], high=frame["estimate_high"])
    models = {"this model": audit}
    if comparison is not None:
        models = {comparison.candidate_name: audit}
        if baseline is not None:
            models = {comparison.baseline_name: baseline, **models}
    thirds = {
        name: {group: (getattr(model, group), *model.interval(group)) for group in THIRDS_AND_MORE}
        for name, model in models.items()
    }
    makers: dict[str, Callable[[], Any]] = {
        "thirds": lambda: draw.thirds_figure(thirds),
        "accuracy": lambda: draw.class_accuracy_figure(names, shown),
        "confusion": lambda: confusion_view(audit.confusion, names),
    }
    if frame["spread"].notna().any():
        makers["spread"] = lambda: draw.class_scatter_figure(names, frame, "spread", "class spread ‖ŝ‖²")
    made = {name: make() for name, make in progress(makers.items(), "drawing figures", total=len(makers))}
    confusion: ConfusionView = made.pop("confusion")
    return {**made, **confusion.figures}, confusion


def _marked_names(audit: Audit) -> list[str]:
    """Return the class names with a mark before those that lag, for the figures."""
    lags = audit.by_class["lags"].tolist()
    return [f"{MARK}{name}" if late else name for name, late in zip(audit.class_names, lags, strict=True)]


def _hardest(audit: Audit) -> IntArray:
    """Return the classes that the map shows in colour: all of ten or fewer, otherwise the hardest of which it holds some points."""
    if audit.feature_sample is None:
        return np.empty(0, dtype=np.int64)
    points = np.bincount(audit.feature_sample.labels, minlength=audit.num_classes)
    order = np.argsort(audit.by_class["accuracy"].to_numpy(dtype=np.float64), kind="stable")
    seen = order[points[order] >= min(FEWEST_POINTS_IN_COLOUR, points.max())]
    return np.asarray(seen if len(seen) <= 10 else seen[:MOST_HIGHLIGHTED], dtype=np.int64)


def write_comparison_html(
    comparison: Comparison | ComparisonSet,
    path: str | os.PathLike[str],
    *,
    title: str = "Comparison of classifiers",
    tables: Sequence[Table] = (),
) -> Path:
    """Write a comparison of two or more models as one HTML file, ``tables`` below the summary, and return where it is."""
    pairs = pairs_of(comparison)
    first = pairs[0]
    level = f"{100 * first.confidence:g}%"
    models = f"{len(pairs) + 1} models" if len(pairs) > 1 else "Two models"
    parts = []
    for number, pair in enumerate(pairs, start=1):
        words = f"{printable(pair.candidate_name)} against {printable(pair.baseline_name)}"
        shown = {"verdict": printable(pair.verdict), "alpha": pair.alpha, "classes": change_table(pair)}
        parts.append({"id": number, "title": words, **shown})
    gains = {f"gains-{number}": draw.gains_figure(pair.by_class) for number, pair in enumerate(pairs, start=1)}
    changes = draw.changes_figure({pair.candidate_name: pair.deltas for pair in pairs})
    content: dict[str, Any] = {
        "title": title,
        "verdict": printable(comparison.verdict),
        "facts": (
            f"{models} on the same {first.num_samples:,} samples of {len(first.class_names):,} classes; "
            f"{RANKING_WORDS[first.ranking]}; intervals at {level}."
        ),
        "sections": [
            ("summary", "Summary"),
            *((f"table-{number}", table.title) for number, table in enumerate(tables, start=1)),
            *((f"model-{part['id']}", part["title"]) for part in parts),
            ("notes", "How to read this"),
        ],
        "summary": summary_table(comparison),
        "tables": list(tables),
        "models": parts,
        "notes": comparison.notes,
        "baseline_name": first.baseline_name,
        "level": level,
        "figures": {"changes": changes, **gains},
    }
    return write_page(path, "comparison.html.j2", content)


def write_tables_html(
    path: str | os.PathLike[str],
    *,
    title: str,
    verdict: str,
    tables: Sequence[Table],
    figures: Mapping[str, tuple[draw.Figure, str, str]] | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write one self-contained HTML file and return where it is; a figure comes with words for those who cannot see it, and a caption."""
    shown = dict(figures or {})
    sections = [(f"table-{number}", table.title) for number, table in enumerate(tables, start=1)]
    content = {
        "title": printable(title),
        "verdict": printable(verdict),
        "tables": list(tables),
        "drawn": [(name, label, caption) for name, (_, label, caption) in shown.items()],
        "figures": {name: figure for name, (figure, _, _) in shown.items()},
        "notes": [printable(note) for note in notes],
        "sections": [*sections, *([("figures", "Figures")] if shown else []), ("notes", "How to read this")],
    }
    return write_page(path, "tables.html.j2", content)


def write_page(path: str | os.PathLike[str], template: str, content: Mapping[str, Any]) -> Path:
    """Fill a template of this package and write the page whole or not at all."""
    jinja2 = require_extra("jinja2", "report", "an HTML report")
    markupsafe = require_extra("markupsafe", "report", "an HTML report")
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
    figures = ",".join(f'"{key}":{figure.to_json()}' for key, figure in content["figures"].items())
    data = {name: json_text(content[name], indent=None) for name in ("cells", "samples") if content.get(name)}
    safe = {
        # Inside JSON the sign "<" only occurs in strings, where its escape means the same: no class name can close the script element.
        **{name: text.replace("<", "\\u003c") for name, text in (("figures", f"{{{figures}}}"), *data.items())},
        "css": (_TEMPLATES / "report.css").read_text("utf-8"),
        "script": (_TEMPLATES / "report.js").read_text("utf-8"),
        "plotly": plotly.get_plotlyjs(),
    }
    more = {"samples": None, "cells": None, "figure_ids": set(content["figures"]), "version": __version__}
    payload = {name: markupsafe.Markup(text) for name, text in safe.items()}
    text = environment.get_template(template).render({**content, **more, **payload})
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def sort_value(value: Any) -> str:
    """Return what the page sorts a number by: the number itself, empty where there is none."""
    if isinstance(value, tuple):  # an interval sorts by its lower end
        value = value[0]
    return "" if is_missing(value) else f"{float(value):.7g}"
