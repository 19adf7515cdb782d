"""``classmargin audit``: which classes fail, how sure is that, and why."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from classmargin.cli import _shared
from classmargin.cli._shared import OutputFormat


class Ranking(str, Enum):
    """Which model and which samples decide the thirds of classes."""

    own = "own"
    reference = "reference"
    crossfit = "crossfit"


def audit(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help=_shared.PREDICTIONS_HELP, show_default=False)
    ],
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="OTHER", help="Predictions of another model on the same samples."),
    ] = None,
    out: _shared.OutOption = None,
    output: _shared.FormatOption = OutputFormat.table,
    class_names: _shared.ClassNamesOption = None,
    num_classes: _shared.NumClassesOption = None,
    top: _shared.TopOption = 10,
    ranking: Annotated[
        Ranking,
        typer.Option(
            "--ranking",
            help="Thirds ranked by the model itself (own), by the baseline (reference), "
            "or on the other half of the samples (crossfit).",
        ),
    ] = Ranking.own,
    confidence: _shared.ConfidenceOption = 0.95,
    bootstrap: _shared.BootstrapOption = 2000,
    seed: _shared.SeedOption = 0,
    mean_margin: Annotated[
        float, typer.Option("--mean-margin", help="Mean of the margins γ that MR² would give.")
    ] = 1.0,
    norm_order: Annotated[float, typer.Option("--norm-order", help="Order p of the norm in r².")] = 2.0,
    feature_map: Annotated[
        bool, typer.Option("--map/--no-map", help="Place features by t-SNE in the HTML report.")
    ] = True,
) -> None:
    """Find the classes that a classifier leaves behind, how sure that is, and why."""
    from classmargin.report import audit_view, comparison_view
    from classmargin.report.render import write_audit_html

    _shared.check_html_path(out)
    if ranking is Ranking.reference and baseline is None:
        raise ValueError("--ranking reference ranks the classes by another model: give it with --baseline")
    common = {"num_classes": num_classes, "confidence": confidence, "bootstrap": bootstrap, "seed": seed}
    common |= {"mean_margin": mean_margin, "norm_order": norm_order}
    other = None if baseline is None else _shared.audit_file(baseline, class_names, **common)
    reference = other if ranking is Ranking.reference else None
    result = _shared.audit_file(
        predictions, class_names, ranking=ranking.value, reference=reference, **common
    )
    comparison = None
    if other is not None and baseline is not None:
        from classmargin.evaluation.comparison import compare

        names = _shared.model_names([baseline, predictions])
        comparison = compare(
            other, result, names=(names[0], names[1]), confidence=confidence, bootstrap=bootstrap, seed=seed
        )
    if out is not None:
        title = f"Class audit of {predictions.name}"
        write_audit_html(result, out, other, comparison=comparison, title=title, feature_map=feature_map)
        _shared.said(out)
    tables = audit_view.report_tables(result, top)
    verdict = audit_view.audit_verdict(result)
    data = {"verdict": verdict, **result.to_dict()}
    notes = list(result.notes)
    if comparison is not None:
        tables += comparison_view.report_tables(comparison, top)
        data["comparison"] = comparison.to_dict()
        notes += comparison.notes
        verdict = f"{verdict} {comparison.verdict}"
    _shared.show(output, verdict=verdict, tables=tables, notes=notes, data=data)
