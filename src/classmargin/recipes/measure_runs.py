"""Finished runs of a block in, everything the record says about them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np

from classmargin._files import read_json
from classmargin.backbones import backbone_info
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare_many
from classmargin.evaluation.headlines import (
    HEADLINES,
    TierRule,
    observed_headlines,
    outcome_table,
    random_run_weights,
    resampled_headlines,
)
from classmargin.evaluation.intervals import centred_interval
from classmargin.evaluation.paired_tests import paired_correctness
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.model_record import read_record
from classmargin.recipes.recipe_plan import PlannedBlock, PlannedRow
from classmargin.recipes.record import BlockResult, Change, Estimate, RowResult, RunScore
from classmargin.recipes.runner import PlannedRun
from classmargin.recipes.train_run import read_summary
from classmargin.recipes.validation_search import footing_lacks
from classmargin.training.config import RunConfig, identity
from classmargin.training.run_folder import RunFolder

Extras = Callable[[Sequence[RunFolder]], Mapping[str, Any]]
Settings = Mapping[str, Mapping[str, Any]]
# Where a run happens to lie or how it is shown says nothing about its result.
_NOT_A_RESULT = {"machine": None, "data": {"root", "download", "skip_corrupt"}, "loop": {"seed"}}


@dataclass(frozen=True)
class MeasuredBlock:
    """The result that is kept; the comparison behind it for a page with all classes; the finished runs of each row."""

    result: BlockResult
    comparison: ComparisonSet | None = field(repr=False, default=None)
    folders: Mapping[str, tuple[RunFolder, ...]] = field(repr=False, default_factory=dict)


def measure_block(
    block: PlannedBlock, *, bootstrap: int = 2000, extras: Extras | None = None, trials: int = 0
) -> MeasuredBlock | None:
    """Return what the finished runs of a block came to, or None if its baseline has none.

    Rows without a finished run are left out; the caller knows which runs failed.

    Args:
        block: Rows with their runs, the baseline first.
        bootstrap: Resamples behind every interval.
        extras: Further numbers of a row's runs.
        trials: Settings that every row tried on validation.
    """
    audits = {row.key: read_audits(row.runs) for row in block.rows}
    rows = [_with_head_start(row) for row in block.rows if audits[row.key]]
    if not rows or rows[0].key != block.rows[0].key:
        return None
    first = audits[rows[0].key][0]
    results = [_row_result(row, audits[row.key], rows[0], bootstrap, extras) for row in rows]
    cross = own = None
    if len(rows) > 1:
        models = {row.title: audits[row.key] for row in rows}
        cross, own = (compare_many(models, ranking=rule, bootstrap=bootstrap) for rule in ("crossfit", "own"))
        changes = [None, *map(_change, cross.comparisons, own.comparisons)]
        results = [
            dataclasses.replace(result, change=change)
            for result, change in zip(results, changes, strict=True)
        ]
    config = rows[0].runs[0].config
    result = BlockResult(
        block.key,
        block.title,
        settings_of(config),
        first.class_names,
        first.num_samples,
        _with_cost(results),
        block.printed_for,
        footing_lacks([row.runs[0].config for row in rows], trials),
    )
    folders = {row.key: tuple(run.folder for run in row.runs if run.folder.done) for row in rows}
    return MeasuredBlock(result, cross, folders)


def _with_head_start(row: PlannedRow) -> PlannedRow:
    """Return the row with a title that says so where a head started at random that could start from class names."""
    backbone = row.runs[0].config.backbone
    if backbone.mode == "scratch" or "head_start" not in backbone_info(backbone.name).options:
        return row
    starts = {read_record(run.folder).head_start for run in row.runs if run.folder.done}
    return dataclasses.replace(row, title=f"{row.title} (random head)") if "random" in starts else row


def _row_result(
    row: PlannedRow, audits: Sequence[Audit], baseline: PlannedRow, bootstrap: int, extras: Extras | None
) -> RowResult:
    finished = [run for run in row.runs if run.folder.done]
    config, base = finished[0].config, baseline.runs[0].config
    scores = tuple(_run_score(run, audit) for run, audit in zip(finished, audits, strict=True))
    deviations = {}
    if len(scores) > 1:
        deviations = {name: stdev(run.scores[name] for run in scores) for name in HEADLINES}
    return RowResult(
        key=row.key,
        title=row.title,
        method=config.method.name,
        settings={} if row.key == baseline.key else settings_difference(config, base),
        runs=scores,
        values=headline_values(audits, "own", bootstrap=bootstrap),
        crossfit=headline_values(audits, "crossfit", bootstrap=bootstrap),
        std=deviations,
        by_class=tuple(np.mean([audit.by_class["accuracy"] for audit in audits], axis=0).tolist()),
        paper=row.paper,
        extras=dict(extras([run.folder for run in finished])) if extras is not None else {},
    )


def read_audits(runs: Sequence[PlannedRun]) -> list[Audit]:
    """Return a lean audit of each finished run: a comparison only asks who is right on which sample."""
    from classmargin.evaluation.auditing import audit

    audits = []
    for run in runs:
        if run.folder.done:
            arrays = read_predictions(run.folder.predictions_file)
            assert arrays.logits is not None, "run folders hold logits"
            lean: dict[str, Any] = {
                "class_names": arrays.class_names,
                "sample_id": arrays.sample_id,
                "bootstrap": 100,
            }
            audits.append(audit(arrays.labels, predictions=arrays.logits.argmax(axis=1), **lean))
    return audits


def headline_values(
    audits: Sequence[Audit],
    ranking: str,
    *,
    confidence: float = 0.95,
    bootstrap: int = 2000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return the headline numbers of several runs of a method, with intervals over samples and seeds.

    Args:
        audits: One per run, on the same samples.
        ranking: ``own``: each run is measured by its own thirds, as in the paper, and runs are averaged afterwards.
            ``crossfit``: runs are averaged first, ranked on one half of the samples and measured on the other.
        confidence: Level of the intervals.
        bootstrap: Resamples.
        seed: Of the resamples.
    """
    labels, correct = paired_correctness(audits)
    table = outcome_table(labels, correct, audits[0].num_classes)
    runs, rule, rng = len(audits), TierRule(ranking), np.random.default_rng(seed)
    if ranking == "own":
        values = observed_headlines(table, (1,) * runs, rule, rng).mean(axis=0)
        copies = resampled_headlines(table, (1,) * runs, rule, bootstrap, rng, resample_runs=False)
        draws = np.einsum("brm,br->bm", copies, random_run_weights((runs,), bootstrap, rng)[:, :, 0])
    else:
        values = observed_headlines(table, (runs,), rule, rng)[0]
        draws = resampled_headlines(table, (runs,), rule, bootstrap, rng, resample_runs=runs > 1)[:, 0]
    numbers = {}
    for column, metric in enumerate(HEADLINES):
        value, proportion = float(values[column]), metric != "gap"
        low, high = centred_interval(value, draws[:, column], confidence, proportion=proportion)
        numbers[metric] = (value, float(low), float(high))
    return numbers


