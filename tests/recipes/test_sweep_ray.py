"""Sweeps under Ray Tune; run where the extra ``ray`` is installed."""

from __future__ import annotations

import json

import pytest

from classmargin.recipes.sweep import pages
from classmargin.recipes.sweep.ray_engine import run_ray_sweep
from classmargin.recipes.sweep.trial import validation_accuracies
from classmargin.training.run_folder import RunFolder

pytest.importorskip("ray", reason="Ray is an extra of its own: pip install 'classmargin[ray]'")
# Ray itself leaves sockets and files to the garbage collector, and warns about its own future.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]


def test_ray_tries_every_combination_and_only_the_best_is_tested(make_plan, tmp_path):
    plan = make_plan("mean_margin=1,2,3", trials=10)
    result = run_ray_sweep(plan, tmp_path / "out", jobs=2)
    assert sorted(result.settings(row)["mean_margin"] for row in result.rows) == [1, 2, 3]
    assert [row.outcome for row in result.rows] == ["finished"] * 3
    for row in result.rows:
        assert row.accuracies == pytest.approx(validation_accuracies(row.folder))
        assert row.violation == pytest.approx(result.reference["easy"] - row.accuracies["easy"])
        assert RunFolder(row.folder).done == (row.number == result.best.number)
    assert result.test == json.loads(RunFolder(result.best.folder).done_file.read_text())["test"]
    assert "on validation" in pages.verdict_of(result)
    again = run_ray_sweep(plan, tmp_path / "out", jobs=2)
    assert [row.accuracies for row in again.rows] == [row.accuracies for row in result.rows]


def test_ray_draws_from_ranges_and_stays_inside_them(make_plan, tmp_path):
    plan = make_plan(
        "representation_weight=0.01:1:log",
        "loop.batch_size=20:60:20",
        trials=3,
        keep_easy=False,
        pruner="none",
    )
    result = run_ray_sweep(plan, tmp_path / "out", jobs=1, test=False)
    assert len(result.rows) == 3
    for row in result.rows:
        config = RunFolder(row.folder).read_config()
        assert 0.01 <= config.method.options["representation_weight"] <= 1
        assert config.loop.batch_size in (20, 40, 60)
    assert result.test is None
