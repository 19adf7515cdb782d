"""The image tower of every open_clip model, as ``create_backbone("open_clip:NAME", ...)``, when open_clip is installed.

Nothing is downloaded: ``checkpoint=`` takes the weights of a whole open_clip model (``open_clip_model.safetensors``), of which
the image tower is read; the network starts from scratch without one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from classmargin._checks import did_you_mean, require_extra
from classmargin.backbones._torchvision import tolerate_broken_torchvision
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.pretrained import CLIP_MEAN, CLIP_STD, colour_adapter
from classmargin.backbones.registry import BackboneInfo, register_family


def load_open_clip() -> Any:
    """Return the package, or raise an ImportError that names the extra."""
    tolerate_broken_torchvision()
    return require_extra("open_clip", "open-clip", "an open_clip backbone")


class OpenClipEncoder(nn.Module):
    """Images to the embeddings of an open_clip model's image tower.

    Args:
        name: open_clip's name of the model, e.g. ``ViT-B-32``.
        input_size: Height and width of the images.
        in_channels: Channels of the images, 1 or 3.
    """

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
        embedding: Tensor = (
            output[0] if isinstance(output, tuple) else output
        )  # some towers return tokens too
        return embedding

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return the image tower of a whole open_clip model; other tensors are left out."""
        tower = {key: value for key, value in state.items() if key.startswith("visual.")}
        return tower or state


def _convert(state: StateDict) -> Weights:
    return Weights(state, {})


def describe_open_clip(name: str) -> BackboneInfo:
    """Return the record of one open_clip model.

    Raises:
        ValueError: open_clip has no model of this name; the message suggests the nearest one.
        ImportError: open_clip is not installed; the message names the extra.
    """
    open_clip = load_open_clip()
    settings = open_clip.get_model_config(name)
    if settings is None:
        raise ValueError(f"open_clip has no model {name!r}{did_you_mean(name, open_clip.list_models())}")
    size = settings["vision_cfg"].get("image_size", 224)

    def build(*, in_channels: int, input_size: tuple[int, ...]) -> nn.Module:
        return OpenClipEncoder(name, input_size, in_channels)

    return BackboneInfo(
        name=f"open_clip:{name}",
        title=f"{name} of open_clip, image tower",
        kind="image",
        build=build,
        input_size=(size, size) if isinstance(size, int) else tuple(size),
        head="cosine",
        normalize_features=True,
        extra="open-clip",
        convert=_convert,
        weights=f"the weights of a {name} in open_clip's format (open_clip_model.safetensors)",
    )


register_family("open_clip", describe_open_clip)
