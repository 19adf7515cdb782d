"""Networks that start from scratch: on features (linear, perceptron) and on small images (a CNN)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from classmargin._checks import check_int, check_number
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.resnet import conv3x3, initialise_convolutions


class FeatureEncoder(nn.Module):
    """Features (inputs with more dimensions are flattened) to features: nothing at all, or hidden layers with ReLU."""

    def __init__(
        self, in_features: int, hidden: Sequence[int] = (), *, batch_norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_int("in_features", in_features, minimum=1)
        check_number("dropout", dropout, minimum=0.0, below=1.0)
        widths = [in_features, *(check_int("hidden", width, minimum=1) for width in hidden)]
        self.feature_dim = widths[-1]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers.append(nn.Linear(before, after, bias=not batch_norm))
            layers += [nn.BatchNorm1d(after)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            layers += [nn.Dropout(dropout)] if dropout > 0 else []
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        features: Tensor = self.layers(inputs)
        return features


@register_backbone("linear", title="Linear classifier on features", kind="features")
def build_linear(*, input_size: tuple[int, ...]) -> nn.Module:
    """Return the identity: the features are the inputs."""
    return FeatureEncoder(input_size[0])


@register_backbone("mlp", title="Perceptron with hidden layers on features", kind="features")
def build_mlp(
    *,
    input_size: tuple[int, ...],
    hidden: Sequence[int] | int = (512,),
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Return hidden layers of the chosen widths."""
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not widths:
        raise ValueError("hidden must name at least one width; for none use the backbone 'linear'")
    return FeatureEncoder(input_size[0], widths, batch_norm=batch_norm, dropout=dropout)


# No input size: it takes images as they are, 28, 32 or 64 pixels alike.
@register_backbone("small-cnn", title="Small CNN", kind="image", parameters=103_898, parameters_for=10)
class SmallCNN(nn.Module):
    """Three convolutions and an average: images to 160 features, seconds on a CPU.

    Group norm normalises each sample by itself, so that two data-parallel processes compute exactly what one does.
    """

    feature_dim = 160

    def __init__(self, in_channels: int = 1) -> None:
        super().__init__()

        def layer(before: int, after: int, stride: int, groups: int) -> list[nn.Module]:
            return [conv3x3(before, after, stride), nn.GroupNorm(groups, after), nn.ReLU(inplace=True)]

        self.layers = nn.Sequential(
            *layer(in_channels, 16, stride=1, groups=4),
            nn.MaxPool2d(2),
            *layer(16, 64, stride=2, groups=8),
            *layer(64, self.feature_dim, stride=2, groups=16),
        )
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 160]``."""
        return torch.mean(self.layers(inputs), dim=(2, 3))
