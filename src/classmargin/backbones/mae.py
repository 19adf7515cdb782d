"""MAE ViT-B/16: the encoder of masked autoencoders (He et al. 2022), fine-tuned as published."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.pretrained import IMAGENET_MEAN, IMAGENET_STD
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.vision_transformer import Pooling, VisionTransformer

# Names on the Hugging Face hub (facebook/vit-mae-base) and in the MAE release, inside one block.
_BLOCK_NAMES = {
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
}
_OUTER_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
}
_HUB_BLOCK = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)$")


def convert_mae(state: StateDict) -> Weights:
    """Take the encoder out of an MAE checkpoint: the release's names, or those of the Hugging Face hub.

    The decoder and the mask token of pretraining are left behind; a fine-tuned ``head`` is kept.
    """
    if any(key.startswith("vit.") for key in state):
        return Weights(_from_hub(with_prefix(state, "vit.")), {})
    left_behind = ("decoder", "mask_token", "head.")
    encoder = {key: value for key, value in state.items() if not key.startswith(left_behind)}
    return Weights(encoder, with_prefix(state, "head."))


def _from_hub(state: StateDict) -> StateDict:
    renamed: StateDict = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        match = _HUB_BLOCK.match(key)
        if match is None:
            renamed[_outer_name(key)] = value
        elif match[2].startswith("attention.attention."):
            role = match[2].rsplit(".", 1)[1]
            parts.setdefault(f"blocks.{match[1]}.attn.qkv.{match[3]}", {})[role] = value
        else:
            renamed[f"blocks.{match[1]}.{_BLOCK_NAMES.get(match[2], match[2])}.{match[3]}"] = value
    for key, roles in parts.items():
        renamed[key] = torch.cat([roles[role] for role in ("query", "key", "value")])
    return renamed


def _outer_name(key: str) -> str:
    for hub, release in _OUTER_NAMES.items():
        if key == hub or key.startswith(hub + "."):
            return release + key[len(hub) :]
    return key


@register_backbone(
    "mae-vit-b16",
    title="MAE ViT-B/16",
    kind="image",
    parameters=86_567_656,
    parameters_for=1000,
    paper="He et al., Masked Autoencoders Are Scalable Vision Learners, CVPR 2022",
    input_size=(224, 224),
    input_mean=IMAGENET_MEAN,
    input_std=IMAGENET_STD,
    convert=convert_mae,
    weights=(
        "mae_pretrain_vit_base.pth from the release of MAE (github.com/facebookresearch/mae) or "
        "model.safetensors of facebook/vit-mae-base on the Hugging Face hub"
    ),
)
def build_mae(
    *,
    in_channels: int,
    input_size: tuple[int, ...],
    drop_path: float = 0.1,
    pooling: Pooling = "mean",
    patch_size: int = 16,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
) -> nn.Module:
    """Return the encoder; ``drop_path`` 0.1 and averaged patches are those of the published fine-tuning."""
    return VisionTransformer(
        input_size,
        patch_size=patch_size,
        width=width,
        depth=depth,
        heads=heads,
        in_channels=in_channels,
        drop_path_rate=drop_path,
        pooling=pooling,
    )
