"""Any image encoder that ``transformers`` can read from a folder (DINOv2, Swin, ConvNeXt, ViT …)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin._files import check_folder, read_json
from classmargin.backbones.pretrained import colour_adapter, patch_grid
from classmargin.backbones.registry import register_backbone


def load_model(name: str, folder: Path | None) -> Any:
    """Return the model saved in ``folder``, read from safetensors only, without any download.

    A pooler that the file has no weights for would be random; it is taken off.

    Raises:
        ValueError: No folder, not one of a ``transformers`` model, or one with weights missing.
    """
    transformers = require_extra("transformers", "pretrained", f"backbone {name!r}")
    if folder is None:
        raise ValueError(f"backbone {name!r} needs checkpoint=, the folder of a saved transformers model")
    if not (folder / "config.json").exists():
        raise ValueError(f"checkpoint {folder} of {name!r} must be a folder with config.json and weights")
    settings = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    check_folder(folder)
    try:
        # Without an answer, transformers asks on the terminal whether code of the folder may run.
        model, report = transformers.AutoModel.from_pretrained(
            str(folder), trust_remote_code=False, **settings
        )
    except Exception as error:  # a hostile config.json makes the library raise nearly anything
        raise ValueError(f"checkpoint {folder} of {name!r} cannot be read: {error}") from error
    missing = sorted(report["missing_keys"])
    if any("pooler" in key for key in missing):
        model.pooler = None
    lost = [key for key in missing if "pooler" not in key]
    if lost:
        raise ValueError(f"checkpoint {folder} of {name!r} lacks {len(lost)} weights ({', '.join(lost[:4])})")
    return model.float()  # newer versions of the library keep the half precision of a file


class TransformersImageEncoder(nn.Module):
    """Images to the pooled output of a ``transformers`` vision model, or to the mean of its tokens.

    Of a model of images and text (CLIP, SigLIP) the tower of images is taken. A masked autoencoder sees all patches.

    Args:
        folder: Folder of the saved model; its ``preprocessor_config.json`` gives the input statistics.
        input_size: Height and width of the images.
        in_channels: Channels of the images, 1 or 3.
    """

    def __init__(self, folder: Path | None, input_size: tuple[int, ...], in_channels: int = 3) -> None:
        super().__init__()
        model = load_model("hf-image", folder)
        self.model = model.vision_model if hasattr(model.config, "vision_config") else model
        # Masked autoencoders hide most patches at random, in evaluation too, unless told otherwise.
        self.masked = bool(getattr(self.model.config, "mask_ratio", None))
        self.found_options: dict[str, float] = {}
        if self.masked:
            self.model.config.mask_ratio = 0.0
            # Features kept with hidden patches must not be found again.
            self.found_options["mask_ratio"] = 0.0
        self.input_mean, self.input_std = _statistics(folder)
        mean, std = self.input_mean or (0.0, 0.0, 0.0), self.input_std or (1.0, 1.0, 1.0)
        self.colour = colour_adapter("hf-image", in_channels, mean, std)
        try:
            with torch.no_grad():
                self.feature_dim = self.eval()(torch.zeros(1, in_channels, *input_size)).shape[1]
        except Exception as error:  # models of text or sound raise what they like
            raise ValueError(
                f"checkpoint {folder} of 'hf-image' makes no features of images of {input_size}: {error}"
            ) from error
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        output = self.model(pixel_values=self.colour(inputs), **self._order_of_patches(inputs))
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        states: Tensor = output.last_hidden_state
        return states.mean(dim=1) if states.dim() == 3 else states.mean(dim=(2, 3))

    def _order_of_patches(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return what keeps a masked autoencoder from shuffling patches with the global random state."""
        if not self.masked:
            return {}
        height, width = patch_grid(inputs.shape[2:], self.model.config.patch_size)
        return {"noise": torch.arange(height * width, device=inputs.device).expand(inputs.shape[0], -1)}


def _statistics(folder: Path | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    file = None if folder is None else folder / "preprocessor_config.json"
    if file is None or not file.exists():
        return None, None
    try:
        settings = read_json(file)
        if settings.get("do_normalize") is False:  # statistics may stand there and are not used
            return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        mean, std = (
            None if settings.get(name) is None else tuple(float(value) for value in settings[name])
            for name in ("image_mean", "image_std")
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error!r})") from error
    return mean, std


@register_backbone(
    "hf-image",
    title="Any image model of transformers, from a folder",
    kind="image",
    input_size=(224, 224),
    extra="pretrained",
    convert=None,
    weights="the folder of an image model from the Hugging Face hub (config.json, model.safetensors)",
)
def build_hf_image(*, in_channels: int, input_size: tuple[int, ...], checkpoint: Path | None) -> nn.Module:
    """Return the model in the folder."""
    return TransformersImageEncoder(checkpoint, input_size, in_channels)
