"""The paper's training recipes as data: differences from the defaults, with the numbers of the paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from classmargin._checks import check_choice


@dataclass(frozen=True)
class Preset:
    """A named set of values; ``mr2``: hyper-parameters of the MR² family; ``notes``: what the paper does not say."""

    name: str
    title: str
    values: Mapping[str, Mapping[str, Any]]
    mr2: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "cifar",
            "CIFAR from scratch: SGD, cosine, 300 epochs, batch 128",
            {
                "data": {"name": "cifar100", "augmentation": "standard"},
                "backbone": {"name": "resnet32"},
                "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
                "schedule": {"name": "cosine"},
                "loop": {"epochs": 300, "batch_size": 128},
            },
        ),
        Preset(
            "imagenet-scratch",
            "ImageNet from scratch, ResNet-50: SGD, cosine, 300 epochs, batch 128",
            {
                "data": {"name": "imagenet", "augmentation": "standard"},
                "backbone": {"name": "resnet50"},
                "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
                "schedule": {"name": "cosine"},
                "loop": {"epochs": 300, "batch_size": 128},
            },
            notes="The paper says 'batch size of 128 on 8 GPUs'; 128 is taken as the batch of one step.",
        ),
        Preset(
            "clip-finetune",
            "CLIP fine-tuning: AdamW, cosine with 500 warm-up steps, 10 epochs, batch 512",
            {
                "data": {
                    "name": "imagenet",
                    "augmentation": "standard",
                    "crop_scale": (0.9, 1.0),
                    "centre_share": 1.0,
                    "interpolation": "bicubic",
                    "flip": False,
                },
                "backbone": {
                    "name": "clip-vit-b32",
                    "mode": "fine-tune",
                    "pretrained": True,
                    "head": "cosine",
                    "head_start": "prompts",
                    "prompt_templates": "ensemble",
                },
                "optimizer": {"name": "adamw", "learning_rate": 3e-5, "weight_decay": 0.1, "clip_norm": 1.0},
                "schedule": {"name": "cosine", "warmup_steps": 500},
                "loop": {"epochs": 10, "batch_size": 512},
            },
            mr2={"norm_order": 3.0},
            notes=(
                "Cosine classifiers use p = 3. Crops of 90 to 100 % of the area without mirroring, bicubic, the centre "
                "cut of the scaled image in evaluation, gradients clipped at 1 and a head that starts from class names "
                "are those of WiSE-FT, which the paper follows; seven of OpenAI's eighty prompt templates are averaged "
                "(backbone.prompt_templates=FILE for others). Without readable class names and a tokenizer the run is "
                "refused; backbone.head_start=auto starts the head at random."
            ),
        ),
        Preset(
            "mae-finetune",
            "MAE fine-tuning: AdamW, layer decay, cosine with 5 warm-up epochs, 100 epochs, batch 1024",
            {
                "data": {"name": "imagenet", "augmentation": "standard"},
                "backbone": {"name": "mae-vit-b16", "mode": "fine-tune", "pretrained": True},
                "optimizer": {
                    "name": "adamw",
                    "learning_rate": 1e-3,
                    "scale_batch": 256,
                    "weight_decay": 0.05,
                    "layer_decay": 0.75,
                    "decay_norms": False,
                },
                "schedule": {"name": "cosine", "warmup_epochs": 5.0},
                "loop": {"epochs": 100, "batch_size": 1024},
            },
            notes=(
                "Base learning rate, epochs, batch and warm-up as printed; the base rate is for 256 samples, "
                "weight decay 0.05 and layer decay 0.75 are those of the MAE set-up that the paper follows."
            ),
        ),
        Preset(
            "moco-probe",
            "MoCo v2 linear probe: SGD, step decay at 60 and 80, 100 epochs, batch 256",
            {
                "data": {"name": "imagenet", "augmentation": "standard"},
                "backbone": {"name": "moco-resnet50", "mode": "probe", "pretrained": True},
                "optimizer": {"name": "sgd", "learning_rate": 30.0, "momentum": 0.9, "weight_decay": 0.0},
                "schedule": {"name": "step", "milestones": (60, 80), "factor": 0.1},
                "loop": {"epochs": 100, "batch_size": 256},
            },
            mr2={"representation_weight": 0.0},
            notes=(
                "Frozen features: the representation margin is dropped, as printed. Features are computed "
                "once, unaugmented (backbone.cache = false trains through the encoder). "
                "Weight decay 0 is that of the MoCo set-up that the paper follows."
            ),
        ),
    )
}


def preset_values(name: str, method: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a preset for a method; the MR² family gets its own hyper-parameters on top."""
    preset = PRESETS[check_choice("preset", name, PRESETS)]
    tables = {part: dict(table) for part, table in preset.values.items()}
    if preset.mr2 and method.removeprefix("sam+").startswith("mr2"):
        tables["method"] = dict(preset.mr2)
    return tables
