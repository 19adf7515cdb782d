"""Networks that start from scratch: on features (linear, perceptron) and on small images (a CNN, residual networks)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_int, check_number
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.resnet import (
    BasicBlock,
    PaddedShortcut,
    PreActBlock,
    conv1x1,
    conv3x3,
    initialise_convolutions,
    residual_stage,
)


class FeatureEncoder(nn.Module):
    """Features to features: nothing at all, or hidden layers with ReLU.

    Args:
        in_features: Size of the inputs; anything with more dimensions is flattened to it.
        hidden: Widths of the hidden layers, in order; none for the identity.
        batch_norm: Normalise before each ReLU.
        dropout: Share of activations dropped after each ReLU.

    Example:
        >>> import torch
        >>> FeatureEncoder(8, hidden=(16, 4))(torch.zeros(2, 8)).shape
        torch.Size([2, 4])
    """

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


def _only_number(name: str, input_size: tuple[int, ...] | None) -> int:
    if input_size is None:
        raise ValueError(f"backbone {name!r} needs input_size, the number of features of an input")
    return input_size[0]


@register_backbone("linear", title="Linear classifier on features", kind="features")
def build_linear(*, input_size: tuple[int, ...] | None) -> nn.Module:
    """Return the identity: the features are the inputs."""
    return FeatureEncoder(_only_number("linear", input_size))


@register_backbone("mlp", title="Perceptron with hidden layers on features", kind="features")
def build_mlp(
    *,
    input_size: tuple[int, ...] | None,
    hidden: Sequence[int] | int = (512,),
    batch_norm: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """Return hidden layers of the chosen widths."""
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if not widths:
        raise ValueError("hidden must name at least one width; for none use the backbone 'linear'")
    return FeatureEncoder(_only_number("mlp", input_size), widths, batch_norm=batch_norm, dropout=dropout)


# No input size: it takes images as they are, 28, 32 or 64 pixels alike.
@register_backbone("small-cnn", title="Small CNN", kind="image", parameters=103_898, parameters_for=10)
class SmallCNN(nn.Module):
    """Three convolutions and an average: images to 160 features, seconds on a CPU.

    Group norm instead of batch norm: each sample is normalised by itself, so that two data-parallel processes
    compute exactly what one does. The first convolution sees every pixel, pooling and strides then shrink the
    image fast; this is what makes it cheap without losing the fine textures that tell a shirt from a coat.

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
        features: Tensor = self.layers(inputs).mean(dim=(2, 3))
        return features


def _blocks_per_stage(depth: int, outside: int) -> int:
    if depth < 6 + outside or (depth - outside) % 6:
        examples = ", ".join(str(outside + 6 * n) for n in (2, 3, 4))
        raise ValueError(f"depth must be 6n + {outside} ({examples}, ...), got {depth}")
    return (depth - outside) // 6


def _three_stages(
    block: Callable[[int, int, int], nn.Module], widths: tuple[int, int, int], each: int
) -> nn.Sequential:
    inputs = (16, *widths[:-1])
    stages = [residual_stage(block, inputs[i], widths[i], each, stride=2 if i else 1) for i in range(3)]
    return nn.Sequential(*(part for stage in stages for part in stage))


class CifarResNet(nn.Module):
    """Images to the 64 averaged features of a CIFAR ResNet (He et al. 2016, section 4.2, option A).

    Args:
        depth: Number of weighted layers, 6n + 2.
        in_channels: Channels of the images.
    """

    feature_dim = 64

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__()
        each = _blocks_per_stage(depth, 2)
        self.stem = conv3x3(in_channels, 16)
        self.stem_norm = nn.BatchNorm2d(16)
        self.blocks = _three_stages(partial(BasicBlock, shortcut=PaddedShortcut), (16, 32, 64), each)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 64]``."""
        maps = F.relu(self.stem_norm(self.stem(inputs)), inplace=True)
        features: Tensor = self.blocks(maps).mean(dim=(2, 3))
        return features


class PreActResNet(nn.Module):
    """Images to the 64 averaged features of a pre-activation CIFAR ResNet.

    Widths, depths and shortcuts are those of :class:`CifarResNet`; batch norm and ReLU come before each
    convolution, and once more before the average.

    Args:
        depth: Number of weighted layers, 6n + 2.
        in_channels: Channels of the images.
    """

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        block = partial(PreActBlock, shortcut=PaddedShortcut)
        self._build(block, (16, 32, 64), _blocks_per_stage(depth, 2), in_channels)

    def _build(
        self,
        block: Callable[[int, int, int], nn.Module],
        widths: tuple[int, int, int],
        each: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        self.feature_dim = widths[-1]
        self.stem = conv3x3(in_channels, 16)
        self.blocks = _three_stages(block, widths, each)
        self.norm = nn.BatchNorm2d(self.feature_dim)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        maps = F.relu(self.norm(self.blocks(self.stem(inputs))), inplace=True)
        return maps.mean(dim=(2, 3))


class WideResNet(PreActResNet):
    """Images to the ``64 · width`` averaged features of a wide residual network.

    Args:
        depth: Number of weighted layers, 6n + 4.
        width: Widening factor.
        in_channels: Channels of the images.
        dropout: Dropout inside the blocks.
    """

    def __init__(self, depth: int, width: int, in_channels: int = 3, *, dropout: float = 0.0) -> None:
        check_number("dropout", dropout, minimum=0.0, below=1.0)
        block = partial(PreActBlock, shortcut=conv1x1, dropout=dropout)
        widths = (16 * width, 32 * width, 64 * width)
        self._build(block, widths, _blocks_per_stage(depth, 4), in_channels)


# Parameters with a linear head for 10 classes; the papers print 0.27M, 0.46M, 0.66M and 0.85M (Table 6), and
# 2.7M, 26.8M and 36.5M for the wide ones.
_RESIDUAL = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
_IDENTITY = "He et al., Identity Mappings in Deep Residual Networks, ECCV 2016"
_WIDE = "Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016"
for _name, _title, _count, _paper, _build in (
    ("resnet20", "ResNet-20 (CIFAR)", 269_722, _RESIDUAL, partial(CifarResNet, 20)),
    ("resnet32", "ResNet-32 (CIFAR)", 464_154, _RESIDUAL, partial(CifarResNet, 32)),
    ("resnet44", "ResNet-44 (CIFAR)", 658_586, _RESIDUAL, partial(CifarResNet, 44)),
    ("resnet56", "ResNet-56 (CIFAR)", 853_018, _RESIDUAL, partial(CifarResNet, 56)),
    ("preact-resnet20", "PreAct ResNet-20 (CIFAR)", 269_722, _IDENTITY, partial(PreActResNet, 20)),
    ("preact-resnet32", "PreAct ResNet-32 (CIFAR)", 464_154, _IDENTITY, partial(PreActResNet, 32)),
    ("wide-resnet-16-4", "WideResNet-16-4", 2_748_890, _WIDE, partial(WideResNet, 16, 4)),
    ("wide-resnet-22-10", "WideResNet-22-10", 26_797_914, _WIDE, partial(WideResNet, 22, 10)),
    ("wide-resnet-28-10", "WideResNet-28-10", 36_479_194, _WIDE, partial(WideResNet, 28, 10)),
):
    register_backbone(
        _name,
        title=_title,
        kind="image",
        parameters=_count,
        parameters_for=10,
        input_size=(32, 32),
        paper=_paper,
    )(_build)
