"""Every image encoder of timm, as ``create_backbone("timm:NAME", ...)``, when timm is installed.

Nothing is downloaded: ``checkpoint=`` takes the file or folder of a timm model as the Hugging Face hub has it, and the
network starts from scratch without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from classmargin._checks import did_you_mean, require_extra
from classmargin.backbones._torchvision import tolerate_broken_torchvision
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.pretrained import colour_adapter
from classmargin.backbones.registry import BackboneInfo, register_family


def load_timm() -> Any:
    """Return the package, or raise an ImportError that names the extra."""
    tolerate_broken_torchvision()
    return require_extra("timm", "timm", "a timm backbone")


class TimmEncoder(nn.Module):
    """Images to the pooled features of a timm model.

    Args:
        name: timm's name of the model.
        input_size: Height and width of the images.
        in_channels: Channels of the images, 1 or 3.
        drop_path_rate: Stochastic depth, where the model has it.
    """

    def __init__(
        self,
        name: str,
        input_size: tuple[int, ...],
        in_channels: int = 3,
        drop_path_rate: float | None = None,
    ) -> None:
        super().__init__()
        options = {} if drop_path_rate is None else {"drop_path_rate": drop_path_rate}
        self.model = _create(name, input_size, options)
        settings: Mapping[str, Any] = self.model.pretrained_cfg
        self.input_mean, self.input_std = tuple(settings["mean"]), tuple(settings["std"])
        self.colour = colour_adapter(f"timm:{name}", in_channels, self.input_mean, self.input_std)
        # Models with a hidden layer in front of the classifier make features of another size.
        self.feature_dim = int(getattr(self.model, "head_hidden_size", 0) or self.model.num_features)
        given = settings.get("classifier") or ()
        self._classifiers = (given,) if isinstance(given, str) else tuple(given)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``: what timm's classifier would get."""
        images = self.colour(inputs)
        features: Tensor = self.model.forward_head(self.model.forward_features(images), pre_logits=True)
        return features.flatten(1)

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return the tensors of a timm checkpoint under the names of this module, without its classifier."""
        if any(key.startswith("model.") for key in state):
            return state  # saved from this module
        classifiers = tuple(f"{name}." for name in self._classifiers)
        return {f"model.{key}": value for key, value in state.items() if not key.startswith(classifiers)}


def _create(name: str, input_size: tuple[int, ...], options: Mapping[str, Any]) -> Any:
    timm = load_timm()
    try:  # transformers are built for one image size, convolutional networks know no such option
        return timm.create_model(name, pretrained=False, num_classes=0, img_size=tuple(input_size), **options)
    except TypeError:
        return timm.create_model(name, pretrained=False, num_classes=0, **options)


def _convert(state: StateDict) -> Weights:
    return Weights(state, {})


def describe_timm(name: str) -> BackboneInfo:
    """Return the record of one timm model.

    Raises:
        ValueError: timm has no model of this name; the message suggests the nearest one.
        ImportError: timm is not installed; the message names the extra.
    """
    timm = load_timm()
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    settings = timm.get_pretrained_cfg(name)
    size = tuple(getattr(settings, "input_size", None) or (3, 224, 224))[1:]

    def build(
        *, in_channels: int, input_size: tuple[int, ...], drop_path_rate: float | None = None
    ) -> nn.Module:
        return TimmEncoder(name, input_size, in_channels, drop_path_rate)

    return BackboneInfo(
        name=f"timm:{name}",
        title=f"{name} of timm",
        kind="image",
        build=build,
        input_size=size,
        extra="timm",
        convert=_convert,
        weights=f"timm/{name} from the Hugging Face hub (its folder or model.safetensors)",
    )


register_family("timm", describe_timm)
