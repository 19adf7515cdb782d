"""Small parts that several residual networks share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the size (or halves it with stride 2), without bias."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


class PaddedShortcut(nn.Module):
    """Parameter-free shortcut across a change of shape (He et al. 2016, option A).

    Every second pixel is kept and the new channels are zeros, half of them before and half after the old
    ones.

    Args:
        in_channels: Channels that come in.
        out_channels: Channels that go out.
        stride: Step between the pixels that are kept.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        before = (out_channels - in_channels) // 2
        self.padding = (0, 0, 0, 0, before, out_channels - in_channels - before)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the strided, zero-padded inputs."""
        return F.pad(inputs[:, :, :: self.stride, :: self.stride], self.padding)


def initialise_convolutions(network: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / fan_out), as He et al. (2015) do for layers followed by ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
