"""ResNet-18 and ResNet-50 for ImageNet-sized images (He et al. 2016).

Module names are those that checkpoints of these networks use everywhere (``conv1``, ``layer1.0.bn1``,
``downsample.0``, ``fc``), so that supervised weights load as they are and MoCo v2 after one change of
prefix. As in those checkpoints, the stride of a bottleneck sits in its 3x3 convolution.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_choice
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.pretrained import IMAGENET_MEAN, IMAGENET_STD
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.residual_parts import conv3x3, initialise_convolutions

_PAPER = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
Stem = Literal["imagenet", "cifar"]


def _downsample(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == out_channels:
        return None
    projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a projected shortcut where the shape changes.

    Args:
        in_channels: Channels that come in.
        width: Channels of both convolutions.
        stride: Step of the first convolution.
    """

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(in_channels, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = self.bn2(self.conv2(residual))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(residual.add_(shortcut), inplace=True)


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3, 1x1; the last one widens four times.

    Args:
        in_channels: Channels that come in.
        width: Channels of the first two convolutions.
        stride: Step of the 3x3 convolution.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _downsample(in_channels, 4 * width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = F.relu(self.bn2(self.conv2(residual)), inplace=True)
        residual = self.bn3(self.conv3(residual))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(residual.add_(shortcut), inplace=True)


class ResNet(nn.Module):
    """Images to the averaged features of a four-stage residual network.

    Args:
        block: Kind of block.
        depths: Blocks in each of the four stages.
        in_channels: Channels of the images.
        width: Channels of the first stage; each stage doubles them (64 in the paper, less in tests).
        stem: ``imagenet`` (7x7, stride 2, pooling) or ``cifar`` (3x3) for images of 32 pixels.
        zero_init_residual: Start every block as the identity (Goyal et al. 2017).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        in_channels: int = 3,
        *,
        width: int = 64,
        stem: Stem = "imagenet",
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        check_choice("stem", stem, ("imagenet", "cifar"))
        large = stem == "imagenet"
        self.conv1 = (
            nn.Conv2d(in_channels, width, 7, 2, padding=3, bias=False)
            if large
            else conv3x3(in_channels, width)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        widths = [width * 2**stage for stage in range(4)]
        inputs = [width, *(w * block.expansion for w in widths[:-1])]
        stages = [_stage(block, inputs[i], widths[i], depths[i], stride=1 if i == 0 else 2) for i in range(4)]
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.feature_dim = widths[-1] * block.expansion
        initialise_convolutions(self)
        if zero_init_residual:
            _start_as_identity(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        maps = self.maxpool(F.relu(self.bn1(self.conv1(inputs)), inplace=True))
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(maps)))).mean(dim=(2, 3))
        return features


def _stage(
    block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    first = block(in_channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def _start_as_identity(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)


def convert_supervised(state: StateDict) -> Weights:
    """Split a supervised ResNet checkpoint: ``fc`` is the head, the rest the encoder."""
    encoder = {key: value for key, value in state.items() if not key.startswith("fc.")}
    return Weights(encoder, with_prefix(state, "fc."))


def build_resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: tuple[int, int, int, int],
    *,
    in_channels: int,
    stem: Stem = "imagenet",
    zero_init_residual: bool = False,
    width: int = 64,
) -> nn.Module:
    """Return the encoder of a ResNet (see :class:`ResNet`)."""
    return ResNet(block, depths, in_channels, stem=stem, zero_init_residual=zero_init_residual, width=width)


build_resnet18 = partial(build_resnet, BasicBlock, (2, 2, 2, 2))
build_resnet50 = partial(build_resnet, Bottleneck, (3, 4, 6, 3))

for _name, _title, _count, _build in (
    ("resnet18", "ResNet-18 (ImageNet)", 11_689_512, build_resnet18),
    ("resnet50", "ResNet-50 (ImageNet)", 25_557_032, build_resnet50),
):
    register_backbone(
        _name,
        title=_title,
        kind="image",
        parameters=_count,
        parameters_for=1000,
        input_size=(224, 224),
        paper=_PAPER,
        input_mean=IMAGENET_MEAN,
        input_std=IMAGENET_STD,
        convert=convert_supervised,
        weights=f"a supervised {_title} checkpoint (keys conv1 … fc; .pth or .safetensors)",
    )(_build)
