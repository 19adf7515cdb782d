"""Sweeps of methods that train in stages, and points of a grid whose worker died early."""

from __future__ import annotations

import pytest

from classmargin.recipes import sweep_study as study_module
from classmargin.recipes.run_sweep import run_sweep
from classmargin.recipes.sweep_space import grid
from classmargin.recipes.sweep_study import make_pruner, open_study, settle_plan

optuna = pytest.importorskip("optuna")


@pytest.mark.parametrize(
    ("method", "search", "staged"),
    [
        ("mr2", "mean_margin=1,2", False),
        ("sam+jtt", "up_weight=2,4", True),
        ("drl", "temperature=0.1:1.0", True),
    ],
)
def test_a_method_with_stages_is_not_judged_halfway(make_plan, method, search, staged):
    """SupCon has no classifier before its last stage: half of the trials would end by the luck of a random one."""
    plan = make_plan(search, method=method, epochs=4, keep_easy=False)
    assert plan.is_staged == staged
    kind = optuna.pruners.NopPruner if staged else optuna.pruners.MedianPruner
    assert isinstance(make_pruner(plan), kind)


def test_a_joint_training_has_one_stage(make_plan):
    plan = make_plan("temperature=0.07,0.1", method="supcon", settings=["method.mode=joint"], keep_easy=False, epochs=4)
    assert not plan.is_staged


def test_a_point_of_a_grid_whose_worker_died_before_it_read_it_is_tried_all_the_same(make_plan, tmp_path, monkeypatch):
    plan = make_plan("mean_margin=1,2,3", keep_easy=False, epochs=1)
    settle_plan(plan, tmp_path / "out")
    study = open_study(plan)
    for labels in grid(plan.parameters):
        study.enqueue_trial(labels)
    study.ask()  # and the process that asked is gone: no signature, no values
    monkeypatch.setattr(study_module, "UNSIGNED_SECONDS", 0.0)
    result = run_sweep(plan, tmp_path / "out", engine="inline", test=False)
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2, 3]
