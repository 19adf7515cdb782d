"""MoCo v2 ResNet-50: momentum-contrast pretraining (Chen et al. 2020), made for linear probing."""

from __future__ import annotations

from torch import nn

from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.imagenet_resnet import build_resnet50
from classmargin.backbones.pretrained import IMAGENET_MEAN, IMAGENET_STD
from classmargin.backbones.registry import register_backbone


def convert_moco(state: StateDict) -> Weights:
    """Take the query encoder out of a MoCo checkpoint; its ``fc`` is the projection head and is dropped.

    Raises:
        ValueError: No ``encoder_q`` in the file.
    """
    query = with_prefix(state, "encoder_q.")
    if not query:
        raise ValueError(
            "not a MoCo checkpoint: no keys 'module.encoder_q.…' among "
            f"{len(state)} (first: {', '.join(list(state)[:4])})"
        )
    return Weights({key: value for key, value in query.items() if not key.startswith("fc.")}, {})


@register_backbone(
    "moco-resnet50",
    title="MoCo v2 ResNet-50",
    kind="image",
    parameters=25_557_032,
    parameters_for=1000,
    paper="Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020",
    input_size=(224, 224),
    input_mean=IMAGENET_MEAN,
    input_std=IMAGENET_STD,
    convert=convert_moco,
    weights="moco_v2_800ep_pretrain.pth.tar from the release of MoCo (github.com/facebookresearch/moco)",
)
def build_moco(*, in_channels: int, width: int = 64) -> nn.Module:
    """Return a ResNet-50 encoder."""
    return build_resnet50(in_channels=in_channels, width=width)
