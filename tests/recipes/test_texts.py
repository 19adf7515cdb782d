"""Text models are trained end to end on token numbers, and the trained run can be used like any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.recipes.run_parts import build_run
from classmargin.recipes.saved_model import export, load_model, predict, run_onnx, run_script
from classmargin.recipes.train_run import train

VOCABULARY = 20


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="the extra 'pretrained' brings text models")
    folder = tmp_path_factory.mktemp("model")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def token_file(tmp_path_factory):
    """Texts of 3 to 8 tokens; the class is the group of 6 words that they are made of."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 120), ("test", 60)):
        labels = np.arange(count) % 3
        tokens = random.integers(0, 6, (count, 8)) + 1 + 6 * labels[:, None]
        tokens[np.arange(8) >= random.integers(3, 9, (count, 1))] = 0
        arrays |= {f"x_{part}": tokens.astype(np.int32), f"y_{part}": labels}
    file = tmp_path_factory.mktemp("texts") / "words.npz"
    np.savez(file, **arrays)
    return file


@pytest.fixture
def text_config(small, text_folder, token_file):
    def config(*overrides, method="erm"):
        words = (
            f"data.name={token_file}",
            "backbone.name=hf-text",
            "backbone.mode=fine-tune",
            f"backbone.checkpoint={text_folder}",
            "optimizer.name=adamw",
            "optimizer.learning_rate=0.01",
        )
        return small(*words, "loop.epochs=6", "loop.batch_size=32", *overrides, method=method)

    return config


@pytest.mark.parametrize("method", ["erm", "mr2"])
def test_fine_tuning_on_tokens_learns_and_loads_again(tmp_path, text_config, token_file, method):
    summary = train(text_config(method=method), tmp_path / "run", show=False)
    assert summary["test"]["overall"] > 0.8
    arrays = predict(load_model(tmp_path / "run"), str(token_file))
    assert np.mean(np.asarray(arrays["logits"]).argmax(1) == np.asarray(arrays["labels"])) == pytest.approx(
        summary["test"]["overall"]
    )


@pytest.mark.parametrize("file_format", ["onnx", "torchscript"])
def test_exported_text_models_compute_the_same_for_short_texts(tmp_path, text_config, token_file, file_format):
    if file_format == "onnx":
        pytest.importorskip("onnxscript", reason="the extra 'export' brings ONNX")
    train(text_config("loop.epochs=1"), tmp_path / "run", show=False)
    model = load_model(tmp_path / "run")
    path = export(model, tmp_path / "model", file_format)
    tokens = torch.tensor([[3, 4, 5, 0, 0, 0, 0, 0], [9, 8, 0, 0, 0, 0, 0, 0], [13, 0, 0, 0, 0, 0, 0, 0]])
    runner = run_onnx if file_format == "onnx" else run_script
    with torch.no_grad():
        expected = model.backbone.eval()(tokens).logits
    torch.testing.assert_close(runner(path, tokens)[0], expected, atol=1e-4, rtol=1e-4)


def test_a_probe_computes_the_features_of_texts_once(text_config):
    session = build_run(text_config("backbone.mode=probe"))
    assert session.bundle.kind == "features"
    assert session.bundle.input_shape == (16,)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path, text_config):
    tokens = np.full((20, 4), VOCABULARY)
    np.savez(tmp_path / "other.npz", x_train=tokens, y_train=np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"hf-text knows 20 tokens, but the train part of other holds token 20"):
        build_run(text_config(f"data.name={tmp_path / 'other.npz'}"))


def test_texts_cannot_be_mixed(text_config):
    with pytest.raises(ValueError, match=r"data\.mix must be none for texts, got 'mixup'"):
        build_run(text_config("data.mix=mixup"))


def test_networks_of_features_refuse_tokens(text_config):
    with pytest.raises(ValueError, match=r"backbone mlp reads features, .* holds text; use minilm or hf-text"):
        build_run(text_config("backbone.name=mlp", "backbone.mode=scratch"))
