"""Residual networks for small images (CIFAR), and ResNet-18 and ResNet-50 for large ones, supervised or from MoCo v2.

Module names of the large ones are those that checkpoints of these networks use everywhere (``conv1``, ``layer1.0.bn1``,
``downsample.0``, ``fc``), so that supervised weights load as they are and MoCo v2 after one change of
prefix. As in those checkpoints, the stride of a bottleneck sits in its 3x3 convolution.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_choice, check_number
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.registry import IMAGENET_MEAN, IMAGENET_STD, register_backbone

# A block, or a shortcut across one that changes the shape, made from (channels in, channels out, stride).
Layer = Callable[[int, int, int], nn.Module]


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the size (or halves it with stride 2), without bias."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1x1 convolution without bias."""
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


class PaddedShortcut(nn.Module):
    """Parameter-free shortcut (He et al. 2016, option A): every second pixel, and zeros around the old channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        before = (out_channels - in_channels) // 2
        self.padding = (0, 0, 0, 0, before, out_channels - in_channels - before)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the strided, zero-padded inputs."""
        return F.pad(inputs[:, :, :: self.stride, :: self.stride], self.padding)


def projected_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return a 1x1 convolution with batch norm, as in the networks for ImageNet."""
    return nn.Sequential(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))


def pooled_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return an average pool before the 1x1 convolution, as in CLIP."""
    # The names "0" and "1" belong to the parts with parameters in the published files, hence "-1".
    layers = [nn.AvgPool2d(stride), conv1x1(in_channels, out_channels), nn.BatchNorm2d(out_channels)]
    return nn.Sequential(OrderedDict(zip(("-1", "0", "1"), layers, strict=True)))


