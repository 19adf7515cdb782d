"""The same search for every method on validation, cross-entropy with equal compute, and a null row."""

from __future__ import annotations

import json

import pytest

from classmargin.cli.main import main
from classmargin.recipes import validation_search
from classmargin.recipes.recipe_plan import plan_comparison
from classmargin.recipes.record import BlockResult
from classmargin.recipes.validation_search import equal_points, fair_rows, footing_lacks, searched_trials

from .reproduce_tools import train_here


@pytest.fixture
def block(tmp_path, small):
    (block,) = plan_comparison(small(), ["erm", "sam", "group-dro"], 2, tmp_path, {"sam": {"rho": 0.2}}).blocks
    return block


def test_every_row_tries_as_many_settings_with_the_same_factors_of_learning_rate_and_weight_decay(block):
    tried = {row.key: equal_points(row, 5) for row in block.rows}
    assert [len(points) for points in tried.values()] == [5, 5, 5]
    assert [points[0] for points in tried.values()] == [{}, {}, {}], "the first settings are those as planned"
    optimizers = [[point["optimizer"] for point in points[1:]] for points in tried.values()]
    assert optimizers[0] == optimizers[1] == optimizers[2]
    rates = [one["learning_rate"] for one in optimizers[0]]
    assert len(set(rates)) == 4
    assert all(0.05 / 5 <= rate <= 0.05 * 5 for rate in rates)
    assert all("rho" not in point.get("method", {}) for point in tried["sam"]), "somebody has set it"
    steps = [point["method"]["step_size"] for point in tried["group-dro"][1:]]
    assert all(0.001 <= step <= 0.1 for step in steps)


def test_cross_entropy_with_the_compute_of_costlier_methods_and_a_null_row_are_added(block, tmp_path):
    rows = {row.key: row for row in fair_rows(block, tmp_path).rows}
    assert list(rows) == ["erm", "sam", "group-dro", "erm, 4 epochs", "null"]
    assert [run.config.loop.epochs for run in rows["erm, 4 epochs"].runs] == [4, 4]
    assert {run.config.method.name for run in rows["null"].runs} == {"balanced-softmax"}
    folders = {run.folder.path for row in rows.values() for run in row.runs}
    assert len(folders) == 10
    (tailed,) = plan_comparison(block.rows[0].runs[0].config, ["erm"], 1, tmp_path).blocks
    assert [row.key for row in fair_rows(tailed, tmp_path).rows] == ["erm", "null"]


def test_no_null_row_is_made_up_where_classes_are_unequal(tmp_path, small):
    (block,) = plan_comparison(small("data.imbalance=4"), ["erm", "mr2"], 1, tmp_path).blocks
    assert [row.key for row in fair_rows(block, tmp_path).rows] == ["erm", "mr2"]


def test_what_a_comparison_lacks_is_named(block, tmp_path):
    configs = [row.runs[0].config for row in block.rows]
    assert footing_lacks(configs, 0) == (
        "the same search on validation for every method",
        "cross-entropy with the compute of SAM",
        "a null row",
    )
    fair = [row.runs[0].config for row in fair_rows(block, tmp_path).rows]
    assert footing_lacks(fair, 3) == ()
    assert footing_lacks(fair, 0) == ("the same search on validation for every method",)


def test_a_comparison_on_an_equal_footing_says_what_was_chosen_and_how(tmp_path, tiny_images, monkeypatch, capsys):
    from classmargin.recipes import run_recipe

    monkeypatch.setattr(validation_search, "run_all", train_here)
    monkeypatch.setattr(run_recipe, "run_all", train_here)
    words = ["compare-methods", "--data", str(tiny_images), "--methods", "erm,sam", "--seeds", "1"]
    words += ["--epochs", "1", "--set", "machine.accelerator=cpu", "--equal-footing", "2"]
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "not on equal footing" not in told
    page = " ".join((out / "table.md").read_text().split())
    assert "Chosen on validation from 2 settings of every row (overall accuracy, one seed): methods/erm:" in page
    assert "Balanced Softmax (null row)" in page
    tried = list(out.glob("selection/runs/*"))
    assert len(tried) == 8
    assert not list(out.glob("selection/runs/*/predictions.npz")), "the test set plays no part"
    assert searched_trials([out]) == 2
    before = {run: run.stat().st_mtime_ns for run in tried}
    assert main([*words, "--out", str(out)]) == 0
    assert {run: run.stat().st_mtime_ns for run in tried} == before, "the same command searches nothing again"
    capsys.readouterr()
    assert main(["reproduce", "--from-runs", str(out), "--out", str(tmp_path / "kept"), "--format", "json"]) == 0
    (kept,) = json.loads(capsys.readouterr().out)["blocks"]
    assert kept["lacks"] == []
    assert BlockResult(**kept).lacks == []
