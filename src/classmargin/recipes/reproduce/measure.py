"""Finished runs of a block in, everything the record says about them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np

from classmargin.evaluation.audit import Audit
from classmargin.evaluation.comparison import Comparison, ComparisonSet, compare_many
from classmargin.evaluation.headlines import HEADLINES, TierRule, observed_headlines, resampled_headlines
from classmargin.evaluation.intervals import centred_interval
from classmargin.evaluation.outcomes import outcome_table
from classmargin.evaluation.pairing import paired_correctness
from classmargin.recipes.compare_methods import read_audits, summarise
from classmargin.recipes.reproduce.record import BlockResult, Change, Estimate, RowResult, RunScore
from classmargin.recipes.run_pool import PlannedRun
from classmargin.recipes.train_run import read_summary
from classmargin.training.config import RunConfig, identity
from classmargin.training.run_folder import RunFolder

Extras = Callable[[Sequence[RunFolder]], Mapping[str, Any]]
Settings = Mapping[str, Mapping[str, Any]]
# Where a run happens to lie or how it is shown says nothing about its result.
_NOT_A_RESULT = {"machine": None, "data": {"root", "download", "skip_corrupt"}, "loop": {"seed"}}


@dataclass(frozen=True)
class RowRuns:
    """A row and its runs, finished or not."""

    key: str
    title: str
    runs: tuple[PlannedRun, ...]
    paper: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class BlockRuns:
    """A block and its rows, the baseline first."""

    key: str
    title: str
    rows: tuple[RowRuns, ...]
    printed_for: str = ""


@dataclass(frozen=True)
class MeasuredBlock:
    """The result that is kept; the comparison behind it for a page with all classes; the finished runs of each row."""

    result: BlockResult
    comparison: ComparisonSet | None = field(repr=False, default=None)
    folders: Mapping[str, tuple[RunFolder, ...]] = field(repr=False, default_factory=dict)


def measure_block(
    block: BlockRuns, *, bootstrap: int = 2000, extras: Extras | None = None
) -> MeasuredBlock | None:
    """Return what the finished runs of a block came to, or None if its baseline has none.

    Rows without a finished run are left out; the caller knows which runs failed.

    Args:
        block: Rows with their runs, the baseline first.
        bootstrap: Resamples behind every interval.
        extras: Further numbers of a row's runs.
    """
    audits = {row.key: read_audits(row.runs) for row in block.rows}
    rows = [row for row in block.rows if audits[row.key]]
    if not rows or rows[0].key != block.rows[0].key:
        return None
    first = audits[rows[0].key][0]
    results = [_row_result(row, audits[row.key], rows[0], bootstrap, extras) for row in rows]
    cross = own = None
    if len(rows) > 1:
        models = {row.title: audits[row.key] for row in rows}
        cross, own = (compare_many(models, ranking=rule, bootstrap=bootstrap) for rule in ("crossfit", "own"))
        changes = [None, *map(_change, cross.comparisons, own.comparisons)]
        results = [_with(result, change=change) for result, change in zip(results, changes, strict=True)]
    config = rows[0].runs[0].config
    result = BlockResult(
        block.key,
        block.title,
        settings_of(config),
        first.class_names,
        first.num_samples,
        _with_cost(results),
        block.printed_for,
    )
    folders = {row.key: tuple(run.folder for run in row.runs if run.folder.done) for row in rows}
    return MeasuredBlock(result, cross, folders)


def _with(result: RowResult, **values: Any) -> RowResult:
    import dataclasses

    return dataclasses.replace(result, **values)


def _row_result(
    row: RowRuns, audits: Sequence[Audit], baseline: RowRuns, bootstrap: int, extras: Extras | None
) -> RowResult:
    finished = [run for run in row.runs if run.folder.done]
    config, base = finished[0].config, baseline.runs[0].config
    scores = tuple(_run_score(run) for run in finished)
    deviations = {}
    if len(scores) > 1:
        deviations = {name: stdev(run.scores[name] for run in scores) for name in HEADLINES}
    return RowResult(
        key=row.key,
        title=row.title,
        method=config.method.name,
        settings={} if row.key == baseline.key else settings_difference(config, base),
        runs=scores,
        values=summarise(config.method.name, audits, bootstrap=bootstrap).values,
        crossfit=crossfit_values(audits, bootstrap=bootstrap),
        std=deviations,
        by_class=tuple(np.mean([audit.by_class["accuracy"] for audit in audits], axis=0).tolist()),
        paper=row.paper,
        extras=dict(extras([run.folder for run in finished])) if extras is not None else {},
    )


def crossfit_values(
    audits: Sequence[Audit], *, confidence: float = 0.95, bootstrap: int = 2000, seed: int = 0
) -> dict[str, Estimate]:
    """Return headline numbers of a model whose thirds are ranked on one half of the samples and measured on the other.

    Runs are averaged first: the ranking is that of the method, not of one run.
    """
    labels, correct = paired_correctness(audits)
    table = outcome_table(labels, correct, audits[0].num_classes)
    counts, rule, rng = (len(audits),), TierRule("crossfit"), np.random.default_rng(seed)
    values = observed_headlines(table, counts, rule, rng)[0]
    draws = resampled_headlines(table, counts, rule, bootstrap, rng, resample_runs=len(audits) > 1)[:, 0]
    numbers = {}
    for column, metric in enumerate(HEADLINES):
        value = float(values[column])
        low, high = centred_interval(value, draws[:, column], confidence, proportion=metric != "gap")
        numbers[metric] = (value, float(low), float(high))
    return numbers


def _change(cross: Comparison, own: Comparison) -> Change:
    return Change(
        crossfit=cross.deltas,
        own=own.deltas,
        verdict=cross.verdict,
        gained=len(cross.gained),
        lost=len(cross.lost),
        runs=cross.runs,
    )


def _run_score(run: PlannedRun) -> RunScore:
    done = read_summary(run.folder)
    per_step = seconds_per_step(run.folder, done)
    whole = None if per_step is None else per_step * done["steps"]
    return RunScore(
        seed=run.config.loop.seed,
        identity=identity(run.config),
        scores={name: done["test"][name] for name in HEADLINES},
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
        sessions = json.loads(folder.record_file.read_text(encoding="utf-8"))["sessions"]
        resumed = sessions[-1]["resumed_from_step"] or 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # without a record of its sessions the run is taken for one that was never interrupted
    steps = done["steps"] - resumed
    return done["seconds"] / steps if steps > 0 else None


def _with_cost(results: Sequence[RowResult]) -> tuple[RowResult, ...]:
    base = _typical_seconds(results[0])
    return tuple(_with(result, relative_cost=_ratio(_typical_seconds(result), base)) for result in results)


def _typical_seconds(result: RowResult) -> float | None:
    known = [run.seconds for run in result.runs if run.seconds is not None]
    return median(known) if known else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def describe_setting(config: RunConfig) -> str:
    """Return data, network and length of a run in words.

    Example:
        >>> describe_setting(RunConfig())
        'fashion-mnist-mini, Small CNN, 30 epochs'
    """
    from classmargin.backbones import backbone_info

    data = config.data
    words = [Path(data.name).stem]
    if data.fraction < 1:
        words.append(f"{100 * data.fraction:g} % of the training data")
    if data.imbalance > 1:
        words.append(f"imbalance {data.imbalance:g}")
    mode = "" if config.backbone.mode == "scratch" else f" ({config.backbone.mode})"
    words.append(backbone_info(config.backbone.name).title + mode)
    if data.augmentation not in ("standard", "none"):
        words.append(data.augmentation)
    plural = "" if config.loop.epochs == 1 else "s"
    return f"{', '.join(words)}, {config.loop.epochs} epoch{plural}"


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
