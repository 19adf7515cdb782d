"""Pre-activation ResNet-20/32 for 32x32 images (He et al. 2016, Identity Mappings in Deep Residual Networks).

Widths, depths and parameter-free shortcuts are those of the CIFAR ResNets; batch norm and ReLU come before
each convolution, and once more before the average.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import PaddedShortcut, conv3x3, initialise_convolutions

_PAPER = "He et al., Identity Mappings in Deep Residual Networks, ECCV 2016"
_PARAMETERS = {20: 269_722, 32: 464_154}


class PreActBlock(nn.Module):
    """Batch norm, ReLU and convolution, twice, added to the inputs.

    Where the shape changes, the shortcut starts from the activated inputs, as both branches do in the paper's
    networks at the start of a stage.

    Args:
        in_channels: Channels that come in.
        out_channels: Channels that go out.
        stride: Step of the first convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = None if same else PaddedShortcut(in_channels, out_channels, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum, not activated."""
        activated = F.relu(self.bn1(inputs), inplace=True)
        residual: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated)), inplace=True))
        return residual.add_(inputs if self.shortcut is None else self.shortcut(activated))


class PreActResNet(nn.Module):
    """Images to the 64 averaged features of a pre-activation CIFAR ResNet.

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
        widths = [16] + [width for width in (16, 32, 64) for _ in range((depth - 2) // 6)]
        pairs = pairwise(widths)
        self.blocks = nn.Sequential(*(PreActBlock(a, b, stride=2 if a != b else 1) for a, b in pairs))
        self.norm = nn.BatchNorm2d(64)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 64]``."""
        maps = F.relu(self.norm(self.blocks(self.stem(inputs))), inplace=True)
        return maps.mean(dim=(2, 3))


def _build(depth: int, *, in_channels: int) -> nn.Module:
    return PreActResNet(depth, in_channels)


for _depth, _count in _PARAMETERS.items():
    register_backbone(
        f"preact-resnet{_depth}",
        title=f"PreAct ResNet-{_depth} (CIFAR)",
        kind="image",
        parameters=_count,
        parameters_for=10,
        input_size=(32, 32),
        paper=_PAPER,
    )(partial(_build, _depth))
