"""``classmargin compare``: two or more models on the same test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classmargin.cli import _shared
from classmargin.cli._shared import OutputFormat

if TYPE_CHECKING:
    from classmargin.evaluation.audit_result import Audit


def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C …]",
            help="Predictions of the baseline, then of every candidate, on the same samples. "
            "Several runs (seeds) of one model: their files joined by commas.",
            show_default=False,
        ),
    ],
    out: _shared.OutOption = None,
    output: _shared.FormatOption = OutputFormat.table,
    class_names: _shared.ClassNamesOption = None,
    num_classes: _shared.NumClassesOption = None,
    top: _shared.TopOption = 10,
    alpha: Annotated[
        float, typer.Option("--alpha", help="False discovery rate of classes called gained or lost.")
    ] = 0.05,
    confidence: _shared.ConfidenceOption = 0.95,
    bootstrap: _shared.BootstrapOption = 2000,
    seed: _shared.SeedOption = 0,
    samples: Annotated[
        Path | None,
        typer.Option(
            "--samples",
            metavar="FILE.csv",
            help="Also write the samples that flipped, right to wrong and wrong to right (first run of each model).",
            show_default=False,
        ),
    ] = None,
    max_memory: _shared.MaxMemoryOption = None,
) -> None:
    """Compare models on the same test set: who gained, who lost, and what is noise."""
    from classmargin.evaluation.comparison import compare_many
    from classmargin.report import comparison_tables
    from classmargin.report.html_pages import write_comparison_html

    _shared.check_html_path(out)
    _shared.check_place("--samples", samples)
    if len(models) < 2:
        raise ValueError("compare needs at least two models, got one")
    runs = [_runs(words) for words in models]
    names = _group_names(runs)
    options: dict[str, Any] = {"confidence": confidence, "bootstrap": bootstrap, "seed": seed}
    audits: dict[str, Audit | list[Audit]] = {
        name: [_shared.audit_file(path, class_names, num_classes=num_classes, **options) for path in paths]
        for name, paths in zip(names, runs, strict=True)
    }
    several = compare_many(audits, alpha=alpha, **options)
    if samples is not None:
        _write_flips(samples, audits)
    if out is not None:
        write_comparison_html(several, out)
        _shared.announce(out)
    _shared.show(
        output,
        verdict=several.verdict,
        tables=comparison_tables.report_tables(several, top),
        notes=several.notes,
        data=_data(several),
    )


def _write_flips(path: Path, audits: Mapping[str, Audit | list[Audit]]) -> None:
    import pandas as pd

    from classmargin.evaluation.samples import flipped_samples, write_samples

    first = {name: runs[0] if isinstance(runs, list) else runs for name, runs in audits.items()}
    names = list(first)
    frames = []
    for name in names[1:]:
        frame = flipped_samples(first[names[0]], first[name])
        frame.insert(0, "model", name)
        frames.append(frame)
    _shared.announce(write_samples(path, pd.concat(frames)), "samples")


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


def _group_names(runs: Sequence[Sequence[Path]]) -> list[str]:
    """Name each model after its first run, and say how many more it has."""
    first = _shared.model_names([paths[0] for paths in runs])
    more = [f" and {len(paths) - 1} more" if len(paths) > 1 else "" for paths in runs]
    return [name + rest for name, rest in zip(first, more, strict=True)]


def _data(several: Any) -> dict[str, Any]:
    return {
        "verdict": several.verdict,
        "names": several.names,
        "summary": several.summary.to_dict("records"),
        "comparisons": [comparison.to_dict() for comparison in several.comparisons],
        "notes": several.notes,
    }
