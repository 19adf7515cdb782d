from __future__ import annotations

import json
import re

import numpy as np
import pytest

from classmargin.evaluation.prediction_files import read_predictions

QUICK = ("--bootstrap", 200)


def test_table_shows_verdict_headlines_and_the_worst_classes(run, predictions):
    outcome = run("audit", predictions(), "--top", 2, *QUICK)
    assert outcome.code == 0
    assert outcome.err == ""
    assert "the hard third reaches" in outcome.out.splitlines()[0]
    assert "lags behind" in outcome.out or "lag behind" in outcome.out
    assert outcome.out.count("Accuracy of") == 1
    assert "Disparity" not in outcome.out
    assert "Disparity" in run("audit", predictions(), "--full", *QUICK).out


def test_json_is_pure_and_holds_the_unrounded_values(run, predictions):
    path = predictions()
    outcome = run("audit", path, "--format", "json", *QUICK)
    data = json.loads(outcome.out, parse_constant=pytest.fail)
    expected = read_predictions(path).audit(bootstrap=200)
    assert data["overall"] == expected.overall
    assert data["hard"] == expected.hard
    assert len(data["by_class"]) == 5
    assert data["by_class"][0]["spread"] is None  # unknown without features: null, never NaN
    assert data["verdict"]


def test_markdown_and_latex_tell_the_same_numbers(run, predictions):
    path = predictions()
    markdown = run("audit", path, "--format", "markdown", *QUICK).out
    latex = run("audit", path, "--format", "latex", *QUICK).out
    overall = re.search(r"\| all samples \| ([\d.]+)% \|", markdown).group(1)
    assert rf"all samples & {overall}\% &" in latex
    assert "\\toprule" in latex


def test_html_report_is_written_and_announced_on_standard_error(run, predictions, tmp_path):
    out = tmp_path / "deep" / "report.html"
    outcome = run("audit", predictions(), "--out", out, "--format", "json", *QUICK)
    assert outcome.code == 0
    assert outcome.err == f"report written to {out}\n"
    json.loads(outcome.out)
    assert out.read_text("utf-8").startswith("<!doctype html>")


def test_baseline_adds_a_comparison(run, predictions):
    old, new = predictions("old", noise=2.0), predictions("new", noise=0.5)
    data = json.loads(run("audit", new, "--baseline", old, "--format", "json", *QUICK).out)
    assert data["comparison"]["baseline_name"] == "old"
    assert data["comparison"]["candidate_name"] == "new"
    shown = run("audit", new, "--baseline", old, *QUICK).out
    assert "Strongest changes, new against old" in shown


def test_class_names_come_from_a_file(run, predictions, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("ant\nbee\ncat\ndog\nelk\n")
    data = json.loads(run("audit", predictions(), "--class-names", names, "--format", "json", *QUICK).out)
    assert data["class_names"] == ["ant", "bee", "cat", "dog", "elk"]


@pytest.mark.parametrize("rule", ["own", "crossfit", "reference"])
def test_ranking_rule_is_used_and_named(run, predictions, rule):
    words = ["audit", predictions(), "--ranking", rule, "--format", "json", *QUICK]
    if rule == "reference":
        words += ["--baseline", predictions("other", noise=2.0)]
    data = json.loads(run(*words).out)
    assert data["ranking"] == rule


def test_reference_ranking_without_another_model_is_bad_input(run, predictions):
    outcome = run("audit", predictions(), "--ranking", "reference")
    assert outcome.code == 2
    assert "--baseline" in outcome.err


def test_the_seed_decides_the_intervals(run, predictions):
    path = predictions()
    intervals = [
        json.loads(run("audit", path, "--format", "json", "--seed", seed, *QUICK).out)["intervals"]
        for seed in (1, 1, 2)
    ]
    assert intervals[0] == intervals[1]
    assert intervals[0] != intervals[2]


def test_predictions_alone_take_the_classes_that_are_seen_and_say_so(run, predictions, arrays):
    guesses = arrays()["logits"].argmax(axis=1)
    path = predictions(logits=None, predictions=guesses)
    data = json.loads(run("audit", path, "--format", "json", *QUICK).out)
    assert data["num_classes"] == 5
    assert "a class that is absent from both is unknown" in data["notes"][0]
    data = json.loads(run("audit", path, "--num-classes", 7, "--format", "json", *QUICK).out)
    assert data["num_classes"] == 7
    assert [row["n"] for row in data["by_class"]][5:] == [0, 0]


def test_csv_files_are_read(run, tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label,prediction,p_a,p_b\na,a,0.9,0.1\nb,a,0.6,0.4\n")
    data = json.loads(run("audit", path, "--format", "json", *QUICK).out)
    assert data["overall"] == 0.5
    assert data["class_names"] == ["a", "b"]


def test_run_folders_are_read(run, predictions, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    predictions().rename(folder / "predictions.npz")
    assert run("audit", folder, *QUICK).code == 0


def test_features_put_geometry_in_the_report(run, predictions):
    features = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    outcome = run("audit", predictions(features=features), "--full", *QUICK)
    assert "Geometry" in outcome.out
    assert "Neural collapse NC1" in outcome.out


def test_samples_training_predictions_metadata_and_groups_go_together(run, predictions, tmp_path):
    path, train = predictions("test"), predictions("train", noise=0.1)
    samples, table, groups = (tmp_path / name for name in ("samples.csv", "meta.csv", "groups.csv"))
    table.write_text("camera\n" + "a\nb\n" * 100)
    groups.write_text("class,group\n" + "".join(f"{k},{'even' if k % 2 == 0 else 'odd'}\n" for k in range(5)))
    options = ("--train", train, "--samples", samples, "--metadata", table, "--groups", groups)
    outcome = run("audit", path, *options, *QUICK)
    assert outcome.code == 0
    assert outcome.err == f"samples written to {samples}\n"
    assert "Groups of classes" in outcome.out
    assert "Slices where the model is worse" in outcome.out
    result = read_predictions(path).audit(bootstrap=0)
    lines = samples.read_text("utf-8").splitlines()
    assert len(lines) == len(result.samples) + 1
    assert lines[0].startswith("sample_id,class_name,kind,rank,predicted,probability")


def test_flipped_samples_are_written_by_compare(run, predictions, tmp_path):
    old, new = predictions("old", noise=2.0), predictions("new", noise=0.5)
    outcome = run("compare", old, new, "--samples", tmp_path / "flips.csv", "--bootstrap", 200)
    assert outcome.code == 0
    first, second = (read_predictions(path).audit(bootstrap=0) for path in (old, new))
    flips = ((first.labels == first.predictions) != (second.labels == second.predictions)).sum()
    assert len((tmp_path / "flips.csv").read_text("utf-8").splitlines()) == flips + 1


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("--metadata", "sample_id,x\nnobody,1\n", "got none for sample_id"),
        ("--groups", "class,group\nnobody,x\n", "none of them"),
        ("--texts", "one line\n", "one text per sample"),
    ],
)
def test_tables_that_do_not_fit_are_bad_input_that_names_the_file(run, predictions, tmp_path, option, content, words):
    file = tmp_path / "table.csv"
    file.write_text(content)
    if option == "--texts":
        file = file.rename(tmp_path / "table.txt")
    outcome = run("audit", predictions(), option, file, *QUICK)
    assert outcome.code == 2
    assert str(file) in outcome.err
    assert words in outcome.err
