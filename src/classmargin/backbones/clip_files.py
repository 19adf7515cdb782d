"""What CLIP's files say: tensors under OpenAI's names, and the activation that no tensor shows.

OpenAI keeps query, key and value in one matrix (``attn.in_proj_weight``) and projections as plain matrices
that multiply from the right; ``transformers``, whose names are used here, has three linear layers and transposed
projections. OpenAI trained with ``x * sigmoid(1.702 x)`` (``quick_gelu``), most networks of open_clip (LAION,
DataComp) with ``gelu``; the wrong one spoils the features, and only the settings beside the weights name it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from classmargin._checks import check_choice
from classmargin._files import read_json
from classmargin.backbones.checkpoints import StateDict, weights_file, with_prefix

_BLOCK = re.compile(r"(?:transformer\.)?resblocks\.(\d+)\.(.+)$")
_BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_VISION_NAMES = {
    "class_embedding": "vision_model.embeddings.class_embedding",
    "positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "ln_post.weight": "vision_model.post_layernorm.weight",
    "ln_post.bias": "vision_model.post_layernorm.bias",
}
_TEXT_NAMES = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
}


def vision_to_transformers(state: StateDict) -> StateDict:
    """Return the vision transformer of a CLIP checkpoint under the names of
    ``CLIPVisionModelWithProjection``.

    Accepts OpenAI's names (below ``visual.``) and those of ``transformers``; the text tower is left behind.
    """
    openai = with_prefix(state, "visual.")
    if not openai:
        return _keep(state, ("vision_model.", "visual_projection."))
    renamed = _rename(openai, _VISION_NAMES, "vision_model")
    if "proj" in openai:
        renamed["visual_projection.weight"] = openai["proj"].T.contiguous()
    return renamed


def text_to_transformers(state: StateDict) -> StateDict:
    """Return the text tower under the names of ``CLIPTextModelWithProjection``; empty if there is none."""
    if "token_embedding.weight" not in state:
        return _keep(state, ("text_model.", "text_projection."))
    renamed = _rename(state, _TEXT_NAMES, "text_model")
    if "text_projection" in state:
        renamed["text_projection.weight"] = state["text_projection"].T.contiguous()
    return renamed


def _keep(state: StateDict, prefixes: tuple[str, ...]) -> StateDict:
    # Position numbers were saved by older versions of transformers; they are constants.
    kept = {key: value for key, value in state.items() if key.startswith(prefixes)}
    return {key: value for key, value in kept.items() if not key.endswith("position_ids")}


def _rename(state: StateDict, outer: dict[str, str], tower: str) -> StateDict:
    renamed: StateDict = {}
    for key, value in state.items():
        match = _BLOCK.match(key)
        if match is not None:
            renamed |= _rename_in_block(f"{tower}.encoder.layers.{match[1]}", match[2], value)
        elif key in outer:
            renamed[outer[key]] = value
    return renamed


def _rename_in_block(block: str, key: str, value: Tensor) -> StateDict:
    if key.startswith("attn.in_proj_"):
        kind = key.removeprefix("attn.in_proj_")
        thirds = zip(("q_proj", "k_proj", "v_proj"), value.chunk(3), strict=True)
        return {f"{block}.self_attn.{role}.{kind}": third.clone() for role, third in thirds}
    name, _, kind = key.rpartition(".")
    return {f"{block}.{_BLOCK_NAMES.get(name, name)}.{kind}": value}


OPENAI_ACTIVATION = "quick_gelu"
ACTIVATIONS = (OPENAI_ACTIVATION, "gelu")


def clip_activation(given: str | None, checkpoint: Path | None, tower: Literal["vision", "text"]) -> str:
    """Return the activation of one tower: the given one, that of the checkpoint's settings, or OpenAI's.

    Args:
        given: Wins if it is not None.
        checkpoint: File or folder of weights. A file counts with the settings of its folder if it has the name it
            has on the Hugging Face hub.
        tower: Which of the two.

    Raises:
        ValueError: Neither of ``ACTIVATIONS``, or settings that cannot be read.

    Example:
        >>> clip_activation(None, None, "vision")
        'quick_gelu'
    """
    found = (
        _named_beside(weights_file(checkpoint), tower) if given is None and checkpoint is not None else given
    )
    return check_choice("activation", OPENAI_ACTIVATION if found is None else found, ACTIVATIONS)


def _named_beside(weights: Path, tower: str) -> str | None:
    if weights.name.startswith("open_clip_"):
        model = _settings(weights.with_name("open_clip_config.json")).get("model_cfg")
        return None if model is None else OPENAI_ACTIVATION if model.get("quick_gelu") else "gelu"
    if weights.name.startswith(("model.", "pytorch_model.")):
        settings = _settings(weights.with_name("config.json"))
        alone = settings.get("model_type") == f"clip_{tower}_model"
        own: dict[str, Any] = settings if alone else settings.get(f"{tower}_config") or {}
        return own.get("hidden_act")
    return None


def _settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        settings = read_json(file)
        parts = [
            settings,
            *(settings.get(key) or {} for key in ("model_cfg", "vision_config", "text_config")),
        ]
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error!r})") from error
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{file} cannot be read (its parts must be dictionaries)")
    return dict(settings)
