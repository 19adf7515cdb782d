"""A small convolutional network for tests and the demo: 28x28 grey or 32x32 colour images, seconds on a CPU.

Group norm instead of batch norm: each sample is normalised by itself, so that two data-parallel processes
compute exactly what one does. The first convolution sees every pixel, pooling and strides then shrink the
image fast; this is what makes it cheap without losing the fine textures that tell a shirt from a coat.
"""

from __future__ import annotations

from torch import Tensor, nn

from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import initialise_convolutions


def _layer(in_channels: int, out_channels: int, stride: int, groups: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.GroupNorm(groups, out_channels),
        nn.ReLU(inplace=True),
    ]


class SmallCNN(nn.Module):
    """Three convolutions and an average: images to 160 features.

    Args:
        in_channels: Channels of the images.

    Example:
        >>> import torch
        >>> SmallCNN(in_channels=1)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 160])
    """

    feature_dim = 160

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_layer(in_channels, 16, stride=1, groups=4),
            nn.MaxPool2d(2),
            *_layer(16, 64, stride=2, groups=8),
            *_layer(64, self.feature_dim, stride=2, groups=16),
        )
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 160]``."""
        features: Tensor = self.layers(inputs).mean(dim=(2, 3))
        return features


# No input size: it takes images as they are, 28, 32 or 64 pixels alike.
@register_backbone("small-cnn", title="Small CNN", kind="image", parameters=103_898, parameters_for=10)
def build_small_cnn(*, in_channels: int) -> nn.Module:
    """Return the encoder of the small CNN."""
    return SmallCNN(in_channels)
