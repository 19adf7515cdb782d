"""Probing: features once, then only the head; feature data sets directly."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

from classmargin.backbones import create_backbone
from classmargin.data import load_data
from classmargin.recipes import probe
from classmargin.recipes.run_parts import build_run
from classmargin.recipes.saved_model import load_model, predict
from classmargin.recipes.train_run import train

PROBE = ("backbone.mode=probe", "optimizer.learning_rate=0.5")


def test_features_of_the_cache_are_those_of_the_encoder(tmp_path, monkeypatch, tiny_images):
    monkeypatch.setenv("CLASSMARGIN_CACHE", str(tmp_path))
    bundle = load_data(str(tiny_images))
    torch.manual_seed(0)
    backbone = create_backbone("small-cnn", num_classes=10, in_channels=1)
    features = probe.feature_bundle(bundle, backbone)
    from classmargin.data import make_loader

    batch = next(make_loader(bundle, "train", batch_size=20, training=False).epoch(0))
    with torch.no_grad():
        expected = backbone.eval().encode(batch.inputs)
    torch.testing.assert_close(features.train.inputs[:20], expected)
    assert features.kind == "features"
    assert features.train.labels.tolist() == bundle.train.labels.tolist()


def test_the_encoder_runs_once_for_all_runs(tmp_path, monkeypatch, small):
    monkeypatch.setenv("CLASSMARGIN_CACHE", str(tmp_path))
    first = build_run(small(*PROBE))
    forward = type(first.backbone.encoder).forward

    def one_blank_image_only(encoder, images):  # by which a network is asked whether it takes this shape
        return forward(encoder, images) if len(images) == 1 else pytest.fail("the encoder ran again")

    monkeypatch.setattr(type(first.backbone.encoder), "forward", one_blank_image_only)
    second = build_run(small(*PROBE, method="mr2"))
    assert torch.equal(first.bundle.train.inputs, second.bundle.train.inputs)


def test_other_weights_or_samples_get_other_features(tmp_path, monkeypatch, small):
    monkeypatch.setenv("CLASSMARGIN_CACHE", str(tmp_path))
    build_run(small(*PROBE))
    kept = set((tmp_path / "features").iterdir())
    build_run(small(*PROBE, "loop.seed=1"))
    assert len(set((tmp_path / "features").iterdir()) - kept) == 3


def photos(folder, seed):
    random = np.random.default_rng(seed)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = random.integers(0, 256, (80, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.bmp")  # equal sizes, whatever they show
    return folder


def key(folder, **options):
    bundle = load_data(str(folder), **options)
    assert bundle.train.images is not None, "the images are streamed"
    return probe.data_fingerprint(bundle, "train")


def test_streamed_images_are_told_apart_by_folder_change_and_scaling(tmp_path):
    first, second = photos(tmp_path / "v1/photos", 0), photos(tmp_path / "v2/photos", 1)
    before = key(first)
    assert key(first) == before
    assert key(second) != before
    assert key(first, image_size=80) != before
    file = first / "cat/0.bmp"
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # as if written anew
    assert key(first) != before


def test_a_probe_trains_the_head_alone_and_predicts_from_images(tmp_path, small, tiny_images):
    train(small(*PROBE, "loop.epochs=3"), tmp_path / "run", show=False)
    model = load_model(tmp_path / "run")
    with np.load(tmp_path / "run" / "predictions.npz") as stored:
        again = predict(model, str(tiny_images))
        np.testing.assert_allclose(again["logits"], stored["logits"], atol=1e-4)
    size = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoint").rglob("*.safetensors"))
    assert size < 200_000, "the frozen encoder is not in the checkpoints"


def test_an_uncached_probe_sees_augmented_images_and_leaves_the_encoder_alone(tmp_path, small):
    config = small(*PROBE, "backbone.cache=false", "loop.epochs=1")
    before = build_run(config)
    weights = {name: value.clone() for name, value in before.backbone.encoder.state_dict().items()}
    train(config, tmp_path / "run", show=False)
    after = load_model(tmp_path / "run").backbone.encoder.state_dict()
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def test_a_changed_encoder_is_refused_when_the_head_is_used(tmp_path, small):
    train(small(*PROBE, "loop.epochs=1"), tmp_path / "run", show=False)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("seed = 0\nprecision", "seed = 9\nprecision"))
    with pytest.raises(ValueError, match="not those the head was trained on"):
        load_model(tmp_path / "run")


@pytest.mark.parametrize("backbone", ["linear", "mlp"])
def test_feature_files_train_directly(tmp_path, small, backbone):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 8)) * 3
    labels = np.arange(240) % 3
    file = tmp_path / "features.npz"
    inputs = (centres[labels] + rng.normal(size=(240, 8))).astype(np.float32)
    np.savez(file, x_train=inputs[:180], y_train=labels[:180], x_test=inputs[180:], y_test=labels[180:])
    config = small(
        f"data.name={file}",
        "data.fraction=1.0",
        f"backbone.name={backbone}",
        "loop.batch_size=30",
        "loop.epochs=10",
    )
    summary = train(config, tmp_path / "run", show=False)
    assert summary["test"]["overall"] > 0.9


def test_a_probe_with_mr2_uses_the_statistics_of_the_whole_training_set(tmp_path, monkeypatch, small):
    monkeypatch.setenv("CLASSMARGIN_CACHE", str(tmp_path))
    session = build_run(small(*PROBE, method="mr2"))
    statistics = session.method.criterion.statistics
    inputs, labels = session.bundle.train.inputs.double(), session.bundle.train.labels
    inputs = inputs / (inputs - inputs.mean(0)).square().sum(1).mean().sqrt()  # the recommended objective standardises
    own = inputs[labels == 0]
    spread = (own - own.mean(0)).square().sum(1).mean()
    assert float(statistics.class_spread[0]) == pytest.approx(float(spread), rel=1e-4)


def test_features_that_are_trained_keep_moving_statistics(small):
    session = build_run(small(method="mr2"))
    assert not session.method.criterion.statistics.seen.any()


@pytest.mark.parametrize(("shape", "expected"), [((3, 32, 32), 128), ((3, 128, 128), 16), ((3, 224, 224), 5)])
def test_large_images_are_encoded_in_small_batches(shape, expected):
    assert probe.batch_size_for(shape) == expected
