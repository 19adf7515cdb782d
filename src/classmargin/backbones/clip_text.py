"""What CLIP's files say (tensors under OpenAI's names, the activation that no tensor shows), and a classifier from words.

OpenAI keeps query, key and value in one matrix (``attn.in_proj_weight``) and projections that multiply from the right;
``transformers``, whose names are used here, has three linear layers and transposed projections. OpenAI trained with
``quick_gelu``, most networks of open_clip with ``gelu``; only the settings beside the weights name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin._checks import check_choice, require_extra
from classmargin._files import read_json, read_text
from classmargin.backbones.checkpoints import StateDict, weights_file, with_prefix
from classmargin.backbones.contract import Backbone
from classmargin.backbones.heads import CosineHead

_BLOCK = re.compile(r"(?:transformer\.)?resblocks\.(\d+)\.(.+)$")
_BLOCK_NAMES = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_PROJECTIONS = {"proj": "visual_projection.weight", "text_projection": "text_projection.weight"}
_MODULES = {
    "conv1": "embeddings.patch_embedding",
    "ln_pre": "pre_layrnorm",
    "ln_post": "post_layernorm",
    "token_embedding": "embeddings.token_embedding",
    "ln_final": "final_layer_norm",
}
_TENSORS = {
    "class_embedding": "embeddings.class_embedding",
    "positional_embedding": "embeddings.position_embedding.weight",
}


def vision_to_transformers(state: StateDict) -> StateDict:
    """Return the vision transformer of a checkpoint in either format, named as in ``CLIPVisionModelWithProjection``."""
    openai = with_prefix(state, "visual.")
    return _renamed(openai, "vision_model") if openai else _kept(state, "vision_model", "visual")


def text_to_transformers(state: StateDict) -> StateDict:
    """Return the text tower under the names of ``CLIPTextModelWithProjection``; empty if there is none."""
    if "token_embedding.weight" in state:
        return _renamed(state, "text_model")
    return _kept(state, "text_model", "text")


def _kept(state: StateDict, tower: str, projection: str) -> StateDict:
    mine = (f"{tower}.", f"{projection}_projection.")
    # Position numbers were saved by older versions of transformers; they are constants.
    return {key: value for key, value in state.items() if key.startswith(mine) and not key.endswith("position_ids")}


def _renamed(state: StateDict, tower: str) -> StateDict:
    renamed: StateDict = {}
    for key, value in state.items():
        match = _BLOCK.match(key)
        if match is None:
            module, _, kind = key.rpartition(".")
            if key in _PROJECTIONS:
                renamed[_PROJECTIONS[key]] = value.T.contiguous()
            elif key in _TENSORS:
                renamed[f"{tower}.{_TENSORS[key]}"] = value
            elif module in _MODULES:
                renamed[f"{tower}.{_MODULES[module]}.{kind}"] = value
            continue
        block, (name, _, kind) = f"{tower}.encoder.layers.{match[1]}", match[2].rpartition(".")
        if kind.startswith("in_proj_"):
            for role, third in zip("qkv", value.chunk(3), strict=True):
                renamed[f"{block}.self_attn.{role}_proj.{kind[len('in_proj_') :]}"] = third.clone()
        else:
            renamed[f"{block}.{_BLOCK_NAMES.get(name, name)}.{kind}"] = value
    return renamed


OPENAI_ACTIVATION = "quick_gelu"
ACTIVATIONS = (OPENAI_ACTIVATION, "gelu")


def clip_activation(given: str | None, checkpoint: Path | None, tower: Literal["vision", "text"]) -> str:
    """Return the activation of one tower: the given one, that of the settings beside weights of the hub, or OpenAI's."""
    found = given
    if given is None and checkpoint is not None:
        weights = weights_file(checkpoint)
        of_open_clip = weights.name.startswith("open_clip_")
        file = weights.with_name("open_clip_config.json" if of_open_clip else "config.json")
        if file.exists() and (of_open_clip or weights.name.startswith(("model.", "pytorch_model."))):
            try:
                found = _stated_activation(read_json(file), tower)
            except (ValueError, AttributeError, RecursionError) as error:
                raise ValueError(f"{file} cannot be read ({error!r})") from error
    return check_choice("activation", OPENAI_ACTIVATION if found is None else found, ACTIVATIONS)


def _stated_activation(settings: Any, tower: str) -> Any:
    """Return the activation that settings of open_clip (``model_cfg``) or of ``transformers`` name, if they do."""
    if (model := settings.get("model_cfg")) is not None:
        return OPENAI_ACTIVATION if model.get("quick_gelu") else "gelu"
    alone = settings.get("model_type") == f"clip_{tower}_model"
    return (settings if alone else settings.get(f"{tower}_config") or {}).get("hidden_act")


DEFAULT_TEMPLATES = ("a photo of a {}.",)
# The seven templates that OpenAI found to do nearly as well together as its eighty.
ENSEMBLE = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
# What readers call classes without words: WordNet numbers of ImageNet, numbers of Flowers-102.
_NO_WORD = re.compile(r"n\d{8}|flower \d+")
HEAD_SIZE = 64  # of an attention head, in all CLIP models
_PROMPTS_AT_ONCE = 256


