"""Networks for small images: a small CNN, and the residual networks of the CIFAR literature."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_number
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_blocks import (
    BasicBlock,
    PaddedShortcut,
    PreActBlock,
    conv1x1,
    conv3x3,
    initialise_convolutions,
    residual_stage,
)


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


# No input size: it takes images as they are, 28, 32 or 64 pixels alike.
@register_backbone("small-cnn", title="Small CNN", kind="image", parameters=103_898, parameters_for=10)
def build_small_cnn(*, in_channels: int) -> nn.Module:
    """Return the encoder of the small CNN."""
    return SmallCNN(in_channels)


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


def _cifar_resnet(depth: int, *, in_channels: int) -> nn.Module:
    return CifarResNet(depth, in_channels)


def _preact_resnet(depth: int, *, in_channels: int) -> nn.Module:
    return PreActResNet(depth, in_channels)


def _wide_resnet(depth: int, width: int, *, in_channels: int, dropout: float = 0.0) -> nn.Module:
    return WideResNet(depth, width, in_channels, dropout=dropout)


# Parameters with a linear head for 10 classes; the papers print 0.27M, 0.46M, 0.66M and 0.85M (Table 6), and
# 2.7M, 26.8M and 36.5M for the wide ones.
_RESIDUAL = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
_IDENTITY = "He et al., Identity Mappings in Deep Residual Networks, ECCV 2016"
_WIDE = "Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016"
for _name, _title, _count, _paper, _build in (
    ("resnet20", "ResNet-20 (CIFAR)", 269_722, _RESIDUAL, partial(_cifar_resnet, 20)),
    ("resnet32", "ResNet-32 (CIFAR)", 464_154, _RESIDUAL, partial(_cifar_resnet, 32)),
    ("resnet44", "ResNet-44 (CIFAR)", 658_586, _RESIDUAL, partial(_cifar_resnet, 44)),
    ("resnet56", "ResNet-56 (CIFAR)", 853_018, _RESIDUAL, partial(_cifar_resnet, 56)),
    ("preact-resnet20", "PreAct ResNet-20 (CIFAR)", 269_722, _IDENTITY, partial(_preact_resnet, 20)),
    ("preact-resnet32", "PreAct ResNet-32 (CIFAR)", 464_154, _IDENTITY, partial(_preact_resnet, 32)),
    ("wide-resnet-16-4", "WideResNet-16-4", 2_748_890, _WIDE, partial(_wide_resnet, 16, 4)),
    ("wide-resnet-22-10", "WideResNet-22-10", 26_797_914, _WIDE, partial(_wide_resnet, 22, 10)),
    ("wide-resnet-28-10", "WideResNet-28-10", 36_479_194, _WIDE, partial(_wide_resnet, 28, 10)),
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
