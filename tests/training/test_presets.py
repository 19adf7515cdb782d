"""The presets hold exactly the numbers printed in the paper (appendix, implementation details)."""

from __future__ import annotations

import pytest

from classmargin.training.config_reader import build
from classmargin.training.presets import PRESETS, preset_values


def test_cifar_is_the_papers():
    config = build(preset_values("cifar", "erm"))
    assert (config.optimizer.name, config.optimizer.momentum, config.optimizer.weight_decay) == (
        "sgd",
        0.9,
        5e-4,
    )
    assert (config.loop.batch_size, config.loop.epochs, config.optimizer.learning_rate) == (128, 300, 0.1)
    assert (config.schedule.name, config.schedule.warmup_epochs, config.schedule.minimum) == (
        "cosine",
        0.0,
        0.0,
    )
    assert config.data.augmentation == "standard"


def test_imagenet_from_scratch_is_the_papers():
    config = build(preset_values("imagenet-scratch", "erm"))
    assert config.backbone.name == "resnet50"
    assert (config.loop.epochs, config.loop.batch_size, config.optimizer.learning_rate) == (300, 128, 0.1)
    assert (config.optimizer.weight_decay, config.optimizer.momentum, config.schedule.name) == (
        1e-4,
        0.9,
        "cosine",
    )


def test_clip_is_the_papers():
    config = build(preset_values("clip-finetune", "mr2"))
    assert (config.optimizer.name, config.optimizer.learning_rate, config.optimizer.weight_decay) == (
        "adamw",
        3e-5,
        0.1,
    )
    assert (config.loop.epochs, config.loop.batch_size) == (10, 512)
    assert (config.schedule.name, config.schedule.warmup_steps) == ("cosine", 500)
    assert config.method.options == {"norm_order": 3.0}
    data = config.data  # as WiSE-FT
    assert (data.crop_scale, data.centre_share, data.interpolation, data.flip) == (
        (0.9, 1.0),
        1.0,
        "bicubic",
        False,
    )
    assert config.optimizer.clip_norm == 1.0
    assert config.backbone.options == {"head_start": "prompts", "prompt_templates": "ensemble"}
    assert build(preset_values("clip-finetune", "erm")).method.options == {}


def test_mae_is_the_papers():
    config = build(preset_values("mae-finetune", "erm"))
    assert (config.optimizer.name, config.optimizer.learning_rate) == ("adamw", 1e-3)
    assert (config.loop.epochs, config.loop.batch_size, config.schedule.warmup_epochs) == (100, 1024, 5.0)
    assert config.optimizer.layer_decay < 1.0


def test_moco_is_the_papers():
    config = build(preset_values("moco-probe", "mr2"))
    assert (config.optimizer.learning_rate, config.optimizer.momentum, config.loop.batch_size) == (
        30.0,
        0.9,
        256,
    )
    assert (config.loop.epochs, config.schedule.milestones, config.schedule.factor) == (100, (60, 80), 0.1)
    assert config.backbone.mode == "probe"
    assert config.method.options == {"representation_weight": 0.0}


def test_every_preset_names_a_backbone_and_data_that_exist():
    from classmargin.backbones import backbone_info
    from classmargin.data import list_data

    known = {info.name for info in list_data()}
    for name in PRESETS:
        config = build(preset_values(name, "erm"))
        assert backbone_info(config.backbone.name).name == config.backbone.name
        assert config.data.name in known


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cifar'"):
        preset_values("cifr", "erm")
