"""Several methods and seeds: planning, the pool of processes, the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from classmargin.cli.main import main
from classmargin.data import load_data
from classmargin.evaluation.auditing import audit
from classmargin.recipes import run_recipe as module
from classmargin.recipes.out_folder import claim_plan_folder
from classmargin.recipes.recipe_plan import plan_comparison
from classmargin.recipes.record import accuracy_table, change_table
from classmargin.recipes.record_pages import tables_of, verdict_of, write_comparison
from classmargin.recipes.run_options import method_names, split_overrides
from classmargin.recipes.run_recipe import headline_values, reproduce
from classmargin.recipes.runner import PlannedRun, run_all
from classmargin.recipes.train_run import train

from .reproduce_tools import plan_runs, train_here


def test_every_run_has_a_folder_named_by_what_it_computes(tmp_path, small):
    plan = plan_runs(small(), ["erm", "mr2"], 2, tmp_path, {"mr2": {"mean_margin": 3.0}})
    names = [run.folder.path.name for runs in plan.values() for run in runs]
    assert len(set(names)) == 4
    assert names[0].startswith("erm-seed0-")
    again = plan_runs(small("machine.threads=2"), ["erm", "mr2"], 2, tmp_path)
    assert again["erm"][0].folder.path.name == names[0], "every run of a comparison has one thread"
    assert again["mr2"][0].folder.path.name != names[2], "hyper-parameters do"
    assert plan["mr2"][0].config.method.options["mean_margin"] == 3.0


def test_unknown_and_repeated_methods_are_refused_before_anything_runs(tmp_path, small):
    with pytest.raises(ValueError, match="did you mean 'mr2'"):
        plan_runs(small(), ["erm", "mr3"], 1, tmp_path)
    with pytest.raises(ValueError, match="must be different"):
        plan_runs(small(), ["erm", "erm"], 1, tmp_path)


def test_all_means_every_method():
    assert {"erm", "mr2", "lff", "ldam-drw"} <= set(method_names("all"))


def test_hyperparameters_of_one_method_are_told_apart():
    shared, own = split_overrides(["mr2.mean_margin=2", "loop.epochs=3"], ["erm", "mr2"])
    assert shared == ["loop.epochs=3"]
    assert own == {"mr2": {"mean_margin": 2}}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("comparison")
    plan = plan_comparison(small("loop.epochs=1"), ["erm", "mr2"], 2, folder)
    return folder, plan.blocks[0], reproduce(plan, engine="inline", show=False)


def test_the_table_has_means_over_seeds_with_intervals_around_them(comparison):
    _, block, result = comparison
    for row, method in zip(block.rows, result.record.blocks[0].rows, strict=True):
        tested = [json.loads(run.folder.done_file.read_text())["test"]["overall"] for run in row.runs]
        runs = [run.scores for run in method.runs]
        assert [run["overall"] for run in runs] == pytest.approx(tested)
        for metric in ("overall", "easy", "medium", "hard", "worst"):
            value, low, high = method.values[metric]
            assert value == pytest.approx(np.mean([run[metric] for run in runs]))
            assert low <= value <= high
        assert len(method.runs) == 2
        low, high = method.values["overall"][1:]
        assert 0.0 < high - low < 0.6


def test_the_change_is_paired_with_the_first_method(comparison):
    _, _, result = comparison
    (pair,) = result.measured[0].comparison.comparisons
    assert (pair.baseline_name, pair.candidate_name) == ("ERM", "MR²")
    assert pair.runs == (2, 2)
    erm, mr2 = result.record.blocks[0].rows
    expected = mr2.values["overall"][0] - erm.values["overall"][0]
    assert pair.delta("overall")[0] == pytest.approx(expected)


def test_printed_values_stand_beside_cifar100_alone(tmp_path, small):
    (there,) = plan_comparison(small("data.name=cifar100"), ["erm", "mr2"], 1, tmp_path).blocks
    assert [row.paper is None for row in there.rows] == [False, False]
    (elsewhere,) = plan_comparison(small(), ["erm", "mr2"], 1, tmp_path).blocks
    assert [row.paper for row in elsewhere.rows] == [None, None]


def test_tables_and_verdict_show_every_method(comparison):
    _, _, result = comparison
    record = result.record
    assert [row["title"] for row in accuracy_table(record).rows] == ["ERM", "MR²"]
    assert [row["title"] for row in change_table(record).rows] == ["MR²"]
    titles = [column.title for column in tables_of(record)[0].columns]
    assert titles[2:7] == ["Overall", "Easy", "Medium", "Hard", "Worst"]
    assert titles[7:] == [], "what the paper prints for CIFAR-100 does not stand beside other data"
    assert "MR²" in verdict_of(record)


def test_everything_is_written(comparison, tmp_path):
    _, _, result = comparison
    written = write_comparison(result, tmp_path, title="Test")
    assert [path.name for path in written] == ["comparison.json", "table.md", "table.tex", "report.html"]
    stored = json.loads((tmp_path / "comparison.json").read_text())
    assert [method["name"] for method in stored["methods"]] == ["erm", "mr2"]
    assert "| MR² |" in (tmp_path / "table.md").read_text()
    assert "\\toprule" in (tmp_path / "table.tex").read_text()


def test_one_run_has_the_interval_of_its_own_audit():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(9), 60)
    predictions = np.where(rng.random(540) < np.linspace(0.4, 0.95, 9)[labels], labels, (labels + 1) % 9)
    one = audit(labels, predictions=predictions, num_classes=9, ranking="own")
    values = headline_values([one], "own")
    for metric in ("overall", "easy", "hard", "worst"):
        assert values[metric][0] == pytest.approx(getattr(one, metric))
        assert values[metric][1:] == pytest.approx(one.interval(metric), abs=0.03)


def test_more_seeds_that_agree_narrow_nothing_and_seeds_that_differ_widen():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 100)

    def run(accuracy: float):
        predictions = np.where(rng.random(600) < accuracy, labels, (labels + 1) % 6)
        return audit(labels, predictions=predictions, num_classes=6, bootstrap=100)

    steady = headline_values([run(0.7), run(0.7), run(0.7)], "own")["overall"]
    shaky = headline_values([run(0.5), run(0.7), run(0.9)], "own")["overall"]
    assert shaky[2] - shaky[1] > 2 * (steady[2] - steady[1])


def test_the_pool_trains_skips_reports_failures_and_goes_on(tmp_path, small, capfd):
    plan = plan_runs(small("loop.epochs=1"), ["erm"], 2, tmp_path)
    bad = plan_runs(small("loop.epochs=1", "data.name=nowhere"), ["erm"], 1, tmp_path)["erm"][0]
    runs = [PlannedRun("bad", bad.config, bad.folder), *plan["erm"]]
    train(plan["erm"][0].config, plan["erm"][0].folder.path, show=False)
    stamp = plan["erm"][0].folder.done_file.stat().st_mtime_ns
    failed = run_all(runs, jobs=1)
    assert list(failed) == ["bad"]
    assert "nowhere" in failed["bad"]
    assert all(run.folder.done for run in plan["erm"])
    assert plan["erm"][0].folder.done_file.stat().st_mtime_ns == stamp, "a finished run is left alone"
    said = capfd.readouterr().err
    assert "1 of 3 runs are finished already" in said
    assert "erm seed 1 finished" in said


def test_runs_of_different_devices_are_not_set_side_by_side(tmp_path, small):
    runs = plan_runs(small(), ["erm"], 2, tmp_path)["erm"]
    runs[0].folder.path.mkdir(parents=True)
    session = {"numerics": {"device": "cuda"}}
    runs[0].folder.record_file.write_text(json.dumps({"sessions": [session]}))
    runs[0].folder.done_file.write_text("{}")
    with pytest.raises(ValueError, match=r"on different devices \(cpu, cuda\) .* choose another --out"):
        run_all(runs, jobs=1)
    assert run_all(runs[:1], jobs=1) == {}, "what is finished can be read anywhere"


@pytest.mark.slow
def test_a_killed_comparison_leaves_no_worker_behind_and_goes_on(tmp_path, tiny_images, wait_until, family_of):
    words = [
        "--data",
        str(tiny_images),
        "--methods",
        "erm,mr2",
        "--seeds",
        "2",
        "--jobs",
        "2",
        "--epochs",
        "40",
    ]
    command = [sys.executable, "-m", "classmargin", "compare-methods", *words, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: list(tmp_path.glob("runs/*/checkpoint/step-*")), process)
    workers_ended = family_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(workers_ended)
    assert len(list(tmp_path.glob("runs/*/done"))) < 4, "the workers stopped, they did not finish the comparison"
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert len(list(tmp_path.glob("runs/*/done"))) == 4


def test_the_command_prints_the_table_and_the_verdict(comparison, capsys, tiny_images):
    folder, _, _ = comparison
    words = [
        "compare-methods",
        "--data",
        str(tiny_images),
        "--seeds",
        "2",
        "--epochs",
        "1",
        "--out",
        str(folder),
    ]
    settings = ["loop.batch_size=64", "optimizer.learning_rate=0.05"]
    settings += ["machine.accelerator=cpu"]
    words += [word for setting in settings for word in ("--set", setting)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "4 of 4 runs are finished already" in printed.err
    assert "Accuracy on the test set" in printed.out
    assert "MR²" in printed.out
    assert main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"][1]["name"] == "mr2"


@pytest.mark.parametrize("words", [["--methods", ""], ["--methods", "erm,mr3"], ["--set", "mr2.mean_margn=2"]])
def test_bad_words_end_with_code_2(tmp_path, capsys, words):
    assert main(["compare-methods", *words, "--out", str(tmp_path)]) == 2
    assert "error" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# The folder


@pytest.fixture
def call(monkeypatch, tiny_images, capsys):
    """Return a function that runs a short comparison in this process and returns code and standard error."""
    monkeypatch.setattr(module, "run_all", train_here)
    settings = ["loop.batch_size=64", "machine.accelerator=cpu"]
    common = ["--data", str(tiny_images), "--methods", "erm", "--seeds", "1", "--epochs", "1"]
    common += [word for setting in settings for word in ("--set", setting)]

    def run(folder, *more):
        code = main(["compare-methods", *common, "--out", str(folder), *more])
        return code, capsys.readouterr().err

    return run


def test_the_same_comparison_goes_on_in_its_folder_and_takes_more_seeds_and_methods(tmp_path, call):
    assert call(tmp_path / "out")[0] == 0
    assert call(tmp_path / "out")[0] == 0
    assert call(tmp_path / "out", "--seeds", "2", "--methods", "focal,erm")[0] == 0
    assert len(list(tmp_path.glob("out/runs/*/done"))) == 4


def test_other_settings_in_the_folder_of_a_comparison_are_refused_and_named(tmp_path, call):
    assert call(tmp_path / "out")[0] == 0
    before = (tmp_path / "out" / "comparison.json").read_bytes()
    code, error = call(tmp_path / "out", "--epochs", "2", "--methods", "focal,erm")
    assert code == 2
    assert "ask something else (loop.epochs: 1 -> 2); choose another --out" in error
    assert (tmp_path / "out" / "comparison.json").read_bytes() == before
    # What only one of the two questions has is free, and is remembered for the next.
    assert call(tmp_path / "out", "--methods", "focal")[0] == 0
    assert "loop.epochs: 1 -> 2" in call(tmp_path / "out", "--epochs", "2")[1]


def test_a_folder_of_something_else_is_refused(tmp_path, call, finished_run):
    (tmp_path / "thesis.tex").write_text("precious")
    for folder in (tmp_path, finished_run):
        before = sorted(folder.rglob("*"))
        code, error = call(folder)
        assert code == 2
        assert f"{folder} exists and holds no results of this compare-methods" in error
        assert sorted(folder.rglob("*")) == before


def test_results_of_another_command_are_refused(tmp_path, call):
    assert call(tmp_path / "out")[0] == 0
    assert main(["reproduce", "table3-components", "--scale", "smoke", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out" / "record.json").exists()


def test_a_file_in_the_place_of_the_folder_is_told_once_before_anything_is_trained(tmp_path, call, monkeypatch):
    monkeypatch.setattr(module, "run_all", lambda *_, **__: pytest.fail("nothing may be trained"))
    (tmp_path / "file").write_text("precious")
    code, error = call(tmp_path / "file")
    assert code == 2
    assert f"--out must be a folder, got the file '{tmp_path / 'file'}'" in error
    code, error = call(tmp_path / "file" / "below")
    assert code == 2
    assert "--out must be a folder that can be made" in error
    assert (tmp_path / "file").read_text() == "precious"


def test_a_slip_leaves_no_folder_and_does_not_bind_the_next_command(tmp_path, call, monkeypatch):
    def all_fail(runs, **_):
        return {run.title: "no such data" for run in runs}

    monkeypatch.setattr(module, "run_all", all_fail)
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        code, error = call(tmp_path / name, "--epochs", "7")
        assert code == 2
        assert "no run of ERM was finished" in error
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(module, "run_all", train_here)
    assert call(tmp_path / "mine")[0] == 0


def test_infinite_hyperparameters_are_the_same_question_again(tmp_path, small):
    plan = plan_comparison(small(), ["erm"], 1, tmp_path, {"erm": {"label_smoothing": float("inf")}})
    (run,) = plan.runs
    for _ in range(2):
        claim_plan_folder(plan, tmp_path / "out")
        run.folder.write_config(run.config)
        (tmp_path / "out" / "comparison.json").write_text("{}")


def test_a_damaged_question_is_named(tmp_path, small):
    plan = plan_comparison(small(), ["erm"], 1, tmp_path)
    (tmp_path / "question.json").write_text('{"command": []')
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(ValueError, match=r"question.json does not say what was asked"):
        claim_plan_folder(plan, tmp_path)


def test_a_setting_of_a_method_that_does_not_run_is_refused(tmp_path, call):
    code, error = call(tmp_path / "out", "--set", "mr2.mean_margin=2")
    assert code == 2
    assert "mr2 is not among the methods of this command, erm" in error


def test_permission_to_download_is_used_once_and_is_no_setting_of_the_runs(tmp_path, monkeypatch, capsys):
    asked, bundle = [], load_data("fashion-mnist-mini")
    monkeypatch.setattr("classmargin.recipes.run_parts.load_data", lambda *_, **more: asked.append(more) or bundle)

    def tell(runs, **_):
        return {run.title: f"download={run.config.data.download}" for run in runs}

    monkeypatch.setattr(module, "run_all", tell)
    words = ["compare-methods", "--data", "mnist", "--root", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--seeds", "1", "--download"]) == 2
    assert [more["download"] for more in asked] == [True]
    assert "download=False" in capsys.readouterr().err
    assert main([*words, "--seeds", "1"]) == 2
    assert len(asked) == 1
