"""Several methods, several seeds, one data set: train what is missing and say who is better.

::

    DIR/runs/METHOD-seedN-HASH/     one run each, named by what it computes
        question.json  comparison.json  table.md  table.tex  report.html

The accuracies in the table are means over seeds; the thirds of each run are ranked by its own accuracies, as in
the paper. Changes against the first method are paired on the test samples, with seeds as a second level of
resampling and cross-fitted thirds, because ranking and measuring on the same samples flatters every second
model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import ComparisonSet, compare_many
from classmargin.evaluation.headlines import (
    HEADLINES,
    TierRule,
    observed_headlines,
    random_run_weights,
    resampled_headlines,
)
from classmargin.evaluation.intervals import centred_interval
from classmargin.evaluation.outcomes import outcome_table
from classmargin.evaluation.pairing import paired_correctness
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.methods import list_methods, method_info
from classmargin.recipes.out_folder import Question, claim_folder
from classmargin.recipes.run_pool import PlannedRun, run_all
from classmargin.recipes.session import effective
from classmargin.training.config import RunConfig, identity
from classmargin.training.config_reader import replace_machine, with_values
from classmargin.training.run_folder import RunFolder, write_json, write_text

RESULT_FILE = "comparison.json"
SHOWN = ("overall", "easy", "medium", "hard", "worst")


@dataclass(frozen=True)
class MethodResult:
    """What several runs of one method came to.

    Attributes:
        name: Registry name.
        title: Name in tables.
        seeds: Number of runs.
        values: ``{"hard": (value, low, high), ...}`` of the mean over seeds.
    """

    name: str
    title: str
    seeds: int
    values: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True)
class MethodComparison:
    """All methods and the paired comparison with the first.

    Attributes:
        results: One a method, in the order asked for.
        paired: Changes against the first method; None if there is only one.
        failed: Errors of runs that did not end, by title.
    """

    results: tuple[MethodResult, ...]
    paired: ComparisonSet | None
    failed: Mapping[str, str]


def plan_runs(
    config: RunConfig,
    methods: Sequence[str],
    seeds: int,
    folder: str | Path,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, list[PlannedRun]]:
    """Return the runs of every method.

    Args:
        config: What all runs share.
        methods: Registry names.
        seeds: Runs of each method, with seeds 0, 1, ….
        folder: Of the comparison.
        options: Hyper-parameters of single methods, by name.

    Raises:
        ValueError: Unknown method or hyper-parameter, or a method given twice.
    """
    if len(set(methods)) != len(methods):
        raise ValueError(f"methods must be different, got {', '.join(methods)}")
    return {
        name: _runs_of(config, name, seeds, Path(folder), (options or {}).get(name, {})) for name in methods
    }


def claim_comparison_folder(folder: Path, plan: Mapping[str, Sequence[PlannedRun]]) -> None:
    """Make the folder of a comparison, or check that it holds one with the same settings.

    Methods and seeds may be added and left out.

    Raises:
        ValueError: As :func:`~classmargin.recipes.out_folder.claim_folder`.
    """
    question = Question("compare-methods", {}, {name: runs[0].config for name, runs in plan.items()})
    every = [run for runs in plan.values() for run in runs]
    claim_folder(folder, question, every, results=(RESULT_FILE,))


def _runs_of(
    config: RunConfig, method: str, seeds: int, folder: Path, options: Mapping[str, Any]
) -> list[PlannedRun]:
    runs = []
    for seed in range(seeds):
        own = with_values(config, {"method": {"name": method, **options}, "loop": {"seed": seed}})
        own = effective(replace_machine(own, threads=1, devices=1, report=False))
        name = f"{method.replace('+', '-')}-seed{seed}-{identity(own)}"
        runs.append(PlannedRun(f"{method} seed {seed}", own, RunFolder(folder / "runs" / name)))
    return runs


def method_names(words: str) -> list[str]:
    """Return the methods of a comma-separated list; ``all`` is every registered one.

    Example:
        >>> method_names("erm, mr2")
        ['erm', 'mr2']
    """
    if words.strip() == "all":
        return [info.name for info in list_methods()]
    return [word.strip() for word in words.split(",") if word.strip()]


def compare_methods(
    plan: Mapping[str, Sequence[PlannedRun]], *, jobs: int = 1, show: bool | None = None
) -> MethodComparison:
    """Train what is missing and compare what is finished.

    Args:
        plan: From :func:`plan_runs`.
        jobs: Processes side by side.
        show: Force the progress bars on or off.

    Raises:
        ValueError: No run of the first method could be finished.
    """
    # Seed by seed: an early interruption leaves complete pairs, not all seeds of one method.
    longest = max(len(runs) for runs in plan.values())
    order = [runs[seed] for seed in range(longest) for runs in plan.values() if seed < len(runs)]
    failed = run_all(order, jobs=jobs, show=show)
    audits = {name: read_audits(runs) for name, runs in plan.items()}
    audits = {name: found for name, found in audits.items() if found}
    first = next(iter(plan))
    if first not in audits:
        raise ValueError(f"no run of {first} was finished: {'; '.join(failed.values())}")
    results = tuple(summarise(name, found) for name, found in audits.items())
    paired = None
    if len(audits) > 1:
        paired = compare_many({method_info(name).title: found for name, found in audits.items()})
    return MethodComparison(results, paired, failed)


def read_audits(runs: Sequence[PlannedRun]) -> list[Audit]:
    """Return a lean audit of each finished run: a comparison only asks who is right on which sample."""
    audits = []
    for run in runs:
        if run.folder.done:
            arrays = read_predictions(run.folder.predictions_file)
            assert arrays.logits is not None, "run folders hold logits"
            lean = {"class_names": arrays.class_names, "sample_id": arrays.sample_id, "bootstrap": 100}
            audits.append(_audit(arrays.labels, predictions=arrays.logits.argmax(axis=1), **lean))
    return audits


def _audit(labels: Any, **options: Any) -> Audit:
    from classmargin.evaluation.audit import audit

    return audit(labels, **options)


def summarise(
    name: str, audits: Sequence[Audit], *, confidence: float = 0.95, bootstrap: int = 2000, seed: int = 0
) -> MethodResult:
    """Return the headline numbers, averaged over runs, with intervals over samples and seeds.

    Every run is measured by its own thirds, as in the paper; then runs are averaged.
    """
    labels, correct = paired_correctness(audits)
    table = outcome_table(labels, correct, audits[0].num_classes)
    apart, rule, rng = (1,) * len(audits), TierRule("own"), np.random.default_rng(seed)
    values = observed_headlines(table, apart, rule, rng).mean(axis=0)
    copies = resampled_headlines(table, apart, rule, bootstrap, rng, resample_runs=False)
    weights = random_run_weights((len(audits),), bootstrap, rng)[:, :, 0]
    draws = np.einsum("brm,br->bm", copies, weights)
    numbers = {}
    for column, metric in enumerate(HEADLINES):
        value, proportion = float(values[column]), metric != "gap"
        low, high = centred_interval(value, draws[:, column], confidence, proportion=proportion)
        numbers[metric] = (value, float(low), float(high))
    return MethodResult(name, method_info(name).title, len(audits), numbers)


def to_dict(comparison: MethodComparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    paired = comparison.paired
    return {
        "methods": [
            {"name": r.name, "title": r.title, "seeds": r.seeds, "values": dict(r.values)}
            for r in comparison.results
        ],
        "verdict": paired.verdict if paired else None,
        "comparisons": [pair.to_dict() for pair in paired.comparisons] if paired else [],
        "failed": dict(comparison.failed),
    }


def write_comparison(comparison: MethodComparison, folder: str | Path, *, title: str) -> list[Path]:
    """Write JSON, Markdown, LaTeX and, where the report packages are installed, ``report.html``."""
    from classmargin.recipes.method_table import tables_of, verdict_of
    from classmargin.report.tables import json_text
    from classmargin.report.text import latex_report, markdown_report

    place = Path(folder)
    verdict, tables = verdict_of(comparison), tables_of(comparison)
    written = [place / RESULT_FILE, place / "table.md", place / "table.tex"]
    write_text(written[0], json_text(to_dict(comparison)) + "\n")
    write_text(written[1], markdown_report(verdict, tables) + "\n")
    write_text(written[2], latex_report(verdict, tables) + "\n")
    if comparison.paired is not None:
        from classmargin.report.render import write_comparison_html

        try:
            page = write_comparison_html(comparison.paired, place / "report.html", title=title, tables=tables)
            written.append(page)
        except ImportError as error:
            write_json(place / "report_missing.json", {"reason": str(error)})
    return written
