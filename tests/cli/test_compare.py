from __future__ import annotations

import json

import pytest

QUICK = ("--bootstrap", 200)


def test_two_models_are_compared_in_a_sentence_and_tables(run, predictions):
    outcome = run("compare", predictions("old", noise=2.0), predictions("new", noise=0.5), *QUICK)
    assert outcome.code == 0
    assert "new" in outcome.out.splitlines()[0]
    assert "Strongest changes, new against old" in outcome.out


def test_several_models_are_compared_with_the_first(run, predictions):
    files = [predictions(name, noise=noise) for name, noise in (("a", 2.0), ("b", 1.0), ("c", 0.5))]
    data = json.loads(run("compare", *files, "--format", "json", *QUICK).out, parse_constant=pytest.fail)
    assert data["names"] == ["a", "b", "c"]
    pairs = [(each["baseline_name"], each["candidate_name"]) for each in data["comparisons"]]
    assert pairs == [("a", "b"), ("a", "c")]


def test_runs_joined_by_commas_are_one_model(run, predictions):
    old = [predictions(f"old{seed}", noise=2.0 + seed / 10) for seed in range(2)]
    new = predictions("new", noise=0.5)
    outcome = run("compare", ",".join(map(str, old)), new, "--format", "json", *QUICK)
    data = json.loads(outcome.out)
    assert data["comparisons"][0]["runs"] == [2, 1]
    assert data["names"] == ["old0 and 1 more", "new"]


def test_counts_of_several_runs_keep_their_half_samples(run, predictions):
    old = [predictions(f"old{seed}", noise=2.0 + seed) for seed in range(2)]
    new = predictions("new", noise=0.5)
    words = ("compare", ",".join(map(str, old)), new, *QUICK)
    rows = json.loads(run(*words, "--format", "json").out)["comparisons"][0]["by_class"]
    halves = [f"{row['gained_samples']:.1f}" for row in rows if row["gained_samples"] % 1 == 0.5]
    assert halves
    shown = run(*words, "--format", "markdown").out
    assert all(f"| {half} |" in shown for half in halves)


def test_commas_without_files_are_bad_input(run, predictions):
    outcome = run("compare", ",", predictions())
    assert outcome.code == 2
    assert "files joined by commas" in outcome.err


def test_files_of_equal_name_are_told_apart_by_their_folder(run, predictions, tmp_path):
    files = []
    for folder, noise in (("erm", 2.0), ("mr2", 0.5)):
        (tmp_path / folder).mkdir()
        files.append(predictions(noise=noise).rename(tmp_path / folder / "predictions.npz"))
    data = json.loads(run("compare", *files, "--format", "json", *QUICK).out)
    assert data["names"] == ["erm/predictions", "mr2/predictions"]


def test_html_page_is_written(run, predictions, tmp_path):
    out = tmp_path / "compare.html"
    files = [predictions(name, noise=noise) for name, noise in (("a", 2.0), ("b", 1.0), ("c", 0.5))]
    assert run("compare", *files, "--out", out, *QUICK).code == 0
    text = out.read_text("utf-8")
    assert 'id="figure-gains-1"' in text
    assert 'id="figure-gains-2"' in text


@pytest.mark.parametrize("style", ["markdown", "latex"])
def test_other_formats_hold_the_summary(run, predictions, style):
    outcome = run("compare", predictions("a"), predictions("b", noise=0.5), "--format", style, *QUICK)
    assert outcome.code == 0
    assert "hard third of classes" in outcome.out


def test_one_model_is_bad_input(run, predictions):
    outcome = run("compare", predictions())
    assert outcome.code == 2
    assert "at least two models" in outcome.err


def test_the_same_file_twice_is_bad_input(run, predictions):
    path = predictions()
    for words in ((path, path), (f"{path},{path}", predictions("other"))):
        outcome = run("compare", *words)
        assert outcome.code == 2
        assert "more than once" in outcome.err
