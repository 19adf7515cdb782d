"""The same sweep on a cluster: Ray Tune places the trials, everything else stays as it is.

Values are drawn at random (every combination where that fits the number of trials) and trials that fall
behind are stopped by Ray's median rule; the data base of the Optuna engine is not needed. Run folders must lie
on a file system that all nodes share, as Ray's own results do. An interrupted sweep is restored by Ray, and
each trial goes on from the checkpoint in its run folder.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from classmargin._checks import require_extra
from classmargin.recipes.sweep.objective import METRICS, easy_violation
from classmargin.recipes.sweep.plan import SweepPlan, settle_plan
from classmargin.recipes.sweep.result import SweepResult, TrialRow, make_result
from classmargin.recipes.sweep.run import check_plan, reference_accuracies, test_best
from classmargin.recipes.sweep.space import Parameter
from classmargin.recipes.sweep.study import COMPARED_TRIALS, PRUNE_AFTER
from classmargin.recipes.sweep.trial import train_trial
from classmargin.training.errors import DivergedError


def run_ray_sweep(
    plan: SweepPlan,
    folder: str | Path,
    *,
    jobs: int = 1,
    reference: str | Path | None = None,
    test: bool = True,
) -> SweepResult:
    """Run, or go on with, a sweep under Ray Tune; arguments as for ``run_sweep``.

    A cluster is found through ``RAY_ADDRESS``; without it Ray runs on this machine alone.

    Raises:
        ImportError: Ray is not installed; the message names the extra.
        ValueError: Bad data or folder.
    """
    ray, tune = _ray_packages()
    folder = Path(folder).resolve()
    check_plan(plan)
    settle_plan(plan, folder)
    accuracies = reference_accuracies(plan, folder, reference) if plan.keep_easy else None
    _start(ray, jobs)
    try:
        grid = _tuner(tune, plan, folder, jobs).fit()
        # By trial id, which counts up: a restored sweep hands its trials back in another order.
        found = sorted(grid, key=lambda trial: str((trial.metrics or {}).get("trial_id", "")))
        rows = [_row(plan, number, trial, accuracies) for number, trial in enumerate(found)]
    finally:
        ray.shutdown()
    result = make_result(plan, rows, accuracies)
    return test_best(result) if test else result


def _ray_packages() -> tuple[Any, Any]:
    # Before the import, because Ray reads it then: nothing is sent home, and output stays ours.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    ray = require_extra("ray", "ray", "--engine ray")
    return ray, require_extra("ray.tune", "ray", "--engine ray")


def _start(ray: Any, jobs: int) -> None:
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if "RAY_ADDRESS" not in os.environ:
        options["num_cpus"] = jobs
    ray.init(ignore_reinit_error=True, **options)


def _tuner(tune: Any, plan: SweepPlan, folder: Path, jobs: int) -> Any:
    place, name = folder / "ray", "trials"  # not the study's name: that may be any text, and this is a path
    record = plan.to_dict()

    def trainable(labels: dict[str, Any]) -> None:
        run_ray_trial(record, folder, labels)

    placed = tune.with_resources(trainable, {"cpu": 1})
    if tune.Tuner.can_restore(str(place / name)):
        return tune.Tuner.restore(
            str(place / name), trainable=placed, resume_unfinished=True, restart_errored=True
        )
    whole = plan.is_whole_grid
    return tune.Tuner(
        placed,
        param_space={p.key: _domain(tune, p, whole=whole) for p in plan.parameters},
        tune_config=tune.TuneConfig(
            metric="value",
            mode="max",
            num_samples=1 if whole else plan.trials,
            max_concurrent_trials=jobs,
            scheduler=_scheduler(plan),
            search_alg=None if whole else _random_search(plan),
        ),
        run_config=tune.RunConfig(name=name, storage_path=str(place), verbose=0),
    )


def _random_search(plan: SweepPlan) -> Any:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    return BasicVariantGenerator(random_state=plan.seed)


def _scheduler(plan: SweepPlan) -> Any:
    from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule

    if plan.pruner == "none" or plan.is_staged:
        return FIFOScheduler()
    return MedianStoppingRule(
        time_attr="epoch",
        grace_period=max(1, int(PRUNE_AFTER * plan.config.loop.epochs)),
        min_samples_required=COMPARED_TRIALS,
    )


def _domain(tune: Any, p: Parameter, *, whole: bool) -> Any:
    if p.choices:
        return tune.grid_search(list(p.labels)) if whole else tune.choice(list(p.labels))
    if p.whole:  # Ray's upper end is not included
        draw = tune.lograndint if p.log else tune.randint
        return draw(int(p.low), int(p.high) + 1) if p.step is None else tune.qrandint(p.low, p.high, p.step)
    if p.step is not None:
        return tune.quniform(p.low, p.high, p.step)
    return tune.loguniform(p.low, p.high) if p.log else tune.uniform(p.low, p.high)


def run_ray_trial(record: Mapping[str, Any], folder: Path, labels: Mapping[str, Any]) -> None:
    """Train one trial inside a Ray worker, reporting every evaluation; Ray stops it where it falls behind."""
    from ray import tune

    plan = SweepPlan.from_dict(record)
    config = plan.trial_config(labels)
    run_folder = folder / "runs" / f"trial-{tune.get_context().get_trial_id()}"
    sign = {"folder": str(run_folder), "host": platform.node()}

    def report(epoch: int, accuracies: dict[str, float]) -> bool:
        if epoch < config.loop.epochs:  # the last evaluation is told below, as the result
            tune.report({"epoch": epoch, "value": plan.objective.value(accuracies), **sign})
        return True

    try:
        accuracies = train_trial(config, run_folder, report)
    except DivergedError as error:
        # A value must be there for Ray; nothing is worse than zero.
        tune.report({"epoch": config.loop.epochs, "value": 0.0, "diverged": str(error), **sign})
        return
    value = plan.objective.value(accuracies)
    tune.report({"epoch": config.loop.epochs, "value": value, "accuracies": accuracies, **sign})


def _row(plan: SweepPlan, number: int, found: Any, reference: Mapping[str, float] | None) -> TrialRow:
    metrics = found.metrics or {}
    # Ray hands nested results back flattened or nested, depending on whether they passed through a file.
    accuracies = metrics.get("accuracies") or {
        name: metrics[f"accuracies/{name}"] for name in METRICS if f"accuracies/{name}" in metrics
    }
    outcome, reason = "pruned", ""
    if found.error is not None:
        outcome, reason = "failed", str(found.error).strip().splitlines()[-1]
    elif "diverged" in metrics:
        outcome, reason = "diverged", str(metrics["diverged"])
    elif accuracies:
        outcome = "finished"
    violation = None
    if outcome == "finished" and reference is not None:
        violation = easy_violation(accuracies, reference["easy"], plan.easy_slack)
    return TrialRow(
        number=number,
        outcome=outcome,
        labels={p.key: _plain(found.config[p.key]) for p in plan.parameters},
        value=metrics.get("value"),
        accuracies=accuracies,
        violation=violation,
        seconds=metrics.get("time_total_s"),
        reason=reason,
        folder=str(metrics.get("folder", "")),
        host=str(metrics.get("host", "")),
    )


def _plain(value: Any) -> Any:
    """Return numpy's scalars as Python's."""
    return value.item() if hasattr(value, "item") else value
