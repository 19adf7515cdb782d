"""``classmargin reproduce`` and ``compare-methods``: train what is missing of a plan, measure it, and make the record."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, stdev
from typing import Any

import numpy as np

from classmargin._files import read_json
from classmargin.backbones import backbone_info
from classmargin.data.catalog import data_root
from classmargin.data.raw import name_some
from classmargin.evaluation.audit_result import Audit
from classmargin.evaluation.auditing import audit
from classmargin.evaluation.comparison import ComparisonSet, compare_many
from classmargin.evaluation.headline_intervals import centred_interval
from classmargin.evaluation.headlines import (
    HEADLINES,
    TierRule,
    observed_headlines,
    outcome_table,
    random_run_weights,
    resampled_headlines,
)
from classmargin.evaluation.paired_tests import paired_correctness
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.existing_runs import find_runs, group_runs, settings_difference, settings_of, unfinished_runs
from classmargin.recipes.out_folder import QUESTION_FILE, claim_plan_folder, removed_unless_begun
from classmargin.recipes.recipe import Recipe
from classmargin.recipes.recipe_plan import COMPARISON, PlannedBlock, PlannedRow, RecipePlan, write_sample_files
from classmargin.recipes.record import CUSTOM, BlockResult, Change, Estimate, Record, RowResult, RunScore
from classmargin.recipes.run_parts import read_record
from classmargin.recipes.runner import PlannedRun, run_all
from classmargin.recipes.train_run import read_summary
from classmargin.recipes.validation_search import footing_lacks, searched, searched_trials
from classmargin.training.config import identity
from classmargin.training.run_folder import RunFolder, session
from classmargin.training.run_progress import say

# A folder of a sweep holds dozens of runs that were never tested.
MOST_NAMES = 10
COLLAPSE = (
    "the printed objective can collapse on features that are not normalised: with 5 epochs of ResNet-20 on CIFAR-10 at 10 % "
    "and one seed, cross-entropy reached 41.2 % overall and 24.3 % on the hard third, the printed objective 16.5 % and 0.1 %. "
    "--objective paper,release,recommended runs the three side by side."
)


@dataclass(frozen=True)
class Outcome:
    """The record, and the comparisons behind it for pages with all classes."""

    record: Record
    measured: tuple[MeasuredBlock, ...]


def run_plan(
    plan: RecipePlan, folder: Path, *, search: bool = False, trials: int = 0, command: Sequence[str] = (), **how: Any
) -> Outcome:
    """Run a plan as a command does: in a folder of its own, if wished at the settings that are best on validation.

    ``search`` chooses them from the paper's grid, ``trials`` from so many settings of each row; ``how`` is for the runner.
    """
    with removed_unless_begun(folder):
        if search or trials:
            if not (folder / QUESTION_FILE).exists():
                claim_plan_folder(plan, folder)
            write_sample_files(plan)
            plan = searched(plan, trials, **how)
        claim_plan_folder(plan, folder)
        return reproduce(plan, command=command, **how)


def reproduce(plan: RecipePlan, *, command: Sequence[str] = (), **how: Any) -> Outcome:
    """Train the runs of a plan that are missing, and measure all of them; the arguments are those of :func:`run_plan`."""
    size = plan.recipe.scales[plan.scale]
    write_sample_files(plan)
    failed = run_all(plan.runs, **how) if plan.blocks else {}
    changed = "Settings were changed, see the command." if plan.changed else ""
    outcome = _measured(
        plan.recipe,
        plan.blocks,
        bootstrap=size.bootstrap,
        trials=plan.trials,
        failed=failed,
        left_out=plan.left_out,
        scale=plan.scale,
        note=" ".join(filter(None, [size.note, plan.words, changed])),
        command=command,
    )
    as_printed = [run.config.backbone for run in plan.runs if run.config.method.preset == "paper"]
    if all(backbone.options.get("normalize_features") for backbone in as_printed):
        return outcome
    return replace(outcome, record=replace(outcome.record, doubts=(*outcome.record.doubts, COLLAPSE)))


def from_runs(
    folders: Sequence[str | Path],
    recipe: Recipe | None = None,
    *,
    note: str = "",
    bootstrap: int = 2000,
    command: Sequence[str] = (),
) -> Outcome:
    """Measure runs that exist already in folders and below them; a recipe brings names, order and printed values."""
    blocks = group_runs(find_runs(folders), recipe)
    if unfinished := name_some([path.name for path in unfinished_runs(folders)], limit=MOST_NAMES):
        say(f"left out, unfinished: {unfinished}")
    return _measured(
        recipe or COMPARISON,
        blocks,
        bootstrap=bootstrap,
        trials=searched_trials(folders),
        left_out={unfinished: "unfinished"} if unfinished else {},
        scale=CUSTOM,
        note=note,
        command=command,
    )


def _measured(
    recipe: Recipe,
    blocks: Sequence[PlannedBlock],
    *,
    bootstrap: int,
    trials: int,
    command: Sequence[str],
    failed: Mapping[str, str] | None = None,
    **said: Any,
) -> Outcome:
    """Measure every block whose baseline is finished, and make the record, with the data of the figure where there is one."""
    found = [measure_block(block, bootstrap=bootstrap, extras=recipe.extras, trials=trials) for block in blocks]
    measured = tuple(block for block in found if block is not None)
    failed = failed or {}
    if blocks and not measured:
        first = blocks[0].rows[0].title if len(blocks) == 1 else "a first row"
        raise ValueError(f"no run of {first} was finished: {'; '.join(failed.values())}")
    not_kept = ("command", "resumed_from_step")
    record = Record(
        recipe=recipe.name,
        source=recipe.source,
        question=recipe.question,
        command=portable_command(["classmargin", *command]) if command else "",
        session={key: value for key, value in session().items() if key not in not_kept},
        blocks=tuple(block.result for block in measured),
        doubts=recipe.doubts,
        failed=failed,
        **said,
    )
    if recipe.figure is not None:
        folders = {block.result.key: block.folders for block in measured}
        record = replace(record, figure=dict(recipe.figure(record, folders)))
    return Outcome(record, measured)


def portable_command(words: Sequence[str]) -> str:
    """Return a command that means the same on another machine: absolute paths become relative or bare names."""

    def portable(word: str) -> str:
        before, equals, path = word.rpartition("=")
        if not Path(path).is_absolute():
            return word
        places = (data_root().absolute(), Path.cwd())  # data are looked for below their root
        below = next((Path(path).relative_to(place) for place in places if Path(path).is_relative_to(place)), None)
        return f"{before}{equals}{below or Path(path).name}"

    return shlex.join(portable(word) for word in words)


Extras = Callable[[Sequence[RunFolder]], Mapping[str, Any]]


@dataclass(frozen=True)
class MeasuredBlock:
    """The result that is kept; the comparison behind it for a page with all classes; the finished runs of each row."""

    result: BlockResult
    comparison: ComparisonSet | None = field(repr=False, default=None)
    folders: Mapping[str, tuple[RunFolder, ...]] = field(repr=False, default_factory=dict)


def measure_block(
    block: PlannedBlock, *, bootstrap: int = 2000, extras: Extras | None = None, trials: int = 0
) -> MeasuredBlock | None:
    """Return what the finished runs of a block came to, without rows that have none, or None if its baseline has none."""
    audits = {row.key: read_audits(row.runs) for row in block.rows}
    rows = [_with_head_start(row) for row in block.rows if audits[row.key]]
    if not rows or rows[0].key != block.rows[0].key:
        return None
    first = audits[rows[0].key][0]
    results = [_row_result(row, audits[row.key], rows[0], bootstrap, extras) for row in rows]
    known = [[run.seconds for run in result.runs if run.seconds is not None] for result in results]
    costs = [median(seconds) if seconds else 0.0 for seconds in known]
    if costs[0]:
        pairs = zip(results, costs, strict=True)
        results = [replace(result, relative_cost=cost / costs[0] if cost else None) for result, cost in pairs]
    cross = None
    if len(rows) > 1:
        models = {row.title: audits[row.key] for row in rows}
        cross, own = (compare_many(models, ranking=rule, bootstrap=bootstrap) for rule in ("crossfit", "own"))
        for n, (fair, paper) in enumerate(zip(cross.comparisons, own.comparisons, strict=True), start=1):
            change = Change(fair.deltas, paper.deltas, fair.verdict, len(fair.gained), len(fair.lost), fair.runs)
            results[n] = replace(results[n], change=change)
    configs = [row.runs[0].config for row in rows]
    shared = (settings_of(configs[0]), first.class_names, first.num_samples)
    lacks = footing_lacks(configs, trials)
    result = BlockResult(block.key, block.title, *shared, tuple(results), block.printed_for, lacks)
    folders = {row.key: tuple(run.folder for run in row.runs if run.folder.done) for row in rows}
    return MeasuredBlock(result, cross, folders)


def _with_head_start(row: PlannedRow) -> PlannedRow:
    """Return the row with a title that says so where a head started at random that could start from class names."""
    backbone = row.runs[0].config.backbone
    if backbone.mode == "scratch" or "head_start" not in backbone_info(backbone.name).options:
        return row
    starts = {read_record(run.folder).head_start for run in row.runs if run.folder.done}
    return replace(row, title=f"{row.title} (random head)") if "random" in starts else row


def _row_result(
    row: PlannedRow, audits: Sequence[Audit], baseline: PlannedRow, bootstrap: int, extras: Extras | None
) -> RowResult:
    finished = [run for run in row.runs if run.folder.done]
    config, base = finished[0].config, baseline.runs[0].config
    scores = [_run_score(run, found) for run, found in zip(finished, audits, strict=True)]
    several = HEADLINES if len(scores) > 1 else ()
    return RowResult(
        key=row.key,
        title=row.title,
        method=config.method.name,
        settings={} if row.key == baseline.key else settings_difference(config, base),
        runs=tuple(scores),
        values=headline_values(audits, "own", bootstrap=bootstrap),
        crossfit=headline_values(audits, "crossfit", bootstrap=bootstrap),
        std={name: stdev(run.scores[name] for run in scores) for name in several},
        by_class=tuple(np.mean([found.by_class["accuracy"] for found in audits], axis=0).tolist()),
        paper=row.paper,
        extras=dict(extras([run.folder for run in finished])) if extras is not None else {},
    )


def _run_score(run: PlannedRun, found: Audit) -> RunScore:
    """Return the headline numbers of one run by its own thirds, as the paper has them, and its cost."""
    labels, correct = paired_correctness([found])
    table = outcome_table(labels, correct, found.num_classes)
    values = observed_headlines(table, (1,), TierRule("own"), np.random.default_rng(0))[0]
    scores = dict(zip(HEADLINES, map(float, values), strict=True))
    done = read_summary(run.folder)
    per_step = seconds_per_step(run.folder, done)
    whole = None if per_step is None else per_step * done["steps"]
    return RunScore(run.config.loop.seed, identity(run.config), scores, done["steps"], whole, per_step)


def read_audits(runs: Sequence[PlannedRun]) -> list[Audit]:
    """Return a lean audit of each finished run: a comparison only asks who is right on which sample."""
    audits = []
    for found in (read_predictions(run.folder.predictions_file) for run in runs if run.folder.done):
        assert found.logits is not None, "run folders hold logits"
        names: dict[str, Any] = {"class_names": found.class_names, "sample_id": found.sample_id}
        audits.append(audit(found.labels, predictions=found.logits.argmax(axis=1), bootstrap=100, **names))
    return audits


def headline_values(audits: Sequence[Audit], ranking: str, *, bootstrap: int = 2000) -> dict[str, Estimate]:
    """Return the headline numbers of several runs of a method on the same samples, with intervals over samples and seeds.

    Ranking ``own`` averages runs measured by their own thirds, ``crossfit`` ranks the average of the runs.
    """
    labels, correct = paired_correctness(audits)
    table = outcome_table(labels, correct, audits[0].num_classes)
    runs, rule, rng = len(audits), TierRule(ranking), np.random.default_rng(0)
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
        low, high = centred_interval(value, draws[:, column], 0.95, proportion=proportion)
        numbers[metric] = (value, float(low), float(high))
    return numbers


def seconds_per_step(folder: RunFolder, done: Mapping[str, Any]) -> float | None:
    """Return the time of a step of a run, with evaluations, or None if its last session, which ``done`` times, made none."""
    resumed = 0
    try:
        sessions = read_json(folder.record_file)["sessions"]
        resumed = sessions[-1]["resumed_from_step"] or 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # without a record of its sessions the run is taken for one that was never interrupted
    steps = done["steps"] - resumed
    return done["seconds"] / steps if steps > 0 else None