def _across(shortcut: Layer, in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return shortcut(in_channels, out_channels, stride)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, batch norm after each, ReLU after the sum."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, shortcut: Layer = projected_shortcut) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _across(shortcut, in_channels, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = self.bn2(self.conv2(residual))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(residual.add_(shortcut), inplace=True)


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3, 1x1, the last four times as wide; ``pooled`` ones shrink by an average pool (CLIP), not a stride."""

    expansion = 4

    def __init__(
        self, in_channels: int, width: int, stride: int, shortcut: Layer = projected_shortcut, *, pooled: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = conv1x1(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, 1 if pooled else stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(stride) if pooled and stride > 1 else nn.Identity()
        self.conv3 = conv1x1(width, 4 * width)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _across(shortcut, in_channels, 4 * width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum after ReLU."""
        residual = F.relu(self.bn1(self.conv1(inputs)), inplace=True)
        residual = self.avgpool(F.relu(self.bn2(self.conv2(residual)), inplace=True))
        residual = self.bn3(self.conv3(residual))
        shortcut = inputs if self.downsample is None else self.downsample(inputs)
        return F.relu(residual.add_(shortcut), inplace=True)


class PreActBlock(nn.Module):
    """Batch norm, ReLU and 3x3 convolution, twice; where the shape changes, the shortcut starts from the activated inputs."""

    def __init__(self, in_channels: int, width: int, stride: int, shortcut: Layer, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = conv3x3(width, width)
        self.shortcut = _across(shortcut, in_channels, width, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the residual sum, not activated."""
        activated = F.relu(self.bn1(inputs), inplace=True)
        residual = F.relu(self.bn2(self.conv1(activated)), inplace=True)
        residual = self.conv2(self.dropout(residual))
        total: Tensor = residual.add_(inputs if self.shortcut is None else self.shortcut(activated))
        return total


def residual_stages(
    block: Layer, in_channels: int, widths: Sequence[int], depths: Sequence[int], expansion: int = 1
) -> list[nn.Sequential]:
    """Return one stage for each width; its first block changes the channels and, but for the first stage, halves the image."""
    stages = []
    for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        first = block(in_channels, width, 2 if number else 1)
        in_channels = width * expansion
        stages.append(nn.Sequential(first, *(block(in_channels, width, 1) for _ in range(depth - 1))))
    return stages


def initialise_convolutions(network: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / fan_out), as He et al. (2015) do for layers followed by ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def _three_stages(block: Layer, widths: tuple[int, int, int], depth: int, outside: int) -> nn.Sequential:
    """Return the blocks of a network of ``depth`` weighted layers, ``outside`` of them not in a block."""
    if depth < 6 + outside or (depth - outside) % 6:
        examples = ", ".join(str(outside + 6 * n) for n in (2, 3, 4))
        raise ValueError(f"depth must be 6n + {outside} ({examples}, ...), got {depth}")
    stages = residual_stages(block, 16, widths, [(depth - outside) // 6] * 3)
    return nn.Sequential(*chain.from_iterable(stages))


class CifarResNet(nn.Module):
    """Images to the 64 averaged features of a CIFAR ResNet of 6n + 2 layers (He et al. 2016, section 4.2, option A)."""

    feature_dim = 64

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__()
        self.stem = conv3x3(in_channels, 16)
        self.stem_norm = nn.BatchNorm2d(16)
        self.blocks = _three_stages(partial(BasicBlock, shortcut=PaddedShortcut), (16, 32, 64), depth, 2)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 64]``."""
        maps = F.relu(self.stem_norm(self.stem(inputs)), inplace=True)
        return torch.mean(self.blocks(maps), dim=(2, 3))


class _PreActivated(nn.Module):
    """Blocks of batch norm, ReLU and convolution in this order, and both once more before the average."""

    def __init__(self, block: Layer, width: int, depth: int, outside: int, channels: int) -> None:
        super().__init__()
        self.feature_dim = 4 * width
        self.stem = conv3x3(channels, 16)
        self.blocks = _three_stages(block, (width, 2 * width, 4 * width), depth, outside)
        self.norm = nn.BatchNorm2d(self.feature_dim)
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        maps = F.relu(self.norm(self.blocks(self.stem(inputs))), inplace=True)
        return maps.mean(dim=(2, 3))


class PreActResNet(_PreActivated):
    """A :class:`CifarResNet` of 6n + 2 layers with batch norm and ReLU before each convolution."""

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__(partial(PreActBlock, shortcut=PaddedShortcut), 16, depth, 2, in_channels)


class WideResNet(_PreActivated):
    """Images to the ``64 · width`` averaged features of a wide residual network of 6n + 4 layers."""

    def __init__(self, depth: int, width: int, in_channels: int = 3, *, dropout: float = 0.0) -> None:
        check_number("dropout", dropout, minimum=0.0, below=1.0)
        block = partial(PreActBlock, shortcut=conv1x1, dropout=dropout)
        super().__init__(block, 16 * width, depth, 4, in_channels)


class ResNet(nn.Module):
    """Images to the averaged features of a four-stage residual network, of which each stage doubles the channels.

    The ``stem`` is ``imagenet`` (7x7, stride 2, pooling), or ``cifar`` (3x3) for images of 32 pixels.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        in_channels: int = 3,
        *,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        width: int = 64,
    ) -> None:
        super().__init__()
        check_choice("stem", stem, ("imagenet", "cifar"))
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(in_channels, width, 7, 2, 3, bias=False) if large else conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        widths = [width * 2**stage for stage in range(4)]
        stages = residual_stages(block, width, widths, depths, block.expansion)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.feature_dim = widths[-1] * block.expansion
        initialise_convolutions(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        maps = self.maxpool(F.relu(self.bn1(self.conv1(inputs)), inplace=True))
        return torch.mean(self.layer4(self.layer3(self.layer2(self.layer1(maps)))), dim=(2, 3))


def convert_supervised(state: StateDict) -> Weights:
    """Split a supervised ResNet checkpoint: ``fc`` is the head, the rest the encoder."""
    encoder = {key: value for key, value in state.items() if not key.startswith("fc.")}
    return Weights(encoder, with_prefix(state, "fc."))


def convert_moco(state: StateDict) -> Weights:
    """Take the query encoder out of a MoCo checkpoint; its ``fc`` is the projection head and is dropped."""
    query = with_prefix(state, "encoder_q.")
    if not query:
        raise ValueError(f"not a MoCo checkpoint: no keys 'module.encoder_q.…' (first: {', '.join(list(state)[:4])})")
    return convert_supervised(query)._replace(head={})


_resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
_resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))
_SUPERVISED = "a supervised {} checkpoint (keys conv1 … fc; .pth or .safetensors)"
_MOCO = "moco_v2_800ep_pretrain.pth.tar from the release of MoCo (github.com/facebookresearch/moco)"
for _name, _title, _count, _network, _convert, _weights in (
    ("resnet18", "ResNet-18 (ImageNet)", 11_689_512, _resnet18, convert_supervised, _SUPERVISED),
    ("resnet50", "ResNet-50 (ImageNet)", 25_557_032, _resnet50, convert_supervised, _SUPERVISED),
    ("moco-resnet50", "MoCo v2 ResNet-50", 25_557_032, _resnet50, convert_moco, _MOCO),
):
    register_backbone(
        _name,
        title=_title,
        kind="image",
        parameters=_count,
        parameters_for=1000,
        input_size=(224, 224),
        input_mean=IMAGENET_MEAN,
        input_std=IMAGENET_STD,
        convert=_convert,
        weights=_weights.format(_title),
    )(_network)

# Parameters with a linear head for 10 classes; the papers print 0.27M, 0.46M, 0.66M and 0.85M (He et al. 2016, Table 6),
# and 2.7M, 26.8M and 36.5M for the wide ones (Zagoruyko and Komodakis 2016).
for _name, _title, _count, _small in (
    ("resnet20", "ResNet-20 (CIFAR)", 269_722, partial(CifarResNet, 20)),
    ("resnet32", "ResNet-32 (CIFAR)", 464_154, partial(CifarResNet, 32)),
    ("resnet44", "ResNet-44 (CIFAR)", 658_586, partial(CifarResNet, 44)),
    ("resnet56", "ResNet-56 (CIFAR)", 853_018, partial(CifarResNet, 56)),
    ("preact-resnet20", "PreAct ResNet-20 (CIFAR)", 269_722, partial(PreActResNet, 20)),
    ("preact-resnet32", "PreAct ResNet-32 (CIFAR)", 464_154, partial(PreActResNet, 32)),
    ("wide-resnet-16-4", "WideResNet-16-4", 2_748_890, partial(WideResNet, 16, 4)),
    ("wide-resnet-22-10", "WideResNet-22-10", 26_797_914, partial(WideResNet, 22, 10)),
    ("wide-resnet-28-10", "WideResNet-28-10", 36_479_194, partial(WideResNet, 28, 10)),
):
    _record = {"title": _title, "kind": "image", "parameters": _count, "parameters_for": 10, "input_size": (32, 32)}
    register_backbone(_name, **_record)(_small)
