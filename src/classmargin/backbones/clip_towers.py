"""The visual towers of CLIP (Radford et al. 2021): ResNet-50 and ViT-B/32.

The ResNet (section 2.4) has a stem of three 3x3 convolutions, average pooling before every strided convolution, and attention
instead of the final average. Its parameter names are those of OpenAI's checkpoints below ``visual.``. The vision transformer is
the one of ``transformers``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.clip_text import (
    HEAD_SIZE,
    OPENAI_ACTIVATION,
    clip_activation,
    start_head_from_prompts,
    vision_to_transformers,
)
from classmargin.backbones.registry import (
    CLIP_MEAN,
    CLIP_STD,
    colour_adapter,
    patch_grid,
    register_backbone,
    resize_positions,
)
from classmargin.backbones.resnet import Bottleneck, conv3x3, pooled_shortcut, residual_stages


class AttentionPool(nn.Module):
    """One attention step in which the mean of all positions asks and all positions answer."""

    def __init__(self, grid: tuple[int, int], width: int, output_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.randn(1 + grid[0] * grid[1], width) * width**-0.5)
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, output_dim)

    def forward(self, maps: Tensor) -> Tensor:
        """Return features ``[B, output_dim]`` of maps ``[B, width, H, W]``."""
        positions = maps.flatten(2).transpose(1, 2)
        mean = positions.mean(dim=1, keepdim=True)
        tokens = torch.cat([mean, positions], dim=1) + self.positional_embedding
        projected = self.q_proj(tokens[:, :1]), self.k_proj(tokens), self.v_proj(tokens)
        by_head = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in projected)
        mixed = F.scaled_dot_product_attention(*by_head)
        features: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(1))
        return features


def convert_clip_vit(state: StateDict) -> Weights:
    """Take the visual tower out of a CLIP checkpoint in OpenAI's, open_clip's or the hub's names."""
    return Weights({f"model.{key}": value for key, value in vision_to_transformers(state).items()}, {})


_register = partial(
    register_backbone,
    kind="image",
    input_size=(224, 224),
    head="cosine",
    normalize_features=True,
    input_mean=CLIP_MEAN,
    input_std=CLIP_STD,
    finish=start_head_from_prompts,
)


@_register(
    "clip-resnet50",
    title="CLIP ResNet-50",
    parameters=38_316_896,
    convert=lambda state: Weights(with_prefix(state, "visual."), {}),  # names that open_clip shares
    weights=(
        "RN50.pt as published by OpenAI (github.com/openai/CLIP), or the same weights in open_clip's format "
        "(timm/resnet50_clip.openai on the Hugging Face hub)"
    ),
)
class ClipResNet(nn.Module):
    """Images with sides of a multiple of 32 to CLIP embeddings, not normalised; ``width`` is that of the first stage."""

    def __init__(
        self,
        input_size: tuple[int, ...],
        *,
        depths: tuple[int, int, int, int] = (3, 4, 6, 3),
        width: int = 64,
        output_dim: int = 1024,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.colour = colour_adapter("clip-resnet50", in_channels, CLIP_MEAN, CLIP_STD)
        self.grid = patch_grid(input_size, 32)
        self.feature_dim = output_dim
        self.conv1 = conv3x3(3, width // 2, stride=2)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = conv3x3(width // 2, width // 2)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = conv3x3(width // 2, width)
        self.bn3 = nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(2)
        block = partial(Bottleneck, shortcut=pooled_shortcut, pooled=True)
        stages = residual_stages(block, width, [width * 2**stage for stage in range(4)], depths, expansion=4)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        last = 32 * width
        self.attnpool = AttentionPool(self.grid, last, output_dim, heads=max(1, last // HEAD_SIZE))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, output_dim]``."""
        maps = F.relu(self.bn1(self.conv1(self.colour(inputs))), inplace=True)
        maps = F.relu(self.bn2(self.conv2(maps)), inplace=True)
        maps = self.avgpool(F.relu(self.bn3(self.conv3(maps)), inplace=True))
        features: Tensor = self.attnpool(self.layer4(self.layer3(self.layer2(self.layer1(maps)))))
        return features

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return a checkpoint's tensors with positions for this image size."""
        key = "attnpool.positional_embedding"
        return {**state, key: resize_positions(state[key], self.grid)} if key in state else state


@_register(
    "clip-vit-b32",
    title="CLIP ViT-B/32",
    parameters=87_849_216,
    extra="pretrained",
    convert=convert_clip_vit,
    weights=(
        "openai/clip-vit-base-patch32 from the Hugging Face hub (its folder or model.safetensors), or "
        "ViT-B-32.pt as published by OpenAI (github.com/openai/CLIP)"
    ),
)
class ClipVisionTransformer(nn.Module):
    """Square images of whole patches to CLIP embeddings, not normalised.

    The ``activation`` of the perceptrons is ``quick_gelu`` (OpenAI) or ``gelu`` (most networks of open_clip); left out, what
    the settings beside the weights say.
    """

    def __init__(
        self,
        input_size: tuple[int, ...],
        *,
        in_channels: int = 3,
        patch_size: int = 32,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        output_dim: int = 512,
        activation: str | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        super().__init__()
        activation = clip_activation(activation, checkpoint, "vision")
        transformers = require_extra("transformers", "pretrained", "CLIP ViT-B/32")
        self.grid = patch_grid(input_size, patch_size)
        if self.grid[0] != self.grid[1]:
            raise ValueError(f"input_size of 'clip-vit-b32' must be square, got {input_size}")
        self.feature_dim = output_dim
        self.num_layers = depth + 1
        # What the weights do not show; kept features must know it.
        self.found_options = {} if activation == OPENAI_ACTIVATION else {"activation": activation}
        self.colour = colour_adapter("clip-vit-b32", in_channels, CLIP_MEAN, CLIP_STD)
        self.model = transformers.CLIPVisionModelWithProjection(
            transformers.CLIPVisionConfig(
                image_size=input_size[0],
                patch_size=patch_size,
                hidden_size=width,
                intermediate_size=4 * width,
                num_hidden_layers=depth,
                num_attention_heads=heads,
                projection_dim=output_dim,
                hidden_act=activation,
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, output_dim]``."""
        features: Tensor = self.model(pixel_values=self.colour(inputs)).image_embeds
        return features

    def layer_of(self, parameter_name: str) -> int:
        """Return 0 for the embedding, 1 … depth for the blocks, ``num_layers`` for what follows them."""
        _, is_block, rest = parameter_name.partition("encoder.layers.")
        if is_block:
            return int(rest.split(".")[0]) + 1
        return self.num_layers if "post_layernorm" in parameter_name or "projection" in parameter_name else 0

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return a checkpoint's tensors with positions for this image size."""
        key = "model.vision_model.embeddings.position_embedding.weight"
        return {**state, key: resize_positions(state[key], self.grid)} if key in state else state
