"""Residual blocks, and ResNet-18 and ResNet-50 for ImageNet-sized images (He et al. 2016), supervised or from MoCo v2.

Module names are those that checkpoints of these networks use everywhere (``conv1``, ``layer1.0.bn1``,
``downsample.0``, ``fc``), so that supervised weights load as they are and MoCo v2 after one change of
prefix. As in those checkpoints, the stride of a bottleneck sits in its 3x3 convolution.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_choice
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.pretrained import IMAGENET_MEAN, IMAGENET_STD
from classmargin.backbones.registry import register_backbone

# Made from (channels that come in, channels that go out, stride), only where the shape changes.
Shortcut = Callable[[int, int, int], nn.Module]


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution that keeps the size (or halves it with stride 2), without bias."""
    return nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1x1 convolution without bias."""
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


class PaddedShortcut(nn.Module):
    """Parameter-free shortcut (He et al. 2016, option A).

    Every second pixel is kept and the new channels are zeros, half of them before and half after the old
    ones.
    """

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
    parts = {
        "-1": nn.AvgPool2d(stride),
        "0": conv1x1(in_channels, out_channels),
        "1": nn.BatchNorm2d(out_channels),
    }
    return nn.Sequential(OrderedDict(parts))


def _across(shortcut: Shortcut, in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    return (
        None if stride == 1 and in_channels == out_channels else shortcut(in_channels, out_channels, stride)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, batch norm after each, ReLU after the sum."""

    expansion = 1

    def __init__(
        self, in_channels: int, width: int, stride: int, shortcut: Shortcut = projected_shortcut
    ) -> None:
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
    """Convolutions 1x1, 3x3, 1x1; the last one widens four times.

    Args:
        in_channels: Channels that come in.
        width: Channels of the first two convolutions.
        stride: Factor by which the image shrinks.
        shortcut: Made where the shape changes.
        pooled: Shrink by an average pool after the 3x3 convolution (CLIP) instead of by its stride.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        shortcut: Shortcut = projected_shortcut,
        *,
        pooled: bool = False,
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
    """Batch norm, ReLU and 3x3 convolution, twice, added to the inputs.

    Where the shape changes, the shortcut starts from the activated inputs.

    Args:
        in_channels: Channels that come in.
        width: Channels that go out.
        stride: Step of the first convolution.
        shortcut: Made where the shape changes.
        dropout: Share of activations dropped before the second convolution.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, shortcut: Shortcut, *, dropout: float = 0.0
    ) -> None:
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


def residual_stage(
    block: Callable[[int, int, int], nn.Module],
    in_channels: int,
    width: int,
    depth: int,
    stride: int,
    *,
    expansion: int = 1,
) -> nn.Sequential:
    """Return ``depth`` blocks, of which the first one changes channels and size."""
    first = block(in_channels, width, stride)
    return nn.Sequential(first, *(block(width * expansion, width, 1) for _ in range(depth - 1)))


def initialise_convolutions(network: nn.Module) -> None:
    """Draw convolution weights from N(0, 2 / fan_out), as He et al. (2015) do for layers followed by ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


Stem = Literal["imagenet", "cifar"]
Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """Images to the averaged features of a four-stage residual network.

    Args:
        block: Kind of block.
        depths: Blocks in each of the four stages.
        in_channels: Channels of the images.
        stem: ``imagenet`` (7x7, stride 2, pooling) or ``cifar`` (3x3) for images of 32 pixels.
        zero_init_residual: Start every block as the identity (Goyal et al. 2017).
        width: Channels of the first stage; each stage doubles them (64 in the paper, less in tests).
    """

    def __init__(
        self,
        block: Block,
        depths: tuple[int, int, int, int],
        in_channels: int = 3,
        *,
        stem: Stem = "imagenet",
        zero_init_residual: bool = False,
        width: int = 64,
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
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            residual_stage(
                block, inputs[i], widths[i], depths[i], stride=2 if i else 1, expansion=block.expansion
            )
            for i in range(4)
        )
        self.feature_dim = widths[-1] * block.expansion
        initialise_convolutions(self)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, (BasicBlock, Bottleneck)):
                    last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
                    nn.init.zeros_(last.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        maps = self.maxpool(F.relu(self.bn1(self.conv1(inputs)), inplace=True))
        features: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(maps)))).mean(dim=(2, 3))
        return features


def build_moco(*, in_channels: int, width: int = 64) -> nn.Module:
    """Return the ResNet-50 encoder of momentum-contrast pretraining."""
    return ResNet(Bottleneck, (3, 4, 6, 3), in_channels, width=width)


def convert_supervised(state: StateDict) -> Weights:
    """Split a supervised ResNet checkpoint: ``fc`` is the head, the rest the encoder."""
    encoder = {key: value for key, value in state.items() if not key.startswith("fc.")}
    return Weights(encoder, with_prefix(state, "fc."))


def convert_moco(state: StateDict) -> Weights:
    """Take the query encoder out of a MoCo checkpoint; its ``fc`` is the projection head and is dropped.

    Raises:
        ValueError: No ``encoder_q`` in the file.
    """
    query = with_prefix(state, "encoder_q.")
    if not query:
        raise ValueError(
            "not a MoCo checkpoint: no keys 'module.encoder_q.…' among "
            f"{len(state)} (first: {', '.join(list(state)[:4])})"
        )
    return convert_supervised(query)._replace(head={})


_register = partial(
    register_backbone,
    kind="image",
    parameters_for=1000,
    input_size=(224, 224),
    input_mean=IMAGENET_MEAN,
    input_std=IMAGENET_STD,
)
for _name, _title, _count, _build in (
    ("resnet18", "ResNet-18 (ImageNet)", 11_689_512, partial(ResNet, BasicBlock, (2, 2, 2, 2))),
    ("resnet50", "ResNet-50 (ImageNet)", 25_557_032, partial(ResNet, Bottleneck, (3, 4, 6, 3))),
):
    _register(
        _name,
        title=_title,
        parameters=_count,
        paper="He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
        convert=convert_supervised,
        weights=f"a supervised {_title} checkpoint (keys conv1 … fc; .pth or .safetensors)",
    )(_build)
_register(
    "moco-resnet50",
    title="MoCo v2 ResNet-50",
    parameters=25_557_032,
    paper="Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020",
    convert=convert_moco,
    weights="moco_v2_800ep_pretrain.pth.tar from the release of MoCo (github.com/facebookresearch/moco)",
)(build_moco)
