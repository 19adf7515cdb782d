"""Records of runs that exist already, as ``compare-methods`` leaves them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from classmargin.cli.main import main
from classmargin.recipes.existing_runs import find_runs, group_runs
from classmargin.recipes.recipe import find_recipe
from classmargin.recipes.record import read_record
from classmargin.recipes.record_pages import half_precision
from classmargin.recipes.run_recipe import from_runs
from classmargin.recipes.train_run import train

from .reproduce_tools import plan_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small):
    """Two seeds of ERM and MR², one of ERM with label smoothing and one with more weight decay."""
    folder = tmp_path_factory.mktemp("compared")
    config = small("loop.epochs=1")
    plans = [
        plan_runs(config, ["erm", "mr2"], 2, folder),
        plan_runs(config, ["erm"], 1, folder, {"erm": {"label_smoothing": 0.1}}),
        plan_runs(small("loop.epochs=1", "optimizer.weight_decay=0.01"), ["erm"], 1, folder),
    ]
    for plan in plans:
        for planned in plan.values():
            for run in planned:
                train(run.config, run.folder.path, show=False)
    return folder


def test_runs_are_grouped_by_method_and_settings_with_plain_erm_first(runs):
    (block,) = group_runs(find_runs([runs]))
    titles = {row.title: [run.config.loop.seed for run in row.runs] for row in block.rows}
    assert titles == {
        "ERM": [0, 1],
        "MR²": [0, 1],
        "ERM, label_smoothing=0.1": [0],
        "ERM, optimizer.weight_decay=0.01": [0],
    }
    assert block.rows[0].title == "ERM"
    assert block.title.startswith("tiny, Small CNN, 1 epoch")


def test_how_the_data_got_here_makes_no_other_row(runs):
    found = [run for run in find_runs([runs]) if run.config.method.name == "mr2"]
    data = replace(found[0].config.data, download=True, skip_corrupt=True, root="/elsewhere")
    found[0] = replace(found[0], config=replace(found[0].config, data=data))
    (block,) = group_runs(found)
    assert [[run.config.loop.seed for run in row.runs] for row in block.rows] == [[0, 1]]


def test_rows_of_a_recipe_bring_their_printed_values_and_others_follow(runs):
    (block,) = group_runs(find_runs([runs]), find_recipe("table3-components"))
    assert [row.key for row in block.rows][:2] == ["erm", "mr2"]
    assert block.rows[1].paper["hard"] == 61.9
    assert [row.paper for row in block.rows[2:]] == [None, None]


def test_the_record_has_means_intervals_paired_changes_and_cost(runs):
    outcome = from_runs([runs], find_recipe("table3-components"), note="as run", bootstrap=200)
    (block,) = outcome.record.blocks
    assert outcome.record.scale == "custom"
    erm, mr2 = block.rows[:2]
    assert [run.seed for run in mr2.runs] == [0, 1]
    mean = sum(run.scores["overall"] for run in mr2.runs) / 2
    assert mr2.values["overall"][0] == pytest.approx(mean)
    assert mr2.change.crossfit["overall"][0] == pytest.approx(mean - erm.values["overall"][0])
    assert mr2.change.runs == (2, 2)
    low, high = (mr2.change.crossfit["hard"][k] for k in (1, 2))
    assert low <= mr2.change.crossfit["hard"][0] <= high
    assert mr2.std["overall"] == pytest.approx(
        abs(mr2.runs[0].scores["overall"] - mr2.runs[1].scores["overall"]) / 2**0.5
    )
    assert erm.relative_cost == pytest.approx(1.0)


def test_several_folders_and_copies_are_read_once(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "copy")
    (block,) = group_runs(find_runs([runs, tmp_path / "copy", runs / "runs"]))
    assert len(block.rows[0].runs) == 2


def test_other_data_make_another_block(runs, tmp_path, small):
    other = plan_runs(small("loop.epochs=1", "data.fraction=0.5"), ["erm"], 1, tmp_path)["erm"][0]
    train(other.config, other.folder.path, show=False)
    blocks = group_runs(find_runs([runs, tmp_path]))
    assert [len(block.rows) for block in blocks] == [4, 1]
    assert "50 % of the training data" in blocks[1].title


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no finished run in"):
        find_runs([tmp_path])


def test_the_command_writes_a_record_from_runs_and_a_page_from_records(runs, tmp_path, capsys):
    words = ["--from-runs", str(runs), "--note", "a note of ours", "--out", str(tmp_path / "a")]
    assert main(["reproduce", "table3-components", *words, "--format", "markdown"]) == 0
    assert "label" in capsys.readouterr().out
    assert main(["reproduce", "--from-runs", str(runs), "--out", str(tmp_path / "b"), "--format", "json"]) == 0
    capsys.readouterr()
    assert read_record(tmp_path / "a").recipe == "table3-components"
    assert read_record(tmp_path / "b").recipe == "custom"
    for name in ("record.json", "table.md", "table.tex", "report.html"):
        assert (tmp_path / "a" / name).exists(), name
    assert main(["reproduce", "--render", str(tmp_path / "a"), "--render", str(tmp_path / "b/record.json")]) == 0
    page = capsys.readouterr().out
    assert page.count("\n## ") + page.startswith("## ") == 2
    assert "a note of ours" in page


def test_comparing_the_predictions_beside_a_record_gives_its_numbers(runs, tmp_path, capsys):
    assert main(["reproduce", "--from-runs", str(runs), "--out", str(tmp_path), "--format", "json"]) == 0
    capsys.readouterr()
    rows = read_record(tmp_path).blocks[0].rows
    files = sorted((tmp_path / "predictions" / "block-1").iterdir())
    models = [[file for file in files if file.name.startswith(f"{row.key.replace(', ', '-')}-seed")] for row in rows]
    assert sum(map(len, models)) == len(files) == 6
    assert main(["compare", *(",".join(map(str, model)) for model in models), "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)["summary"]
    expected = [row.change.crossfit[name] for row in rows[1:] for name in rows[0].values]
    for cell, (change, low, high) in zip(compared[6:], expected, strict=True):
        assert (cell["difference"], cell["low"], cell["high"]) == pytest.approx((change, low, high), abs=1e-4)


def test_logits_in_half_precision_choose_the_same_class():
    logits = np.random.default_rng(0).normal(size=(50, 7)) * 1e-3 + 30.0
    half = half_precision(logits.astype(np.float32))
    assert half.dtype == np.float16
    assert np.array_equal(half.argmax(1), logits.astype(np.float32).argmax(1))


def test_unfinished_runs_are_left_out_and_named(runs, tmp_path, small, capsys):
    (begun,) = plan_runs(small("loop.epochs=1", "loop.seed=0"), ["focal"], 1, tmp_path)["focal"]
    train(begun.config, begun.folder.path, show=False, test=False)
    with pytest.raises(ValueError, match=f"no finished run in .* \\(unfinished: {begun.folder.path.name}\\)"):
        find_runs([tmp_path])
    out = tmp_path / "record"
    assert main(["reproduce", "custom", "--from-runs", str(tmp_path), "--from-runs", str(runs), "--out", str(out)]) == 0
    assert f"left out, unfinished: {begun.folder.path.name}\n" in capsys.readouterr().err
    assert read_record(out).left_out == {begun.folder.path.name: "unfinished"}
    assert main(["reproduce", "custom", "--from-runs", str(runs), "--out", str(out)]) == 0
    assert "left out" not in capsys.readouterr().err
    assert read_record(out).left_out == {}, "the record of the same recipe is written anew"


def test_a_comparison_of_runs_has_a_folder_with_one_word(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "custom", "--from-runs", str(runs)]) == 0
    assert main(["reproduce", "table3-components", "--from-runs", str(runs)]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "custom",
        "table3-components-custom",
    ]


def test_a_record_replaces_nothing_but_a_record_of_the_same_recipe(runs, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    words = ["--from-runs", str(runs), "--out"]
    assert main(["reproduce", "custom", *words, str(tmp_path)]) == 2
    assert f"{tmp_path} exists and holds no record; choose another --out" in capsys.readouterr().err
    assert main(["reproduce", "custom", *words, str(tmp_path / "out")]) == 0
    before = (tmp_path / "out" / "record.json").read_bytes()
    capsys.readouterr()
    assert main(["reproduce", "table3-components", *words, str(tmp_path / "out")]) == 2
    assert "holds a record of custom, not of table3-components" in capsys.readouterr().err
    assert (tmp_path / "out" / "record.json").read_bytes() == before


def test_a_record_that_cannot_be_made_leaves_no_folder(tmp_path, capsys):
    assert main(["reproduce", "custom", "--from-runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
