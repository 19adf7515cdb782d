"""``classmargin audit``: which classes fail, how sure is that, and why."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classmargin.cli import _shared
from classmargin.cli._shared import OutputFormat

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.report.sample_view import Pictures
    from classmargin.report.tables import Table

# Pictures that are measured for slices; of more it would take many minutes.
MOST_MEASURED = 50_000


class Ranking(str, Enum):
    """Which model and which samples decide the thirds of classes."""

    corrected = "corrected"
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
            help="Thirds of true accuracies, without the noise of the test set (corrected), or of observed ones: ranked by the model "
            "itself (own, as in the paper), by the baseline (reference), or on the other half of the samples (crossfit).",
        ),
    ] = Ranking.corrected,
    confidence: _shared.ConfidenceOption = 0.95,
    bootstrap: _shared.BootstrapOption = 2000,
    seed: _shared.SeedOption = 0,
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            metavar="COSTS.csv",
            help="Cost of taking a class (row) for another (column): names of the classes in the first row and column.",
            show_default=False,
        ),
    ] = None,
    mean_margin: Annotated[
        float, typer.Option("--mean-margin", help="Mean of the margins γ that MR² would give.")
    ] = 1.0,
    norm_order: Annotated[float, typer.Option("--norm-order", help="Order p of the norm in r².")] = 2.0,
    feature_map: Annotated[
        bool, typer.Option("--map/--no-map", help="Place features by t-SNE in the HTML report.")
    ] = True,
    train: Annotated[
        Path | None,
        typer.Option(
            "--train",
            metavar="PREDICTIONS",
            help="Predictions of the same model on its training samples: tells whether a class is not fitted or does not generalise.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            "--samples",
            metavar="FILE.csv",
            help="Also write which samples: errors, doubted labels and typical ones of every class.",
            show_default=False,
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="FOLDER",
            help="Show pictures in the report: sample_id (or the column image_path) is a path in this folder.",
            show_default=False,
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            "--texts",
            metavar="FILE",
            help="Show texts in the report: one line per sample, a JSON list, or a .csv with sample_id and text.",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(
            "--metadata",
            metavar="FILE.csv",
            help="Properties of the samples (a column sample_id, then any others): finds slices where classes fail.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            metavar="FILE.csv",
            help="Super-classes: a table with the columns class and group.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print all tables, not only headlines and failing classes.")
    ] = False,
    max_memory: _shared.MaxMemoryOption = None,
) -> None:
    """Find the classes that a classifier leaves behind: which samples, how sure that is, why, and what to do next."""
    from classmargin.report import audit_tables, comparison_tables

    _shared.check_html_path(out)
    _shared.check_place("--samples", samples)
    if ranking is Ranking.reference and baseline is None:
        raise ValueError("--ranking reference ranks the classes by another model: give it with --baseline")
    common: dict[str, Any] = {
        "num_classes": num_classes,
        "confidence": confidence,
        "bootstrap": bootstrap,
        "seed": seed,
    }
    common |= {"mean_margin": mean_margin, "norm_order": norm_order}
    other = None if baseline is None else _shared.audit_file(baseline, class_names, **common)
    trained = None if train is None else _shared.audit_file(train, class_names, **{**common, "bootstrap": 0})
    reference = other if ranking is Ranking.reference else None
    read = _shared.read(predictions, class_names)
    if costs is not None:
        from classmargin.evaluation.prediction_files import read_costs

        common["costs"] = read_costs(costs, read.class_names)
    result = _shared.audit_read(
        read, class_names, ranking=ranking.value, reference=reference, train=trained, **common
    )
    faces = _faces(read, result, images, texts)
    slices = _slices(result, metadata, groups, faces["images"] if images is not None else None)
    comparison = None
    if other is not None and baseline is not None:
        from classmargin.evaluation.comparison import compare

        names = _shared.model_names([baseline, predictions])
        comparison = compare(
            other, result, names=(names[0], names[1]), confidence=confidence, bootstrap=bootstrap, seed=seed
        )
    if samples is not None:
        from classmargin.evaluation.samples import write_samples

        _shared.announce(write_samples(samples, result.samples), "samples")
    if out is not None:
        from classmargin.report.html_pages import write_audit_html

        write_audit_html(
            result,
            out,
            other,
            comparison=comparison,
            title=f"Class audit of {predictions.name}",
            feature_map=feature_map,
            tables=slices,
            **faces,
        )
        _shared.announce(out)
    narrow = output is OutputFormat.table
    tables = [*audit_tables.report_tables(result, top, full=full, narrow=narrow), *slices]
    verdict = result.verdict
    data = {"verdict": verdict, **result.to_dict()}
    notes = list(result.notes)
    if comparison is not None:
        tables += comparison_tables.report_tables(comparison, top)
        data["comparison"] = comparison.to_dict()
        notes += comparison.notes
        verdict = f"{verdict} {comparison.verdict}"
    if slices:
        data["slices"] = [dict(row) for table in slices for row in table.rows]
    _shared.show(output, verdict=verdict, tables=tables, notes=notes, data=data)


def _faces(read: Predictions, result: Audit, images: Path | None, texts: Path | None) -> dict[str, Any]:
    """Return what shows the samples in the page: pictures and texts, from options or from the file."""
    from classmargin.evaluation.prediction_files import read_texts
    from classmargin.report.sample_view import Pictures

    words = read.text if texts is None else read_texts(texts, result)
    if images is None:
        # Paths of a file from elsewhere are never opened by themselves: --images says where pictures may be read.
        return {"images": read.images, "texts": words}
    if read.image_path is not None and images.is_dir():
        return {"images": Pictures(read.image_path, result).inside(images), "texts": words}
    return {"images": Pictures(images, result), "texts": words}


def _slices(
    result: Audit, metadata: Path | None, groups: Path | None, pictures: Pictures | None
) -> list[Table]:
    """Return what is asked for: super-classes, slices of the metadata, slices of properties of the pictures."""
    if metadata is None and groups is None and pictures is None:
        return []
    import pandas as pd

    from classmargin.evaluation.prediction_files import read_groups, read_sample_table
    from classmargin.evaluation.slices import find_slices, group_accuracies
    from classmargin.report.audit_tables import group_table, slice_table

    tables = []
    if groups is not None:
        tables.append(group_table(group_accuracies(result, read_groups(groups, result))))
    properties = [] if metadata is None else [read_sample_table(metadata, result)]
    if pictures is not None and result.num_samples <= MOST_MEASURED:
        properties.append(pd.DataFrame(pictures.properties(result.num_samples)))
    if properties:
        tables.append(slice_table(find_slices(result, pd.concat(properties, axis=1))))
    return tables
