"""The visual tower of CLIP ResNet-50 (Radford et al. 2021, section 2.4), which ``transformers`` does not
have.

A ResNet with three changes: a stem of three 3x3 convolutions, average pooling before every strided
convolution, and attention instead of the final average. Parameter names are those of OpenAI's checkpoints
below ``visual.``.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.clip_text import start_head_from_prompts
from classmargin.backbones.pretrained import CLIP_MEAN, CLIP_STD, colour_adapter, patch_grid, resize_positions
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import conv3x3

# Size of an attention head in all CLIP models.
_HEAD_SIZE = 64


class PooledBottleneck(nn.Module):
    """Bottleneck whose stride is an average pool after the 3x3 convolution, and in the shortcut.

    Args:
        in_channels: Channels that come in.
        width: Channels inside; four times as many go out.
        stride: Factor by which the image shrinks.
    """

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _pooled_shortcut(in_channels, 4 * width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = self.avgpool(F.relu(self.bn2(self.conv2(residual)), inplace=True))
        residual = self.bn3(self.conv3(residual))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(residual.add_(shortcut), inplace=True)


def _pooled_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == out_channels:
        return None
    # The names "0" and "1" belong to the parts with parameters in the published files, hence "-1".
    return nn.Sequential(
        OrderedDict(
            [
                ("-1", nn.AvgPool2d(stride)),
                ("0", nn.Conv2d(in_channels, out_channels, 1, bias=False)),
                ("1", nn.BatchNorm2d(out_channels)),
            ]
        )
    )


class AttentionPool(nn.Module):
    """One attention step in which the mean of all positions asks and all positions answer.

    Args:
        grid: Rows and columns of the last feature map.
        width: Channels of the last feature map.
        output_dim: Size of the features.
        heads: Number of attention heads.
    """

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
        tokens = (
            torch.cat([positions.mean(dim=1, keepdim=True), positions], dim=1) + self.positional_embedding
        )
        query, key, value = self.q_proj(tokens[:, :1]), self.k_proj(tokens), self.v_proj(tokens)
        mixed = F.scaled_dot_product_attention(self._split(query), self._split(key), self._split(value))
        features: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(1))
        return features

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


class ClipResNet(nn.Module):
    """Images to CLIP embeddings, not normalised.

    Args:
        input_size: Height and width of the images, multiples of 32.
        depths: Blocks in each of the four stages.
        width: Channels of the first stage.
        output_dim: Size of the embedding.
        in_channels: Channels of the images, 1 or 3.
    """

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
        self.layer1 = _stage(width, width, depths[0], stride=1)
        self.layer2 = _stage(4 * width, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(8 * width, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(16 * width, 8 * width, depths[3], stride=2)
        last = 32 * width
        self.attnpool = AttentionPool(self.grid, last, output_dim, heads=max(1, last // _HEAD_SIZE))

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


def _stage(in_channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    first = PooledBottleneck(in_channels, width, stride)
    return nn.Sequential(first, *(PooledBottleneck(4 * width, width, 1) for _ in range(depth - 1)))


def convert_clip_resnet(state: StateDict) -> Weights:
    """Take the visual tower out of a checkpoint in OpenAI's names (which open_clip shares)."""
    return Weights(with_prefix(state, "visual."), {})


@register_backbone(
    "clip-resnet50",
    title="CLIP ResNet-50",
    kind="image",
    parameters=38_316_896,
    paper="Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    input_size=(224, 224),
    head="cosine",
    normalize_features=True,
    input_mean=CLIP_MEAN,
    input_std=CLIP_STD,
    convert=convert_clip_resnet,
    finish=start_head_from_prompts,
    weights=(
        "RN50.pt as published by OpenAI (github.com/openai/CLIP), or the same weights in open_clip's format "
        "(timm/resnet50_clip.openai on the Hugging Face hub)"
    ),
)
def build_clip_resnet(
    *,
    in_channels: int,
    input_size: tuple[int, ...],
    depths: tuple[int, int, int, int] = (3, 4, 6, 3),
    width: int = 64,
    output_dim: int = 1024,
) -> nn.Module:
    """Return the visual tower."""
    return ClipResNet(input_size, depths=depths, width=width, output_dim=output_dim, in_channels=in_channels)
