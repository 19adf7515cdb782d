"""Every table and figure of the paper, end to end at the smallest scale.

All recipes share one folder, so that a run which several of them need is trained once.
"""

from __future__ import annotations

import json
import math
import sys

import pytest

from classmargin.recipes.recipe import find_recipe, list_recipes
from classmargin.recipes.recipe_plan import plan_recipe, write_sample_files
from classmargin.recipes.record import PRINTED, read_record
from classmargin.recipes.record_pages import render_records, tables_of, write_outputs
from classmargin.recipes.runner import run_all
from classmargin.report.tables import latex_report

from .reproduce_tools import reproduce_here

NAMES = [recipe.name for recipe in list_recipes()]
# What issue and paper name; a recipe that vanishes must be missed.
TABLES = {
    "table1-cifar100",
    "table1-imagenet",
    "table2-cifar100",
    "table2-imagenet",
    "table3-components",
    "table-margins",
    "table-augmentation",
    "table-mnist-collapse",
    "table-long-tail",
    "table-norms-cifar",
    "table-norms-imagenet",
    "table-fine-grained",
    "table-components-more",
    "sweep-mean-margin",
    "sweep-representation-weight",
    "sweep-mean-margin-imagenet",
    "sweep-representation-weight-imagenet",
    "table-per-class-cifar10",
    "table-std",
}
FIGURES = {
    "figure-class-accuracy-and-spread",
    "figure-loss-shapes",
    "figure-weight-norms",
    "figure-spread-evolution",
    "figure-fine-grained-gains",
    "figure-tsne",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


def test_every_table_and_figure_of_the_paper_is_a_recipe():
    assert set(NAMES) == TABLES | FIGURES


@pytest.mark.parametrize("name", NAMES)
def test_recipe_runs_to_its_record_and_page(name, folder):
    recipe = find_recipe(name)
    outcome = reproduce_here(recipe, folder)
    record = outcome.record
    assert record.failed == {}
    planned = plan_recipe(recipe, "smoke", seeds=1, folder=folder).blocks
    assert [(b.key, [row.key for row in b.rows]) for b in record.blocks] == [
        (b.key, [row.key for row in b.rows]) for b in planned
    ]
    for block in record.blocks:
        for position, row in enumerate(block.rows):
            assert 0.0 <= row.values["hard"][0] <= row.values["easy"][0] <= 1.0
            assert row.values["overall"][1] <= row.values["overall"][0] <= row.values["overall"][2]
            assert (row.change is None) == (position == 0)
            assert row.relative_cost is not None
            assert row.relative_cost > 0
            assert len(row.by_class) == len(block.class_names)
    place = folder / name
    write_outputs(record, place, html=False)
    again = read_record(place)
    assert again.to_dict() == record.to_dict()
    page = render_records([place])
    assert recipe.question in page
    for block in record.blocks:
        for row in block.rows:
            for metric in PRINTED:
                if recipe.tables is None and row.paper and metric in row.paper:
                    assert f"{row.paper[metric]:.1f}" in page
    assert latex_report("", tables_of(again)).count("\\toprule") == len(tables_of(again))


@pytest.mark.parametrize("name", sorted(FIGURES | {"sweep-mean-margin"}))
def test_figure_is_drawn_from_the_stored_record_alone(name, folder):
    pytest.importorskip("plotly")
    recipe = find_recipe(name)
    write_outputs(reproduce_here(recipe, folder).record, folder / name, html=False)
    stored = read_record(folder / name)
    drawn = json.loads(recipe.draw(stored.figure).to_json())
    assert drawn["data"]
    for trace in drawn["data"]:
        assert "x" in trace or trace.get("y") is not None
    assert tables_of(stored)


def test_a_figure_that_cannot_be_drawn_costs_the_page_alone(folder, tmp_path, monkeypatch, capsys):
    recipe = find_recipe("figure-loss-shapes")
    record = reproduce_here(recipe, folder).record
    monkeypatch.setitem(sys.modules, "plotly", None)
    written = write_outputs(record, tmp_path)
    assert [path.name for path in written] == ["record.json", "table.md", "table.tex"]
    assert "no report.html: " in capsys.readouterr().err


def test_finished_runs_are_left_alone(folder):
    recipe = find_recipe("table3-components")
    reproduce_here(recipe, folder)
    runs = plan_recipe(recipe, "smoke", seeds=1, folder=folder).runs
    stamps = [run.folder.done_file.stat().st_mtime_ns for run in runs]
    reproduce_here(recipe, folder)
    assert [run.folder.done_file.stat().st_mtime_ns for run in runs] == stamps


def test_printed_margins_stand_beside_measured_ones(folder):
    record = reproduce_here(find_recipe("table-margins"), folder).record
    rows = tables_of(record)[0].rows
    assert [row["paper_hard"] for row in rows] == ["0.093", "0.289"]
    assert [row["paper_degrees"] for row in rows] == ["58.4", "81.8"]
    for row, result in zip(rows, record.blocks[0].rows, strict=True):
        assert float(row["average"]) == pytest.approx(result.extras["average"], abs=5e-4)
        assert -1.0 <= result.extras["average"] <= 1.0
        assert 0.0 < result.extras["degrees"] <= 180.0


def test_spreads_on_mnist_are_those_of_the_training_features(folder):
    record = reproduce_here(find_recipe("table-mnist-collapse"), folder).record
    extras = record.blocks[0].rows[0].extras
    ratios = [s / m for s, m in zip(extras["spread"], extras["mean_norm"], strict=True)]
    assert extras["ratio"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert all(value > 0 for value in extras["spread"])
    assert tables_of(record)[0].rows[0]["paper_spread"] == 0.0041


def test_spreads_are_noted_at_every_evaluation(folder):
    record = reproduce_here(find_recipe("figure-spread-evolution"), folder).record
    curves = record.figure["methods"]["MR²"]
    assert curves["epochs"] == [1]
    assert all(math.isfinite(curves[tier][0]) for tier in ("easy", "medium", "hard"))


def test_loss_curves_lie_above_the_zero_one_loss_and_end_at_gamma(folder):
    figure = reproduce_here(find_recipe("figure-loss-shapes"), folder).record.figure
    zero_one = figure["losses"]["0-1"]
    for values in figure["losses"].values():
        assert all(value >= low for value, low in zip(values, zero_one, strict=True))
    at = dict(zip(figure["margin"], figure["losses"]["Φ_γ, γ = 2"], strict=True))
    assert (at[0.0], at[1.0], at[2.0]) == (1.0, 0.5, 0.0)


@pytest.mark.slow
def test_recipe_runs_in_worker_processes_too(tmp_path):
    recipe = find_recipe("figure-spread-evolution")
    plan = plan_recipe(recipe, "smoke", seeds=1, folder=tmp_path)
    write_sample_files(plan)
    runs = plan.runs
    assert run_all(runs, jobs=1, show=False) == {}
    assert all((run.folder.path / "spread.jsonl").exists() for run in runs)
