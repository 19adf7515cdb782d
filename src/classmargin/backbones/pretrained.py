"""What encoders with published weights share: their input statistics, grey images, other image sizes.

Nothing is ever downloaded. ``create_backbone(name, checkpoint=PATH)`` takes the published file, and
``pretrained=True`` the weights of an installed package; without either the network starts from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def grey_statistics(mean: Sequence[float], std: Sequence[float]) -> tuple[tuple[float], tuple[float]]:
    """Return the one mean and deviation that grey images are normalised with for a colour encoder."""
    return (sum(mean) / len(mean),), (sum(std) / len(std),)


class GreyToColour(nn.Module):
    """Repeats a grey channel and moves it from the grey to the colour normalisation, exactly.

    Args:
        mean: Channel means of the encoder.
        std: Channel deviations of the encoder.

    Example:
        >>> pixels = torch.full((1, 1, 2, 2), 0.5)
        >>> (mean,), (std,) = grey_statistics(CLIP_MEAN, CLIP_STD)
        >>> colour = GreyToColour(CLIP_MEAN, CLIP_STD)((pixels - mean) / std)
        >>> back = colour[0, :, 0, 0] * torch.tensor(CLIP_STD) + torch.tensor(CLIP_MEAN)
        >>> back.round(decimals=4).tolist()
        [0.5, 0.5, 0.5]
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        (grey_mean,), (grey_std,) = grey_statistics(mean, std)
        means, stds = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", (grey_std / stds).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", ((grey_mean - means) / stds).view(1, -1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return images ``[B, 3, H, W]`` from ``[B, 1, H, W]``."""
        return inputs * self.scale + self.shift


def colour_adapter(name: str, in_channels: int, mean: Sequence[float], std: Sequence[float]) -> nn.Module:
    """Return what turns images of ``in_channels`` channels into the three an encoder was trained on."""
    if in_channels not in (1, 3):
        raise ValueError(f"in_channels of {name!r} must be 1 or 3, got {in_channels}")
    return nn.Identity() if in_channels == 3 else GreyToColour(mean, std)


def resize_positions(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return position embeddings for another grid of patches, by bicubic interpolation.

    Args:
        table: One row for the class token, then one for each patch of a square grid: ``[1 + n², d]``.
        grid: Rows and columns of the wanted grid.

    Returns:
        Table ``[1 + rows · columns, d]``; the given one if the size is right already.
    """
    side = round((table.shape[0] - 1) ** 0.5)
    if side * side != table.shape[0] - 1 or (side, side) == grid:
        return table
    first, patches = table[:1], table[1:].float()
    image = patches.T.reshape(1, -1, side, side)
    resized = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)
    return torch.cat([first, resized.flatten(2)[0].T.to(table.dtype)])


def patch_grid(input_size: Sequence[int], patch_size: int) -> tuple[int, int]:
    """Return how many patches fit into an image, down and across.

    Raises:
        ValueError: The image is not a whole number of patches.
    """
    height, width = input_size
    if height % patch_size or width % patch_size:
        raise ValueError(f"input_size must be a multiple of {patch_size}, got {height}x{width}")
    return height // patch_size, width // patch_size
