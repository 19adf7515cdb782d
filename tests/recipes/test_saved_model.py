"""Using a trained network elsewhere: predict and export."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pytest
import torch

from classmargin.backbones import create_backbone
from classmargin.cli.main import main
from classmargin.data import load_data
from classmargin.recipes.saved_model import DeployedModel, export, load_model, predict, run_onnx, run_script
from classmargin.recipes.train_run import train
from classmargin.training.stopping import StoppedError


@pytest.fixture(scope="module")
def model(finished_run):
    return load_model(finished_run)


@pytest.fixture(scope="module")
def real_images():
    """Real test images as other programs have them: float32 in [0, 1]."""
    return load_data("fashion-mnist-mini").test.inputs[::100].float() / 255


def test_predictions_of_a_loaded_network_are_those_of_the_run(finished_run, model, tiny_images):
    again = predict(model, str(tiny_images))
    with np.load(finished_run / "predictions.npz", allow_pickle=False) as stored:
        for name in stored.files:
            if stored[name].dtype.kind == "f":
                np.testing.assert_allclose(again[name], stored[name], atol=1e-5)
            else:
                assert np.array_equal(again[name], stored[name])


def test_all_splits_have_ids_of_their_own(model, tiny_images):
    arrays = predict(model, str(tiny_images), split="all")
    assert len(arrays["labels"]) == 500
    assert len(set(arrays["sample_id"].tolist())) == 500


@pytest.mark.parametrize("own_part", [True, False], ids=["own validation part", "no validation samples"])
def test_samples_of_parts_with_numbers_of_their_own_are_all_there(tmp_path, model, tiny_images, own_part):
    with np.load(tiny_images) as data:
        arrays = {name: values if name == "class_names" else values[::5] for name, values in data.items()}
    if own_part:
        arrays |= {"x_val": arrays["x_test"], "y_val": arrays["y_test"]}
    else:  # one of a class: nothing can be held out
        rows = [list(arrays["y_train"]).index(label) for label in range(10)]
        arrays |= {"x_train": arrays["x_train"][rows], "y_train": arrays["y_train"][rows]}
    np.savez(tmp_path / "parts.npz", **arrays)
    bundle = load_data(str(tmp_path / "parts.npz"))
    sizes = [len(bundle.split(name)) for name in ("train", "validation", "test")]
    assert bool(sizes[1]) == own_part
    found = predict(model, str(tmp_path / "parts.npz"), split="all")
    assert len(found["labels"]) == sum(sizes)


def test_labels_are_matched_by_class_name(tmp_path, model, tiny_images):
    with np.load(tiny_images) as data:
        arrays = dict(data)
    names = list(arrays["class_names"])
    order = [names.index(name) for name in ("bag", "sneaker", "coat")]
    chosen = {"class_names": np.array(["bag", "sneaker", "coat"])}
    for part in ("train", "test"):
        rows = np.isin(arrays[f"y_{part}"], order)
        chosen[f"x_{part}"] = arrays[f"x_{part}"][rows]
        chosen[f"y_{part}"] = np.array([order.index(label) for label in arrays[f"y_{part}"][rows]])
    np.savez(tmp_path / "three.npz", **chosen)
    found = predict(model, str(tmp_path / "three.npz"))
    assert set(found["labels"].tolist()) == set(order)
    everything = predict(model, str(tiny_images))
    rows = np.isin(everything["labels"], order)
    np.testing.assert_allclose(found["logits"].sum(), everything["logits"][rows].sum(), rtol=1e-4)


def test_unknown_classes_and_other_inputs_are_refused(tmp_path, model):
    inputs, labels = np.zeros((20, 28, 28), dtype=np.uint8), np.arange(20) % 2
    parts = {"x_train": inputs, "y_train": labels, "x_test": inputs, "y_test": labels}
    np.savez(tmp_path / "other.npz", class_names=np.array(["cat", "bag"]), **parts)
    with pytest.raises(ValueError, match="does not know: cat"):
        predict(model, str(tmp_path / "other.npz"))
    colour = np.zeros((20, 28, 28, 3), dtype=np.uint8)
    parts |= {"x_train": colour, "x_test": colour}
    np.savez(tmp_path / "colour.npz", class_names=np.array(["coat", "bag"]), **parts)
    with pytest.raises(ValueError, match=r"reads images of shape \(1, 28, 28\)"):
        predict(model, str(tmp_path / "colour.npz"))


def test_no_run_is_refused_with_words(tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        load_model(tmp_path)


@pytest.mark.parametrize(("file_format", "run"), [("onnx", run_onnx), ("torchscript", run_script)])
def test_an_exported_graph_equals_the_original_on_real_images(tmp_path, model, real_images, file_format, run):
    if file_format == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    path = export(model, tmp_path / "net", file_format)
    scores, features = run(path, real_images)
    with torch.no_grad():
        expected_scores, expected_features = DeployedModel(model).eval()(real_images)
    assert len(real_images) == 50
    torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(features, expected_features, atol=1e-4, rtol=0)
    record = json.loads((tmp_path / f"{path.name}.json").read_text())
    assert record["class_names"][0] == model.record.class_names[0]


def test_the_deployed_network_normalises_as_the_loader_does(finished_run, model, tiny_images):
    bundle = load_data(str(tiny_images))
    with torch.no_grad():
        scores, _ = DeployedModel(model).eval()(bundle.test.inputs.float() / 255)
    with np.load(finished_run / "predictions.npz") as stored:
        np.testing.assert_allclose(scores.numpy(), stored["logits"], atol=1e-4)


def test_exported_weights_load_into_a_fresh_network(tmp_path, model, real_images):
    path = export(model, tmp_path / "net", "safetensors")
    fresh = create_backbone("small-cnn", num_classes=10, in_channels=1, input_size=(28, 28), checkpoint=path).eval()
    with torch.no_grad():
        assert torch.equal(fresh(real_images).logits, model.backbone(real_images).logits)


def test_an_export_that_differs_is_not_kept(tmp_path, model, monkeypatch):
    import classmargin.recipes.saved_model as module

    monkeypatch.setattr(module, "run_script", lambda path, inputs: (torch.zeros(2, 10), torch.zeros(2, 160)))
    with pytest.raises(ValueError, match="differs from the original: scores"):
        export(model, tmp_path / "net", "torchscript")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_onnx_package_names_the_extra(tmp_path, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"classmargin\[export\]"):
        export(model, tmp_path / "net", "onnx")


def test_predict_and_export_from_the_command_line(tmp_path, finished_run, tiny_images, capsys):
    assert main(["predict", str(finished_run), str(tiny_images), "--out", str(tmp_path / "p.npz")]) == 0
    assert "100 samples" in capsys.readouterr().out
    assert main(["export", str(finished_run), "--format", "safetensors", "--out", str(tmp_path / "net")]) == 0
    assert (tmp_path / "net.safetensors").exists()
    assert main(["export", str(finished_run), "--format", "onxx", "--out", str(tmp_path / "net")]) == 2
    assert "did you mean 'onnx'" in capsys.readouterr().err
    assert main(["predict", str(finished_run), "tinny", "--out", str(tmp_path / "p.npz")]) == 2


@pytest.mark.parametrize("method", ["lgm", "logit-adjustment", "lff", "supcon"])
def test_every_prediction_rule_survives_saving(tmp_path, small, method, tiny_images):
    """LGM scores by distance, logit adjustment may shift, LfF and SupCon carry modules of their own."""
    train(small("loop.epochs=1", method=method), tmp_path / "run", show=False)
    again = predict(load_model(tmp_path / "run"), str(tiny_images))
    with np.load(tmp_path / "run" / "predictions.npz") as stored:
        np.testing.assert_allclose(again["logits"], stored["logits"], atol=1e-4, rtol=1e-4)


class StopAfter:
    """Interrupts a run as a signal does, after an epoch."""

    def __init__(self, epoch):
        self._epoch = epoch

    def log(self, evaluation):
        if evaluation.epoch == self._epoch:
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self):
        """Nothing is held open."""


def test_weights_of_an_unfinished_run_are_said_to_be_so(tmp_path, small, tiny_images, capsys):
    with pytest.raises(StoppedError):
        train(small("loop.epochs=3"), tmp_path / "run", show=False, observers=[StopAfter(1)])
    capsys.readouterr()
    line = f"classmargin: {tmp_path / 'run'} is unfinished: weights of step 5 of 15\n"
    assert main(["predict", str(tmp_path / "run"), str(tiny_images), "--out", str(tmp_path / "p.npz")]) == 0
    assert capsys.readouterr().err == line
    assert main(["export", str(tmp_path / "run"), "--format", "safetensors", "--out", str(tmp_path / "net")]) == 0
    assert capsys.readouterr().err == line


def test_weights_that_are_trained_to_the_end_need_no_word(tmp_path, small, finished_run, capsys):
    train(small("loop.epochs=1"), tmp_path / "untested", show=False, test=False)
    capsys.readouterr()
    load_model(tmp_path / "untested")
    load_model(finished_run)
    assert capsys.readouterr().err == ""


def test_predict_may_be_allowed_to_download(finished_run, tmp_path, monkeypatch, capsys):
    asked = []

    def load(name, **more):
        asked.append((name, more["download"]))
        raise ValueError("fetched enough")

    monkeypatch.setattr("classmargin.recipes.saved_model.load_data", load)
    words = ["predict", str(finished_run), "mnist", "--out", str(tmp_path / "p.npz")]
    assert main(words) == main([*words, "--download"]) == 2
    assert asked == [("mnist", False), ("mnist", True)]
