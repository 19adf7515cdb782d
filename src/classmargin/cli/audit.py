"""``classmargin audit``: which classes fail, how sure is that, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from classmargin.cli import _shared as shared

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit
    from classmargin.evaluation.prediction_files import Predictions
    from classmargin.report.sample_view import Pictures
    from classmargin.report.tables import Table

# Pictures that are measured for slices; of more it would take many minutes.
MOST_MEASURED = 50_000
# Which model and which samples decide the thirds of classes.
Ranking = Literal["corrected", "own", "reference", "crossfit"]


def audit(
    predictions: Path,
    *,
    baseline: Annotated[Path | None, Option(metavar="OTHER")] = None,
    out: shared.OutOption = None,
    output: shared.FormatOption = "table",
    class_names: shared.ClassNamesOption = None,
    num_classes: shared.NumClassesOption = None,
    top: shared.TopOption = 10,
    ranking: Ranking = "corrected",
    confidence: float = 0.95,
    bootstrap: shared.BootstrapOption = 2000,
    seed: int = 0,
    costs: Annotated[Path | None, Option(metavar="COSTS.csv")] = None,
    mean_margin: float = 1.0,
    norm_order: float = 2.0,
    feature_map: Annotated[bool, Option("--map/--no-map")] = True,
    train: Annotated[Path | None, Option(metavar="PREDICTIONS")] = None,
    samples: shared.SamplesOption = None,
    images: Annotated[Path | None, Option(metavar="FOLDER")] = None,
    texts: Annotated[Path | None, Option(metavar="FILE")] = None,
    metadata: Annotated[Path | None, Option(metavar="FILE.csv")] = None,
    groups: Annotated[Path | None, Option(metavar="FILE.csv")] = None,
    full: bool = False,
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Find the classes that a classifier leaves behind: which samples, how sure that is, why, and what to do next.

    Options:
        baseline: Predictions of another model on the same samples.
        ranking: Thirds of true accuracies, without the noise of the test set (corrected), or of observed ones: ranked by the
            model itself (own, as in the paper), by the baseline (reference), or on the other half of the samples (crossfit).
        costs: Cost of taking a class (row) for another (column): names of the classes in the first row and column.
        mean_margin: Mean of the margins γ that MR² would give.
        norm_order: Order p of the norm in r².
        feature_map: Place features by t-SNE in the HTML report.
        train: Predictions of the same model on its training samples: tells whether a class is not fitted or does not generalise.
        samples: Also write which samples: errors, doubted labels and typical ones of every class.
        images: Show pictures in the report: sample_id (or the column image_path) is a path in this folder.
        texts: Show texts in the report: one line per sample, a JSON list, or a .csv with sample_id and text.
        metadata: Properties of the samples (a column sample_id, then any others): finds slices where classes fail.
        groups: Super-classes: a table with the columns class and group.
        full: Print all tables, not only headlines and failing classes.
    """
    from classmargin.evaluation.comparison import compare
    from classmargin.evaluation.prediction_files import read_costs
    from classmargin.evaluation.samples import write_samples
    from classmargin.report import audit_tables, comparison_tables
    from classmargin.report.html_pages import write_audit_html

    shared.check_html_path(out)
    shared.check_place("--samples", samples)
    if ranking == "reference" and baseline is None:
        raise ValueError("--ranking reference ranks the classes by another model: give it with --baseline")
    intervals: dict[str, Any] = {"confidence": confidence, "bootstrap": bootstrap, "seed": seed}
    common = {"num_classes": num_classes, "mean_margin": mean_margin, "norm_order": norm_order, **intervals}
    other = None if baseline is None else shared.read(baseline, class_names).audit(**common)
    trained = None if train is None else shared.read(train, class_names).audit(**{**common, "bootstrap": 0})
    read = shared.read(predictions, class_names)
    if costs is not None:
        common["costs"] = read_costs(costs, read.class_names)
    reference = other if ranking == "reference" else None
    result = read.audit(ranking=ranking, reference=reference, train=trained, **common)
    faces = _faces(read, result, images, texts)
    slices = _slices(result, metadata, groups, faces["images"] if images is not None else None)
    comparison = None
    if other is not None and baseline is not None:
        old, new = shared.model_names([baseline, predictions])
        comparison = compare(other, result, names=(old, new), **intervals)
    if samples is not None:
        shared.announce(write_samples(samples, result.samples), "samples")
    if out is not None:
        more = {"title": f"Class audit of {predictions.name}", "feature_map": feature_map, "tables": slices, **faces}
        write_audit_html(result, out, other, comparison=comparison, **more)
        shared.announce(out)
    tables = [*audit_tables.report_tables(result, top, full=full, narrow=output == "table"), *slices]
    verdict, notes = result.verdict, list(result.notes)
    data = {"verdict": verdict, **result.to_dict()}
    if comparison is not None:
        tables += comparison_tables.report_tables(comparison, top)
        data["comparison"] = comparison.to_dict()
        notes += comparison.notes
        verdict = f"{verdict} {comparison.verdict}"
    if slices:
        data["slices"] = [dict(row) for table in slices for row in table.rows]
    shared.show(output, verdict=verdict, tables=tables, notes=notes, data=data)


def _faces(read: Predictions, result: Audit, images: Path | None, texts: Path | None) -> dict[str, Any]:
    """Return what shows the samples in the page: pictures and texts, from options or from the file."""
    from classmargin.evaluation.prediction_files import read_texts
    from classmargin.report.sample_view import Pictures

    words = read.text if texts is None else read_texts(texts, result)
    # Paths of a file from elsewhere are never opened by themselves: --images says where pictures may be read.
    pictures: Any
    if images is None:
        pictures = read.images
    elif read.image_path is not None and images.is_dir():
        pictures = Pictures(read.image_path, result).inside(images)
    else:
        pictures = Pictures(images, result)
    return {"images": pictures, "texts": words}


def _slices(result: Audit, metadata: Path | None, groups: Path | None, pictures: Pictures | None) -> list[Table]:
    """Return what is asked for: super-classes, slices of the metadata, slices of properties of the pictures."""
    import pandas as pd

    from classmargin.evaluation.prediction_files import read_groups, read_sample_table
    from classmargin.evaluation.samples import find_slices, group_accuracies
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
