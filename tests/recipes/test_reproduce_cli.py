"""``classmargin reproduce`` and what ``classmargin list recipes`` says about it."""

from __future__ import annotations

import json

import pytest

from classmargin.cli.main import main
from classmargin.recipes import run_recipe as run_module
from classmargin.recipes.recipe import list_recipes
from classmargin.recipes.record import read_record

from .reproduce_tools import train_here


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(run_module, "run_all", train_here)


def test_a_recipe_is_run_and_shown_in_every_format(tmp_path, capsys):
    words = [
        "reproduce",
        "table-per-class-cifar10",
        "--scale",
        "smoke",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "Accuracy of every class" in printed.out
    assert "71.6" in printed.out, "what the paper prints for the cat"
    assert f"written to {tmp_path}" in printed.err
    for name in ("record.json", "table.md", "table.tex", "report.html"):
        assert (tmp_path / name).stat().st_size > 0
    assert main([*words, "--format", "latex"]) == 0
    assert "\\toprule" in capsys.readouterr().out
    assert main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "table-per-class-cifar10"


def test_a_figure_is_one_page_and_its_data(tmp_path, capsys):
    assert main(["reproduce", "figure-loss-shapes", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert "Loss at a margin u" in capsys.readouterr().out
    assert len(read_record(tmp_path).figure["margin"]) == 161
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) > 1_000_000, "plotly is inside, so that the page opens offline"
    assert 'src="http' not in page


def test_the_record_keeps_the_command(tmp_path, monkeypatch):
    words = ["reproduce", "figure-loss-shapes", "--scale", "smoke", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["classmargin", *words])
    monkeypatch.chdir(tmp_path.parent)
    assert main(words) == 0
    kept = read_record(tmp_path).command
    assert kept == f"classmargin reproduce figure-loss-shapes --scale smoke --out {tmp_path.name}"


def test_a_kept_command_names_no_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    words = [
        "--data",
        str(tmp_path / "data" / "a.npz"),
        f"--out={tmp_path / 'o'}",
        "--root",
        "/elsewhere/deep",
    ]
    kept = run_module.portable_command(words)
    assert kept == "--data a.npz --out=o --root deep"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel3-components"], "did you mean 'table3-components'"),
        ([], "NAME of a recipe is missing"),
        (["custom"], "NAME of a recipe is missing"),
        (["table3-components", "--scale", "big"], "scale must be one of"),
        (["table3-components", "--data", "nowhere.npz"], "nowhere"),
        (
            ["table3-components", "--scale", "smoke", "--set", "mr2.mean_margn=2"],
            "did you mean 'mean_margin'",
        ),
        (["table3-components", "--rows", "mr3"], "--rows must be one of"),
        (["table-fine-grained", "--rows", "mr3"], "--rows must be one of erm, mr2; got"),
        (["table2-imagenet", "--checkpoint", "clip"], "BACKBONE=FILE"),
        (["table2-imagenet", "--checkpoint", "clip-vit-b32=nofile.pt"], "there is no file nofile.pt"),
        (["--from-runs", "nofolder"], "no finished run"),
        (["--render", "nofolder"], "there is no record"),
    ],
)
def test_bad_words_end_with_code_2_and_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path))
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_failed_runs_are_told_and_kept_in_the_record(tmp_path, monkeypatch, capsys):
    def some_fail(runs, **_):
        failed = train_here(runs[:1])
        return {**failed, **{run.title: "it diverged" for run in runs[1:]}}

    monkeypatch.setattr(run_module, "run_all", some_fail)
    words = ["reproduce", "table-long-tail", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path)]
    assert main(words) == 3
    assert "it diverged" in capsys.readouterr().err
    assert len(read_record(tmp_path).failed) == 2
    assert len(read_record(tmp_path).blocks[0].rows) == 1


