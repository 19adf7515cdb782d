"""ResNet-20/32/44/56 for 32x32 images (He et al. 2016, section 4.2; parameter-free shortcuts, option A)."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import PaddedShortcut, conv3x3, initialise_convolutions

_PAPER = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
# Parameters with a linear head for 10 classes; printed as 0.27M, 0.46M, 0.66M and 0.85M in Table 6 of the
# paper.
_PARAMETERS = {20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, batch norm after each, ReLU after the sum.

    Args:
        in_channels: Channels that come in.
        out_channels: Channels that go out.
        stride: Step of the first convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else PaddedShortcut(in_channels, out_channels, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = self.bn2(self.conv2(residual))
        return F.relu(residual.add_(self.shortcut(inputs)), inplace=True)


class CifarResNet(nn.Module):
    """Images to the 64 averaged features of a CIFAR ResNet.

    Args:
        depth: Number of weighted layers, 6n + 2.
        in_channels: Channels of the images.
    """

    feature_dim = 64

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 (20, 32, 44, 56, ...), got {depth}")
        self.stem = conv3x3(in_channels, 16)
        self.stem_norm = nn.BatchNorm2d(16)
        widths = [16] + [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        pairs = pairwise(widths)
        self.blocks = nn.Sequential(*(BasicBlock(a, b, stride=2 if a != b else 1) for a, b in pairs))
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 64]``."""
        maps = F.relu(self.stem_norm(self.stem(inputs)), inplace=True)
        features: Tensor = self.blocks(maps).mean(dim=(2, 3))
        return features


def _build(depth: int, *, in_channels: int) -> nn.Module:
    return CifarResNet(depth, in_channels)


for _depth, _count in _PARAMETERS.items():
    register_backbone(
        f"resnet{_depth}",
        title=f"ResNet-{_depth} (CIFAR)",
        kind="image",
        parameters=_count,
        parameters_for=10,
        input_size=(32, 32),
        paper=_PAPER,
    )(partial(_build, _depth))
