"""The visual tower of CLIP ViT-B/32, as ``transformers`` implements it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.clip_activation import OPENAI_ACTIVATION, clip_activation
from classmargin.backbones.clip_names import vision_to_transformers
from classmargin.backbones.clip_text import start_head_from_prompts
from classmargin.backbones.pretrained import CLIP_MEAN, CLIP_STD, colour_adapter, patch_grid, resize_positions
from classmargin.backbones.registry import register_backbone

_POSITIONS = "model.vision_model.embeddings.position_embedding.weight"


class ClipVisionTransformer(nn.Module):
    """Images to CLIP embeddings, not normalised.

    Args:
        input_size: Height and width of the images, equal and a multiple of the patch size.
        in_channels: Channels of the images, 1 or 3.
        patch_size: Side of a patch.
        width: Size of a token.
        depth: Number of blocks.
        heads: Number of attention heads.
        output_dim: Size of the embedding.
        activation: Of the perceptrons: ``quick_gelu`` (OpenAI) or ``gelu`` (most networks of open_clip).
    """

    def __init__(
        self,
        input_size: tuple[int, ...],
        *,
        in_channels: int = 3,
        patch_size: int = 32,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        output_dim: int = 512,
        activation: str = OPENAI_ACTIVATION,
    ) -> None:
        super().__init__()
        transformers = require_extra("transformers", "pretrained", "CLIP ViT-B/32")
        self.grid = patch_grid(input_size, patch_size)
        if self.grid[0] != self.grid[1]:
            raise ValueError(f"input_size of 'clip-vit-b32' must be square, got {input_size}")
        self.feature_dim = output_dim
        self.num_layers = depth + 1
        # What the weights do not show; kept features must know it.
        self.found_options = {} if activation == OPENAI_ACTIVATION else {"activation": activation}
        self.colour = colour_adapter("clip-vit-b32", in_channels, CLIP_MEAN, CLIP_STD)
        self.model = transformers.CLIPVisionModelWithProjection(
            transformers.CLIPVisionConfig(
                image_size=input_size[0],
                patch_size=patch_size,
                hidden_size=width,
                intermediate_size=4 * width,
                num_hidden_layers=depth,
                num_attention_heads=heads,
                projection_dim=output_dim,
                hidden_act=activation,
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, output_dim]``."""
        features: Tensor = self.model(pixel_values=self.colour(inputs)).image_embeds
        return features

    def layer_of(self, parameter_name: str) -> int:
        """Return 0 for the embedding, 1 … depth for the blocks, ``num_layers`` for what follows them."""
        _, is_block, rest = parameter_name.partition("encoder.layers.")
        if is_block:
            return int(rest.split(".")[0]) + 1
        return self.num_layers if "post_layernorm" in parameter_name or "projection" in parameter_name else 0

    def adapt_state(self, state: StateDict) -> StateDict:
        """Return a checkpoint's tensors with positions for this image size."""
        return (
            {**state, _POSITIONS: resize_positions(state[_POSITIONS], self.grid)}
            if _POSITIONS in state
            else state
        )


def convert_clip_vit(state: StateDict) -> Weights:
    """Take the visual tower out of a CLIP checkpoint in OpenAI's, open_clip's or the hub's names."""
    return Weights({f"model.{key}": value for key, value in vision_to_transformers(state).items()}, {})


@register_backbone(
    "clip-vit-b32",
    title="CLIP ViT-B/32",
    kind="image",
    parameters=87_849_216,
    paper="Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    input_size=(224, 224),
    head="cosine",
    normalize_features=True,
    input_mean=CLIP_MEAN,
    input_std=CLIP_STD,
    extra="pretrained",
    convert=convert_clip_vit,
    finish=start_head_from_prompts,
    weights=(
        "openai/clip-vit-base-patch32 from the Hugging Face hub (its folder or model.safetensors), or "
        "ViT-B-32.pt as published by OpenAI (github.com/openai/CLIP)"
    ),
)
def build_clip_vit(
    *,
    in_channels: int,
    input_size: tuple[int, ...],
    patch_size: int = 32,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    output_dim: int = 512,
    activation: str | None = None,
    checkpoint: Path | None = None,
) -> nn.Module:
    """Return the visual tower; its activation is that of the settings beside the weights if left out."""
    return ClipVisionTransformer(
        input_size,
        in_channels=in_channels,
        patch_size=patch_size,
        width=width,
        depth=depth,
        heads=heads,
        output_dim=output_dim,
        activation=clip_activation(activation, checkpoint, "vision"),
    )