def start_head_from_prompts(
    backbone: Backbone,
    state: StateDict | None,
    *,
    class_names: Sequence[str] | str | Path | None = None,
    prompt_templates: Sequence[str] | str | Path = DEFAULT_TEMPLATES,
    tokenizer: str | Path | None = None,
    activation: str | None = None,
    checkpoint: Path | None = None,
    head_options: Mapping[str, Any] | None = None,
    head_start: str = "auto",
) -> None:
    """Give the cosine head the scale of the checkpoint and, if class names are given, their text embeddings.

    Names of the K classes, in order, and prompt templates (sentences with ``{}`` where the name goes, whose embeddings are
    averaged) may be text files with one on each line; ``"ensemble"`` stands for seven of OpenAI's templates. The tokenizer is the
    folder of a saved CLIP tokenizer; left out: that of the checkpoint. The activation of the text tower is ``quick_gelu`` or
    ``gelu``; left out: what the settings beside the checkpoint say. A ``scale`` among the head options is kept. Without class
    names the head starts at random, which ``head_start="prompts"`` refuses.
    """
    head = backbone.head
    tensors = state or {}
    if isinstance(head, CosineHead) and "logit_scale" in tensors and "scale" not in (head_options or {}):
        head.log_scale.data.fill_(float(tensors["logit_scale"]))
    check_choice("head_start", head_start, ("auto", "prompts"))
    if class_names is None:
        if head_start == "prompts":
            raise ValueError("head_start='prompts' needs class_names, a text tower and a tokenizer")
        return
    names = _texts(class_names)
    numbers = [name for name in names if _NO_WORD.fullmatch(name)]
    if numbers:
        raise ValueError(
            f"class_names must be words that a sentence can hold, got {numbers[0]!r}: put class_names.txt with one name "
            "on each line beside the data set, or name such a file as backbone.class_names"
        )
    if not isinstance(head, CosineHead):
        raise ValueError(f"class_names start a head of kind 'cosine'; this one is a {type(head).__name__}")
    if len(names) != backbone.num_classes:
        raise ValueError(f"class_names must name all {backbone.num_classes} classes, got {len(names)}")
    text_state = text_to_transformers(tensors)
    if not text_state:
        raise ValueError("class_names need the text tower of CLIP, which the checkpoint does not hold")
    source = None if tokenizer is None else Path(tokenizer)
    if source is None and checkpoint is not None:
        folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
        found = any((folder / name).exists() for name in ("tokenizer.json", "vocab.json"))
        source = folder if found else None
    if source is None:
        raise ValueError("class_names need tokenizer=: the folder of a saved CLIP tokenizer")
    tower = load_text_tower(text_state, clip_activation(activation, checkpoint, "text"))
    templates = ENSEMBLE if prompt_templates == "ensemble" else _texts(prompt_templates)
    head.weight.data.copy_(_embed(names, templates, tower, load_tokenizer(source)))
    backbone.head_start = "prompts"


def _texts(given: Sequence[str] | str | Path) -> list[str]:
    """Return the given texts, or the lines of a file."""
    if not isinstance(given, (str, Path)):
        return list(given)
    return [line.strip() for line in read_text(Path(given)).splitlines() if line.strip()]


def _embed(class_names: list[str], templates: Sequence[str], tower: Any, tokenizer: Any) -> Tensor:
    """Return one embedding of length 1 for each class, ``[K, d]``: the mean over its prompts."""
    for template in templates:
        if "{}" not in template:
            raise ValueError(f"prompt_templates must hold {{}} where the class name goes, got {template!r}")
    prompts = [template.format(name.replace("_", " ")) for name in class_names for template in templates]
    longest = tower.config.max_position_embeddings
    encoded = tokenizer(prompts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        pieces = torch.split(encoded["input_ids"], _PROMPTS_AT_ONCE)
        parts = [tower(input_ids=piece).text_embeds for piece in pieces]
    directions = F.normalize(torch.cat(parts), dim=-1)
    return F.normalize(directions.view(len(class_names), len(templates), -1).mean(dim=1), dim=-1)


def load_text_tower(text_state: StateDict, activation: str = OPENAI_ACTIVATION) -> Any:
    """Return the text tower as a ``transformers`` model whose sizes are read off the tensors."""
    transformers = require_extra("transformers", "pretrained", "the text tower of CLIP")
    vocabulary, width = text_state["text_model.embeddings.token_embedding.weight"].shape
    layers = {key.split(".")[3] for key in text_state if key.startswith("text_model.encoder.layers.")}
    config = transformers.CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=text_state["text_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=len(layers),
        num_attention_heads=max(1, width // HEAD_SIZE),
        max_position_embeddings=text_state["text_model.embeddings.position_embedding.weight"].shape[0],
        projection_dim=text_state["text_projection.weight"].shape[0],
        hidden_act=activation,
        # The last two entries of CLIP's vocabulary mark start and end; the end is where the sentence is read.
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )
    tower = transformers.CLIPTextModelWithProjection(config)
    tower.load_state_dict({key: value.float() for key, value in text_state.items()})
    return tower.eval()


def load_tokenizer(folder: Path) -> Any:
    """Return CLIP's tokenizer from a folder (``tokenizer.json``, or ``vocab.json`` and ``merges.txt``)."""
    transformers = require_extra("transformers", "pretrained", "the tokenizer of CLIP")
    if not folder.is_dir():
        raise FileNotFoundError(f"tokenizer {folder} must be the folder of a saved CLIP tokenizer")
    return transformers.CLIPTokenizer.from_pretrained(str(folder), local_files_only=True)