def test_list_shows_every_recipe_with_its_question(capsys):
    assert main(["list", "recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    for recipe in list_recipes():
        assert rows[recipe.name]["question"] == recipe.question
        assert recipe.name in rows[recipe.name]["command"]


# The folder


SMOKE = ["--scale", "smoke", "--seeds", "1"]


def test_the_same_recipe_goes_on_in_its_folder_however_the_folder_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "table2-imagenet", *SMOKE, "--blocks", "clip-vit-b32"]
    monkeypatch.setattr(run_module, "run_all", lambda runs, **_: train_here(runs[:1]))
    assert main([*words, "--out", "out"]) == 0
    assert main([*words, "--out", str(tmp_path / "out")]) == 0


def test_another_setting_in_the_folder_is_refused(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert main(["reproduce", "table-long-tail", *SMOKE, *out]) == 0
    before = (tmp_path / "out" / "record.json").read_bytes()
    for words, said in (
        (["table-long-tail", *SMOKE, "--epochs", "2"], "loop.epochs: 1 -> 2"),
        (["table-long-tail", *SMOKE, "--set", "mr2-la.mean_margin=2"], "method.mean_margin: 1.0 -> 2"),
    ):
        capsys.readouterr()
        assert main(["reproduce", *words, *out]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "choose another --out" in error
    assert (tmp_path / "out" / "record.json").read_bytes() == before
    assert main(["reproduce", "table-long-tail", *SMOKE, "--rows", "mr2-la", *out]) == 0


def test_recipes_in_one_folder_share_equal_runs_and_keep_their_records_apart(tmp_path):
    out = tmp_path / "out"
    first = ["reproduce", "table3-components", *SMOKE, "--rows", "mr2", "--out", str(out)]
    assert main(first) == 0
    stamps = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/done")}
    assert len(stamps) == 2
    assert main(["reproduce", "table1-cifar100", *SMOKE, "--rows", "mr2", "--out", str(out)]) == 0
    assert {file: file.stat().st_mtime_ns for file in out.glob("runs/*/done")} == stamps, "nothing was trained again"
    assert read_record(out).recipe == "table3-components"
    assert read_record(out / "table1-cifar100-smoke").recipe == "table1-cifar100"
    assert main(["reproduce", "figure-loss-shapes", *SMOKE, "--out", str(out)]) == 0
    assert main(first) == 0


def test_every_objective_is_a_row_of_its_own(tmp_path, capsys):
    words = ["reproduce", "table3-components", *SMOKE, "--rows", "mr2", "--objective", "paper,recommended"]
    assert main([*words, "--out", str(tmp_path), "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    rows = {row["key"]: row for row in record["blocks"][0]["rows"]}
    assert list(rows) == ["erm", "mr2", "mr2, recommended"]
    assert rows["mr2"]["settings"]["method"]["preset"] == "paper"
    assert rows["mr2"]["paper"]["hard"] == 61.9
    assert rows["mr2, recommended"]["paper"] is None, "the paper did not print it"
    assert any("can collapse on features that are not normalised" in doubt for doubt in record["doubts"])


def test_the_grid_of_the_paper_is_chosen_on_validation_before_the_final_runs(tmp_path, monkeypatch, capsys):
    from classmargin.recipes import validation_search
    from classmargin.recipes.train_run import validation_accuracies

    monkeypatch.setattr(validation_search, "run_all", train_here)
    monkeypatch.setitem(validation_search.PAPER_GRID["mr2-uniform"], "mean_margin", (1.0, 3.0))
    words = ["reproduce", "table3-components", *SMOKE, "--rows", "mr2-uniform", "--select"]
    assert main([*words, "--out", str(tmp_path), "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    first_wins_a_tie = lambda run: "mean_margin = 3.0" in (run / "config.toml").read_text()
    tried = sorted(tmp_path.glob("selection/runs/*"), key=first_wins_a_tie)
    assert len(tried) == 2
    assert not list(tmp_path.glob("selection/runs/*/predictions.npz")), "the test set plays no part"
    best = max(tried, key=lambda run: tuple(validation_accuracies(run)[name] for name in ("overall", "hard")))
    margin = 3.0 if "mean_margin = 3.0" in (best / "config.toml").read_text() else 1.0
    assert f"cifar100/mr2-uniform: mean_margin={margin:g}" in record["note"]
    (final,) = tmp_path.glob("runs/mr2-uniform-*")
    assert f"mean_margin = {margin}" in (final / "config.toml").read_text()
    stamps = [run.stat().st_mtime_ns for run in sorted(tried)]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert [run.stat().st_mtime_ns for run in sorted(tried)] == stamps, "the same command searches nothing again"


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    for name in ("table-long-tail", "figure-loss-shapes"):
        assert main(["reproduce", name, *SMOKE, "--out", str(tmp_path)]) == 2
        assert f"{tmp_path} exists and holds no re" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_made_up_files_are_not_said_to_lack_classes_nor_warm_ups_to_be_long(tmp_path, capsys):
    assert main(["reproduce", "table3-components", *SMOKE, "--rows", "mr2", "--out", str(tmp_path)]) == 0
    error = capsys.readouterr().err
    assert "classes, but these files hold" not in error
    assert "warm-up" not in error


def test_permission_to_download_is_used_before_the_data_are_missed(tmp_path, monkeypatch, capsys):
    asked = []

    def load(name, **more):
        asked.append((name, more["download"]))
        raise ValueError("fetched enough")

    monkeypatch.setattr("classmargin.recipes.run_parts.load_data", load)
    words = ["reproduce", "table1-cifar100", "--scale", "paper", "--root", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "(--download)" in capsys.readouterr().err
    assert asked == []
    assert main([*words, "--out", str(tmp_path / "out"), "--download"]) == 2
    assert "fetched enough" in capsys.readouterr().err
    assert asked == [("cifar100", True)]
    assert not (tmp_path / "out").exists()
