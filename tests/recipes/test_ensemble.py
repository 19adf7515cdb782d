"""Several runs as one classifier: averaged, exported, and distilled into one network."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from classmargin.cli.main import main
from classmargin.data.synthetic import synthetic_features
from classmargin.evaluation.prediction_files import Predictions, read_predictions
from classmargin.recipes.ensemble import average, ensemble, probabilities_of
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.saved_model import run_onnx
from classmargin.recipes.train_run import train
from classmargin.training.run_folder import RunFolder


def member(logits, **changes) -> Predictions:
    values = {"labels": np.array([0, 1]), "sample_id": np.array([5, 6]), "class_names": ("a", "b"), **changes}
    return Predictions("x.npz", logits=np.array(logits, dtype=np.float32), **values)


def test_probabilities_are_averaged_and_not_logits():
    sure, unsure = np.log([[0.9, 0.1], [0.5, 0.5]]), np.log([[0.5, 0.5], [0.3, 0.7]])
    arrays = average({"one": member(sure), "two": member(unsure)})
    np.testing.assert_allclose(np.exp(arrays["logits"]), [[0.7, 0.3], [0.4, 0.6]], rtol=1e-6)
    assert arrays["sample_id"].tolist() == [5, 6]


def test_runs_on_other_samples_are_refused():
    with pytest.raises(ValueError, match="two and one were not tested on the same samples: sample_id differ"):
        average({"one": member(np.eye(2)), "two": member(np.eye(2), sample_id=np.array([5, 7]))})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished runs on the same features."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ensemble")
    bundle = synthetic_features(
        num_classes=4,
        dimensions=6,
        samples_per_class=60,
        mean_distance=2.0,
        class_spread=[1.0, 1.5, 2.0, 2.5],
    ).bundle
    parts = {"train": bundle.train, "test": bundle.test}
    arrays = {f"x_{name}": split.inputs.numpy() for name, split in parts.items()}
    arrays |= {f"y_{name}": split.labels.numpy() for name, split in parts.items()}
    np.savez(folder / "toy.npz", **arrays)
    for seed in (0, 1):
        flags = {
            "data": {"name": str(folder / "toy.npz"), "validation": 0.1},
            "backbone": {"name": "mlp"},
            "loop": {"epochs": 3, "seed": seed, "batch_size": 32},
            "machine": {"accelerator": "cpu", "report": False},
        }
        train(gather_config(flags=flags), folder / f"seed{seed}")
    return [folder / "seed0", folder / "seed1"]


def test_an_ensemble_is_audited_exported_and_distilled(runs, tmp_path, capsys):
    words = ["ensemble", *map(str, runs), "--out", str(tmp_path / "both"), "--distill", "--no-report"]
    assert main([*words, "--method", "mr2", "--set", "loop.epochs=4"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split("/")[-1] for line in out] == ["seed0", "seed1", "ensemble", "student"]

    found = read_predictions(tmp_path / "both" / "predictions.npz")
    alone = [probabilities_of(read_predictions(run / "predictions.npz")) for run in runs]
    np.testing.assert_allclose(probabilities_of(found), np.mean(alone, axis=0), atol=1e-6)
    audit = json.loads((tmp_path / "both" / "audit.json").read_text())
    overall = (np.mean(alone, axis=0).argmax(axis=1) == found.labels).mean()
    assert audit["overall"] == pytest.approx(overall)

    with np.load(runs[0].parent / "toy.npz") as data:
        inputs = torch.from_numpy(data["x_test"])
    scores, features = run_onnx(tmp_path / "both" / "ensemble.onnx", inputs)
    np.testing.assert_allclose(scores.softmax(dim=1).numpy(), probabilities_of(found), atol=1e-5)
    assert features.shape[0] == len(inputs)

    student = RunFolder(tmp_path / "both" / "student").read_config()
    assert (student.method.name, student.loop.epochs) == ("mr2", 4)
    teacher = read_predictions(tmp_path / "both" / "teacher.npz")
    assert student.data.soft_labels == str(tmp_path / "both" / "teacher.npz")
    np.testing.assert_allclose(teacher.probabilities.sum(axis=1), 1.0)

    assert main([*words, "--method", "mr2", "--set", "loop.epochs=4"]) == 0, "finished: nothing is trained again"
    assert capsys.readouterr().out.splitlines() == out


def test_a_student_learns_the_probabilities_of_its_teachers(runs, tmp_path):
    """A network trained on a teacher that is wrong on purpose answers what the teacher says."""
    result = ensemble(runs, tmp_path / "both", onnx=False, report=False)
    assert result.student is None
    with np.load(runs[0].parent / "toy.npz") as data:
        labels = data["y_train"]
    wrong = np.eye(4)[(labels + 1) % 4]
    np.savez(tmp_path / "wrong.npz", labels=labels, probabilities=wrong, sample_id=np.arange(len(labels)))
    config = RunFolder(runs[0]).read_config()
    from classmargin.training.config_reader import with_values

    summary = train(with_values(config, {"data": {"soft_labels": str(tmp_path / "wrong.npz")}}), tmp_path / "student")
    assert summary["test"]["overall"] < 0.2
    found = read_predictions(tmp_path / "student" / "predictions.npz")
    assert (found.logits.argmax(axis=1) == (found.labels + 1) % 4).mean() > 0.6


def test_bad_ensembles_end_in_one_line(runs, tmp_path, capsys):
    cases = {
        "at least two runs": [runs[0]],
        "given twice": [runs[0], runs[0]],
        "no finished run": [runs[0], tmp_path / "empty"],
    }
    (tmp_path / "empty").mkdir()
    for words, given in cases.items():
        assert main(["ensemble", *map(str, given), "--out", str(tmp_path / "x")]) == 2
        assert words in capsys.readouterr().err
    assert main(["ensemble", *map(str, runs), "--method", "mr2", "--out", str(tmp_path / "x")]) == 2
    assert "add --distill" in capsys.readouterr().err
    assert main(["ensemble", *map(str, runs), "--out", str(tmp_path)]) == 2
    assert "not the folder of an ensemble" in capsys.readouterr().err


def test_a_student_of_a_method_without_soft_labels_is_refused(runs, tmp_path):
    with pytest.raises(ValueError, match="method ldam needs one class per sample"):
        ensemble(runs, tmp_path / "x", distill=True, method="ldam", onnx=False, report=False)
