"""ResNet-18 and ResNet-50 for ImageNet-sized images (He et al. 2016), supervised or from MoCo v2.

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
from classmargin.backbones.residual_blocks import (
    BasicBlock,
    Bottleneck,
    conv3x3,
    initialise_convolutions,
    residual_stage,
)

Stem = Literal["imagenet", "cifar"]
Block = type[BasicBlock] | type[Bottleneck]


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
        block: Block,
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


def build_resnet(
    block: Block,
    depths: tuple[int, int, int, int],
    *,
    in_channels: int,
    stem: Stem = "imagenet",
    zero_init_residual: bool = False,
    width: int = 64,
) -> nn.Module:
    """Return the encoder of a ResNet (see :class:`ResNet`)."""
    return ResNet(block, depths, in_channels, stem=stem, zero_init_residual=zero_init_residual, width=width)


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
    ("resnet18", "ResNet-18 (ImageNet)", 11_689_512, partial(build_resnet, BasicBlock, (2, 2, 2, 2))),
    ("resnet50", "ResNet-50 (ImageNet)", 25_557_032, partial(build_resnet, Bottleneck, (3, 4, 6, 3))),
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
