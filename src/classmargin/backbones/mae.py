"""MAE ViT-B/16: the encoder of masked autoencoders (He et al. 2022), fine-tuned as published.

The vision transformer has the parameter names of the MAE release (``blocks.0.attn.qkv`` …). Fine-tuning MAE as published needs
what the one of ``transformers`` does not have: stochastic depth, and a norm after (not before) the average over patches.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_number
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.contract import Backbone
from classmargin.backbones.heads import LinearHead
from classmargin.backbones.registry import IMAGENET_MEAN, IMAGENET_STD, patch_grid, register_backbone, resize_positions

_EPS = 1e-6


def drop_path(residual: Tensor, rate: float, training: bool) -> Tensor:
    """Drop the whole residual of a sample with probability ``rate`` and scale up those that stay."""
    if rate == 0.0 or not training:
        return residual
    keep = torch.rand(residual.shape[0], 1, 1, device=residual.device) >= rate
    return residual * (keep / (1.0 - rate)).to(residual.dtype)


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens ``[B, T, width]`` mixed by attention."""
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        output: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return output


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        layers = {"fc1": nn.Linear(width, 4 * width), "act": nn.GELU(), "fc2": nn.Linear(4 * width, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens after attention and perceptron."""
        tokens = tokens + drop_path(self.attn(self.norm1(tokens)), self.drop, self.training)
        return tokens + drop_path(self.mlp(self.norm2(tokens)), self.drop, self.training)


# Names on the Hugging Face hub (facebook/vit-mae-base) and in the MAE release.
_NAMES = (
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("encoder.layer.", "blocks."),
    ("attention.output.dense", "attn.proj"),
    ("attention.attention.query", "attn.qkv"),
    ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"),
    ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"),
    ("layernorm", "norm"),
)


def convert_mae(state: StateDict) -> Weights:
    """Take the encoder, and a fine-tuned head, out of an MAE checkpoint in the names of the release or of the hub."""
    if any(key.startswith("vit.") for key in state):
        return Weights(_from_hub(with_prefix(state, "vit.")), {})
    left_behind = ("decoder", "mask_token", "head.")
    encoder = {key: value for key, value in state.items() if not key.startswith(left_behind)}
    return Weights(encoder, with_prefix(state, "head."))


def _from_hub(state: StateDict) -> StateDict:
    renamed: StateDict = {}
    for key, value in state.items():
        if ".attention.key." in key or ".attention.value." in key:
            continue
        if ".attention.query." in key:  # three matrices there, one here
            value = torch.cat([state[key.replace("query", role)] for role in ("query", "key", "value")])
        for hub, release in _NAMES:
            key = key.replace(hub, release)
        renamed[key] = value
    return renamed


def start_small_head(backbone: Backbone, state: StateDict | None) -> None:
    """Start a linear head on pretrained features near 0, as the fine-tuning recipe of MAE does (deviation 2e-5)."""
    if state is not None and isinstance(backbone.head, LinearHead):
        nn.init.trunc_normal_(backbone.head.weight, std=2e-5)
        if backbone.head.bias is not None:
            nn.init.zeros_(backbone.head.bias)


@register_backbone(
    "mae-vit-b16",
    title="MAE ViT-B/16",
    kind="image",
    parameters=86_567_656,
    parameters_for=1000,
    input_size=(224, 224),
    input_mean=IMAGENET_MEAN,
    input_std=IMAGENET_STD,
    convert=convert_mae,
    finish=start_small_head,
    weights=(
        "mae_pretrain_vit_base.pth from the release of MAE (github.com/facebookresearch/mae) or "
        "model.safetensors of facebook/vit-mae-base on the Hugging Face hub"
    ),
)
class VisionTransformer(nn.Module):
    """Images to a norm of the mean of the patch tokens.

    ``drop_path``, the probability of dropping a residual, grows linearly from 0 to this value in the last block.
    """

    def __init__(
        self,
        input_size: tuple[int, ...],
        *,
        in_channels: int = 3,
        drop_path: float = 0.1,
        patch_size: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        check_number("drop_path", drop_path, minimum=0.0, below=1.0)
        self.grid = patch_grid(input_size, patch_size)
        self.feature_dim = width
        self.num_layers = depth + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.grid[0] * self.grid[1], width))
        project = nn.Conv2d(in_channels, width, patch_size, patch_size)
        self.patch_embed = nn.Sequential(OrderedDict(proj=project))
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(Block(width, heads, rate) for rate in rates))
        self.fc_norm = nn.LayerNorm(width, eps=_EPS)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # all have one
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, width]``."""
        patches = self.patch_embed(inputs).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1)
        tokens = self.blocks(tokens + self.pos_embed)
        features: Tensor = self.fc_norm(tokens[:, 1:].mean(dim=1))
        return features

    def layer_of(self, parameter_name: str) -> int:
        """Return 0 for the embedding, 1 … depth for the blocks, ``num_layers`` for the last norm."""
        if parameter_name.startswith("blocks."):
            return int(parameter_name.split(".")[1]) + 1
        return self.num_layers if parameter_name.startswith("fc_norm.") else 0

    def no_weight_decay(self) -> frozenset[str]:
        """Return the class token and the positions, which fine-tuning of MAE does not decay."""
        return frozenset({"cls_token", "pos_embed"})

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return a checkpoint's tensors with positions for this image size."""
        # A pretraining checkpoint has no norm for averaged patches; the fresh one is kept, as published.
        fresh = {f"fc_norm.{key}": value for key, value in self.fc_norm.state_dict().items()}
        adapted = fresh | {key: value for key, value in state.items() if not key.startswith("norm.")}
        if "pos_embed" in adapted:
            adapted["pos_embed"] = resize_positions(adapted["pos_embed"][0], self.grid)[None]
        return adapted
