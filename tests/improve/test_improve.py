"""A whole search: what is tried, what is chosen by, what is read once, what is written, and how it goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import classmargin
from classmargin.cli.main import main
from classmargin.data import load_data
from classmargin.evaluation.prediction_files import read_predictions
from classmargin.recipes.improve import improving
from classmargin.recipes.improve.improving import improve
from classmargin.recipes.train_run import train
from classmargin.training.run_folder import RunFolder
from classmargin.training.stopping import StoppedError

# No backbone, no word on embeddings, no preset.
NOTHING = (None, False, None)


def runs_of(folder, prefix=""):
    return sorted(path for path in (folder / "runs").iterdir() if path.name.startswith(prefix))


def test_the_package_exports_both_names():
    assert classmargin.improve is improve
    assert classmargin.Improvement.__name__ == "Improvement"


def test_every_remedy_has_a_row_and_the_stage_that_it_reached(searched):
    table = searched[0].table
    assert {"mr2", "relabel", "drop-doubted", "ensemble", "distillation", "offsets"} <= set(table["remedy"])
    assert set(table["stage"]) <= {"combined", "finalist", "screened", "tuning", "not tried"}
    tried = table[table["stage"] != "not tried"]
    assert tried["objective"].notna().all()
    assert (tried["hard_low"] <= tried["hard"]).all()


def test_folds_take_turns_where_validation_samples_would_be_few(features, tmp_path, asked):
    asked |= {"remedies": "label-smoothing,relabel,ensemble,offsets", "budget": "60 runs"}
    found = improve(str(features), out=tmp_path / "out", **asked)
    assert found.facts["folds"] == 5
    assert found.facts["samples"] == {"train": 240, "validation": 0, "test": 120}
    assert "cross-validated predictions of the training samples (5 folds)" in found.notes[1]
    pooled = read_predictions(next((tmp_path / "out" / "runs").glob("baseline-seed0-*-folds.npz")))
    assert np.array_equal(pooled.sample_id, np.arange(240))
    tested = {run.name for run in runs_of(tmp_path / "out") if (run / "predictions.npz").exists()}
    assert tested
    assert not any("-fold" in name for name in tested)
    (note,) = found.table.loc[found.table["remedy"] == "relabel", "note"]
    assert note == "needs held-out validation samples, and these data are cross-validated"


def test_an_augmentation_is_dropped_for_the_classes_it_hurts(tmp_path, asked):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 100), ("test", 30)):
        labels = np.repeat(np.arange(4), count)
        images = rng.integers(0, 60, size=(len(labels), 16, 16, 3))
        for place, label in enumerate(labels):  # a bright bar: left or right, which mirroring mixes up, top or bottom
            images[place][
                ((slice(None), slice(0, 4)), (slice(None), slice(12, 16)), slice(0, 4), slice(12, 16))[label]
            ] += 150
        arrays |= {f"x_{part}": images.astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "bars.npz", class_names=np.array(["left", "right", "top", "bottom"]), **arrays)
    asked |= {"remedies": "class-augmentation", "budget": "6 runs"}
    asked["settings"] = {"loop": {"epochs": 3, "batch_size": 40}, "machine": {"accelerator": "cpu"}}
    found = improve(str(tmp_path / "bars.npz"), out=tmp_path / "out", **asked)
    (row,) = found.table[found.table["remedy"] == "class-augmentation"].to_dict("records")
    assert row["title"].startswith("Augmentation by class: not for left")
    config = RunFolder(runs_of(tmp_path / "out", "class-augmentation")[0]).read_config()
    assert "left" in config.data.spared_classes


def test_the_test_set_is_read_for_the_baseline_and_the_choice_alone(searched):
    found, folder = searched
    tested = {run.name for run in runs_of(folder) if (run / "done").exists()}
    assert {run.name for run in found.winner} <= tested
    allowed = {run.name for run in runs_of(folder, "baseline")} | {run.name for run in found.winner}
    choices = {name.split("-seed")[0] for name in tested} - {"baseline"}
    assert choices <= {run.name.split("-seed")[0] for run in found.winner}
    assert len(allowed) >= len(tested) - found.facts["seeds"]


def test_runs_keep_their_predictions_on_validation_and_never_see_the_test_set(searched):
    _, folder = searched
    for run in runs_of(folder, "label-smoothing"):
        validation = read_predictions(run / "validation.npz")
        assert len(validation.labels) == 48  # a fifth of 4 x 60
        if not (run / "done").exists():
            assert not (run / "predictions.npz").exists()


def test_doubt_comes_from_folds_of_the_training_samples_alone(searched):
    _, folder = searched
    held_out = read_predictions(runs_of(folder, "label-smoothing")[0] / "validation.npz").sample_id
    folds = [run for run in runs_of(folder, "baseline") if "-fold" in run.name]
    seen = np.concatenate([read_predictions(run / "validation.npz").sample_id for run in folds])
    assert len(seen) == len(set(seen)) == 192
    assert not set(seen) & set(held_out)
    assert not any((run / "predictions.npz").exists() for run in folds)
    (labels,), (left_out,) = folder.glob("labels-*.npz"), folder.glob("left-out-*.csv")
    targets = read_predictions(labels)
    changed = targets.sample_id[targets.probabilities.max(axis=1) < 1]
    assert 0 < len(changed) < 192
    np.testing.assert_allclose(targets.probabilities.sum(axis=1), 1, atol=1e-5)
    dropped = [int(line.split(",")[0]) for line in left_out.read_text().splitlines()[1:]]
    assert set(dropped) >= set(changed)
    (run,) = runs_of(folder, "drop-doubted-seed0")
    assert str(left_out) in (run / "config.toml").read_text()


def test_the_answer_is_that_of_the_test_set(searched):
    found, _ = searched
    assert found.answer in ("better", "a trade", "no clear gain")
    if found.choice is None:
        assert found.test == {}
        assert found.answer == "no clear gain"
    else:
        assert (found.answer != "no clear gain") == (found.test["objective"][1] > 0)
    baseline = found.audits["baseline"]
    run = RunFolder(runs_of(found.folder, "baseline")[0])
    assert baseline.num_samples == 120
    assert run.started


def test_page_markdown_and_json_say_the_same(searched):
    found, folder = searched
    page = (folder / "report.html").read_text()
    record = json.loads((folder / "improvement.json").read_text())
    assert record["verdict"] == found.verdict
    assert record["answer"] == found.answer
    assert len(record["remedies"]) == len(found.table)
    assert found.verdict[:40] in page
    assert "default-src 'none'" in page  # it may not load anything from elsewhere
    assert 'id="figure-pareto"' in page
    assert found.verdict[:20] in (folder / "improvement.md").read_text()


def test_the_model_takes_inputs_and_gives_scores(searched):
    scores, _ = searched[0].model(torch.zeros(3, 6))
    assert scores.shape == (3, 4)


def test_the_same_call_trains_nothing_again(searched, features, monkeypatch, tmp_path, asked):
    found, folder = searched
    copy = tmp_path / "out"
    shutil.copytree(folder, copy)
    monkeypatch.setattr("classmargin.recipes.train_run.Loop", None)  # whoever trains fails
    again = improve(str(features), out=copy, **asked)
    # Labels of relabelled and distilled runs lie in the folder, so that those two are other runs in another place.
    assert again.facts == found.facts


def test_an_interrupted_search_loses_no_finished_run(features, tmp_path, monkeypatch, asked):
    made = []

    def stop_after_two(config, folder, **options):
        if len(made) == 2:
            raise StoppedError("stopped by signal 2; the same command resumes", 130)
        made.append(str(folder))
        return train(config, folder, **options)

    asked = {**asked, "remedies": "label-smoothing", "budget": "4 runs"}
    with monkeypatch.context() as patched:
        patched.setattr("classmargin.recipes.train_run.train", stop_after_two)
        with pytest.raises(StoppedError):
            improve(str(features), out=tmp_path / "out", **asked)
    first = list(made)
    begun = []
    monkeypatch.setattr(
        "classmargin.recipes.train_run.train",
        lambda config, folder, **options: (
            begun.append((str(folder), options["test"])) or train(config, folder, **options)
        ),
    )
    found = improve(str(features), out=tmp_path / "out", **asked)
    assert found.verdict
    assert not {folder for folder, test in begun if not test} & set(first)


def test_arrays_are_a_data_set(tmp_path, asked):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 40)
    inputs = np.eye(5)[labels] + 0.3 * rng.normal(size=(120, 5))
    asked = {**asked, "remedies": "label-smoothing", "budget": "3 runs"}
    found = improve((inputs, labels), out=tmp_path / "out", **asked)
    assert found.facts["classes"] == 3
    assert found.facts["samples"]["test"] == 24


def test_predictions_of_any_model_are_compared_on_the_same_test_samples(features, tmp_path, asked):
    with np.load(features) as data:
        labels = data["y_test"]
    np.savez(tmp_path / "mine.npz", labels=labels, predictions=np.zeros_like(labels), num_classes=4)
    asked = {**asked, "remedies": "label-smoothing", "budget": "3 runs"}
    found = improve(str(features), baseline=tmp_path / "mine.npz", out=tmp_path / "out", **asked)
    assert found.comparisons["the given baseline"].delta("overall")[0] > 0.2
    assert "Against the given baseline: +" in found.verdict

    np.savez(tmp_path / "other.npz", labels=labels[::-1], predictions=labels)
    with pytest.raises(ValueError, match="was not tested on the test samples of toy: 120 labels there, 120 here"):
        improve(str(features), baseline=tmp_path / "other.npz", out=tmp_path / "none", **asked)
    assert not (tmp_path / "none").exists()


def test_given_predictions_in_another_order_are_put_in_that_of_the_test_set(features, tmp_path):
    bundle = load_data(str(features))
    labels, index = bundle.test.labels.numpy(), bundle.test.index.numpy()
    order = np.random.default_rng(0).permutation(len(labels))
    np.savez(tmp_path / "mine.npz", labels=labels[order], predictions=labels[order], sample_id=index[order])
    assert (improving._given_scores(tmp_path / "mine.npz", bundle).argmax(axis=1) == labels).all()


def test_a_finished_run_gives_the_settings_and_is_a_second_baseline(searched, tmp_path, asked):
    found, folder = searched
    run = next(run for run in runs_of(folder, "baseline") if (run / "done").exists())
    again = improve(
        baseline=run,
        out=tmp_path / "out",
        **{**asked, "remedies": "label-smoothing", "budget": "3 runs", "settings": None},
    )
    assert again.facts["samples"] == found.facts["samples"]
    change = again.comparisons["the given baseline"].delta("overall")
    assert change[1] <= change[0] <= change[2]
    assert "Against the given baseline:" in again.verdict


def write_scores(path, shift, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), 200)
    logits = np.eye(3)[labels] * 2 + rng.normal(size=(600, 3)) + np.array([0.0, 0.0, shift])
    np.savez(path, labels=labels, logits=logits.astype(np.float32), class_names=np.array(["a", "b", "c"]))
    return path


def test_predictions_alone_get_class_offsets_labelled_as_a_trade(tmp_path, capsys):
    first, second = write_scores(tmp_path / "val.npz", -2, 0), write_scores(tmp_path / "test.npz", -2, 1)
    words = [
        "improve",
        "--baseline",
        f"{first},{second}",
        "--out",
        str(tmp_path / "out"),
        "--keep",
        "none",
        "--format",
        "json",
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] == "a trade"
    assert found["verdict"].startswith("A trade: Class offsets for")
    assert found["test"]["objective"][1] > 0.1
    assert found["offsets"][2] == max(found["offsets"])
    assert (tmp_path / "out" / "offsets.csv").read_text().startswith("class_name,offset\na,")
    assert (tmp_path / "out" / "report.html").exists()


def test_predictions_alone_need_no_torch(tmp_path):
    first, second = write_scores(tmp_path / "val.npz", -2, 0), write_scores(tmp_path / "test.npz", -2, 1)
    words = ["improve", "--baseline", f"{first},{second}", "--out", str(tmp_path / "out")]
    script = f"import sys; from classmargin.cli.main import main; assert main({words!r}) == 0; assert 'torch' not in sys.modules"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--data must be a data set, or --baseline a run or predictions; got neither"),
        (["--data", "TOY", "--budget", "2 runs"], "budget must be at least 3 runs"),
        (["--data", "TOY", "--budget", "soon"], "budget must be a time like 30m"),
        (["--data", "TOY", "--remedies", "mr3"], "did you mean 'mr2'"),
        (["--data", "TOY", "--objective", "best"], "objective must be one of"),
        (["--data", "TOY", "--keep", "easy"], "keep must be NAME:POINTS"),
        (
            ["--data", "fashion-mnist-mini", "--embeddings"],
            "embeddings must be a matrix of features, got images",
        ),
        (["--data", "nowhere.npz"], "nowhere.npz"),
        (["--data", "TOY", "--baseline", "nowhere.npz"], "nowhere.npz"),
        (["--data", "TOY", "--baseline", "a.npz,b.npz"], "data must be left out"),
        (["--baseline", "a.npz,b.npz"], "a.npz"),
        (["--baseline", "a.npz,b.npz,c.npz"], "got 3"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(words, message, features, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [str(features) if word == "TOY" else word for word in words]
    assert main(["improve", *given, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("error:") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_question_is_refused(searched, features, asked):
    _, folder = searched
    with pytest.raises(ValueError, match="ask something else"):
        improve(str(features), out=folder, **{**asked, "objective": "worst"})


def test_a_time_that_one_run_uses_up_is_said_and_the_run_is_kept(features, tmp_path, asked):
    with pytest.raises(ValueError, match="the budget is too small: one run took"):
        improve(str(features), out=tmp_path / "out", **{**asked, "budget": "0.001s"})
    assert runs_of(tmp_path / "out", "baseline")


def test_features_get_a_perceptron_and_images_the_default_network(features):
    config = improving._baseline_config(str(features), None, NOTHING, {}, None)
    assert (config.backbone.name, config.optimizer.name) == ("mlp", "adamw")
    config = improving._baseline_config("fashion-mnist-mini", None, NOTHING, {}, None)
    assert config.backbone.name == "small-cnn"
    assert not config.machine.report


def test_a_run_folder_gives_settings_and_data(searched):
    _, folder = searched
    run = runs_of(folder, "label-smoothing")[0]
    config = improving._baseline_config(None, run, NOTHING, {}, None)
    assert config.method.options["label_smoothing"] == 0.1
    assert config.loop.epochs in (1, 2)
