"""Wide residual networks for 32x32 images (Zagoruyko and Komodakis 2016): WRN-16-4, WRN-22-10, WRN-28-10."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_number
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import conv3x3, initialise_convolutions

_PAPER = "Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016"
# (depth, widening factor): parameters for 10 classes; printed as 2.7M, 26.8M and 36.5M.
_PARAMETERS = {(16, 4): 2_748_890, (22, 10): 26_797_914, (28, 10): 36_479_194}


class WideBlock(nn.Module):
    """Pre-activation block of two 3x3 convolutions with dropout between them.

    Args:
        in_channels: Channels that come in.
        out_channels: Channels that go out.
        stride: Step of the first convolution.
        dropout: Share of activations dropped before the second convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = conv3x3(out_channels, out_channels)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = None if same else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum, not activated."""
        activated = F.relu(self.bn1(inputs), inplace=True)
        residual = F.relu(self.bn2(self.conv1(activated)), inplace=True)
        residual = self.conv2(self.dropout(residual))
        total: Tensor = residual.add_(inputs if self.shortcut is None else self.shortcut(activated))
        return total


class WideResNet(nn.Module):
    """Images to the ``64 · width`` averaged features of a wide residual network.

    Args:
        depth: Number of weighted layers, 6n + 4.
        width: Widening factor.
        in_channels: Channels of the images.
        dropout: Dropout inside the blocks.
    """

    def __init__(self, depth: int, width: int, in_channels: int = 3, *, dropout: float = 0.0) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"depth must be 6n + 4 (16, 22, 28, ...), got {depth}")
        check_number("dropout", dropout, minimum=0.0, below=1.0)
        self.feature_dim = 64 * width
        self.stem = conv3x3(in_channels, 16)
        blocks, channels = [], 16
        for stage, out_channels in enumerate((16 * width, 32 * width, 64 * width)):
            for position in range((depth - 4) // 6):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(WideBlock(channels, out_channels, stride, dropout))
                channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(self.feature_dim)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 64 · width]``."""
        maps = F.relu(self.norm(self.blocks(self.stem(inputs))), inplace=True)
        return maps.mean(dim=(2, 3))


def _build(depth: int, width: int, *, in_channels: int, dropout: float = 0.0) -> nn.Module:
    return WideResNet(depth, width, in_channels, dropout=dropout)


for (_depth, _width), _count in _PARAMETERS.items():
    register_backbone(
        f"wide-resnet-{_depth}-{_width}",
        title=f"WideResNet-{_depth}-{_width}",
        kind="image",
        parameters=_count,
        parameters_for=10,
        input_size=(32, 32),
        paper=_PAPER,
    )(partial(_build, _depth, _width))