def _own_headlines(audit: Audit) -> dict[str, float]:
    """Return the headline numbers of one run by its own thirds, as the paper has them."""
    labels, correct = paired_correctness([audit])
    table = outcome_table(labels, correct, audit.num_classes)
    values = observed_headlines(table, (1,), TierRule("own"), np.random.default_rng(0))[0]
    return dict(zip(HEADLINES, map(float, values), strict=True))


def _change(cross: Comparison, own: Comparison) -> Change:
    return Change(
        crossfit=cross.deltas,
        own=own.deltas,
        verdict=cross.verdict,
        gained=len(cross.gained),
        lost=len(cross.lost),
        runs=cross.runs,
    )


def _run_score(run: PlannedRun, audit: Audit) -> RunScore:
    done = read_summary(run.folder)
    per_step = seconds_per_step(run.folder, done)
    whole = None if per_step is None else per_step * done["steps"]
    return RunScore(
        seed=run.config.loop.seed,
        identity=identity(run.config),
        scores=_own_headlines(audit),
        steps=done["steps"],
        seconds=whole,
        seconds_per_step=per_step,
    )


def seconds_per_step(folder: RunFolder, done: Mapping[str, Any]) -> float | None:
    """Return the time of a step of a finished run, evaluations included, or None if the last session made none.

    ``done["seconds"]`` is the time of the last session, which may have resumed an earlier one.
    """
    resumed = 0
    try:
        sessions = read_json(folder.record_file)["sessions"]
        resumed = sessions[-1]["resumed_from_step"] or 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # without a record of its sessions the run is taken for one that was never interrupted
    steps = done["steps"] - resumed
    return done["seconds"] / steps if steps > 0 else None


def _with_cost(results: Sequence[RowResult]) -> tuple[RowResult, ...]:
    base = _typical_seconds(results[0])
    return tuple(
        dataclasses.replace(result, relative_cost=_ratio(_typical_seconds(result), base))
        for result in results
    )


def _typical_seconds(result: RowResult) -> float | None:
    known = [run.seconds for run in result.runs if run.seconds is not None]
    return median(known) if known else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def settings_of(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return what differs from a run with all defaults; seed, machine, place of the data and method are left out."""
    return _difference(config, RunConfig(), leave_out=("method",))


def settings_difference(config: RunConfig, baseline: RunConfig) -> dict[str, dict[str, Any]]:
    """Return what a row has that its baseline has not; of the method only what is not its default."""
    from classmargin.methods import default_hyperparameters

    different = _difference(config, baseline, leave_out=("method",))
    defaults = default_hyperparameters(config.method.name)
    options = {
        key: value
        for key, value in config.method.options.items()
        if _plain(value) != _plain(defaults.get(key, value))
    }
    if config.method.preset is not None:
        options = {"preset": config.method.preset, **options}
    return {**different, "method": options} if options else different


def _difference(
    config: RunConfig, other: RunConfig, *, leave_out: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    theirs = other.to_dict()
    for part, table in config.to_dict().items():
        skipped = _NOT_A_RESULT.get(part, set())
        if skipped is None or part in leave_out:
            continue
        changed = {
            key: _without_place(value)
            for key, value in table.items()
            if key not in skipped and _plain(value) != _plain(theirs[part].get(key))
        }
        if changed:
            found[part] = changed
    return found


def _without_place(value: Any) -> Any:
    """Return a path without the folder it lay in, which means nothing elsewhere."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
