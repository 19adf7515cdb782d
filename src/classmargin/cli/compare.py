"""``classmargin compare``: two or more models on the same test set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from classmargin.cli import _shared as shared

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit


def compare(
    models: Annotated[list[str], Argument(metavar="A B [C …]")],
    *,
    out: shared.OutOption = None,
    output: shared.FormatOption = "table",
    class_names: shared.ClassNamesOption = None,
    num_classes: shared.NumClassesOption = None,
    top: shared.TopOption = 10,
    alpha: float = 0.05,
    confidence: float = 0.95,
    bootstrap: shared.BootstrapOption = 2000,
    seed: int = 0,
    samples: shared.SamplesOption = None,
    max_memory: shared.MaxMemoryOption = None,
) -> None:
    """Compare models on the same test set: who gained, who lost, and what is noise.

    Options:
        models: Predictions of the baseline, then of every candidate, on the same samples. Several runs (seeds) of one model:
            their files joined by commas.
        alpha: False discovery rate of classes called gained or lost.
        samples: Also write the samples that flipped, right to wrong and wrong to right (first run of each model).
    """
    from classmargin.evaluation.comparison import compare_many
    from classmargin.report import comparison_tables
    from classmargin.report.html_pages import write_comparison_html

    shared.check_html_path(out)
    shared.check_place("--samples", samples)
    if len(models) < 2:
        raise ValueError("compare needs at least two models, got one")
    runs = [_runs(words) for words in models]
    names = [
        f"{name} and {len(paths) - 1} more" if len(paths) > 1 else name
        for name, paths in zip(shared.model_names([paths[0] for paths in runs]), runs, strict=True)
    ]
    intervals: dict[str, Any] = {"confidence": confidence, "bootstrap": bootstrap, "seed": seed}
    audits: dict[str, list[Audit]] = {
        name: [shared.read(path, class_names).audit(num_classes=num_classes, **intervals) for path in paths]
        for name, paths in zip(names, runs, strict=True)
    }
    several = compare_many(audits, alpha=alpha, **intervals)
    if samples is not None:
        _write_flips(samples, audits)
    if out is not None:
        write_comparison_html(several, out)
        shared.announce(out)
    about = {"verdict": several.verdict, "names": several.names, "summary": several.summary}
    data = {**about, "comparisons": [one.to_dict() for one in several.comparisons], "notes": several.notes}
    tables = comparison_tables.report_tables(several, top)
    shared.show(output, verdict=several.verdict, tables=tables, notes=several.notes, data=data)


def _write_flips(path: Path, audits: dict[str, list[Audit]]) -> None:
    import pandas as pd

    from classmargin.evaluation.samples import flipped_samples, write_samples

    (_, (baseline, *_)), *candidates = audits.items()
    frames = {name: flipped_samples(baseline, candidate) for name, (candidate, *_) in candidates}
    shared.announce(write_samples(path, pd.concat(frames, names=["model"]).reset_index("model")), "samples")


def _runs(words: str) -> list[Path]:
    """Split ``a.npz,b.npz`` into the runs of one model; a file whose own name has a comma stays whole."""
    if Path(words).exists():
        return [Path(words)]
    paths = [Path(word) for word in words.split(",") if word]
    if not paths:
        raise ValueError(f"a model must be a file, or files joined by commas, got {words!r}")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"every run must be a file of its own, got one more than once in {words!r}")
    return paths
