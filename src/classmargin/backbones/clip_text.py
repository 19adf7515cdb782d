"""A classifier from words: the text tower of CLIP turns class names into the rows of a cosine head.

Data flow: class names, prompts (templates), tokens, text tower, mean of length 1, ``head.weight`` ``[K, d]``.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from classmargin._checks import check_choice, require_extra
from classmargin._files import read_text
from classmargin.backbones.checkpoints import StateDict
from classmargin.backbones.clip_files import OPENAI_ACTIVATION, clip_activation, text_to_transformers
from classmargin.backbones.contract import Backbone
from classmargin.backbones.heads import CosineHead

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
_HEAD_SIZE = 64
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

    Args:
        backbone: CLIP encoder with a head.
        state: All tensors of the checkpoint; None without one.
        class_names: Names of the K classes, in order, or a text file with one on each line. Left out: the head
            starts at random.
        prompt_templates: Sentences with ``{}`` where the name goes; their embeddings are averaged. ``"ensemble"``
            for seven of OpenAI's, or a text file with one on each line.
        tokenizer: Folder with a saved CLIP tokenizer (``tokenizer.json``, or ``vocab.json`` and
            ``merges.txt``), or OpenAI's ``bpe_simple_vocab_16e6.txt.gz``. Left out: the folder of the
            checkpoint.
        activation: Of the text tower: ``quick_gelu`` or ``gelu``. Left out: what the settings beside the
            checkpoint say.
        checkpoint: Where ``state`` came from.
        head_options: Options the head was made with; a ``scale`` among them is kept.
        head_start: ``"prompts"`` refuses a head that would start at random, ``"auto"`` allows it.

    Raises:
        ValueError: Class names without a text tower, tokenizer or cosine head, or not one for each class.
    """
    head = backbone.head
    keeps_scale = bool(head_options) and "scale" in (head_options or {})
    if isinstance(head, CosineHead) and state is not None and "logit_scale" in state and not keeps_scale:
        head.log_scale.data.fill_(float(state["logit_scale"]))
    check_choice("head_start", head_start, ("auto", "prompts"))
    if class_names is None:
        if head_start == "prompts":
            raise ValueError(
                "head_start='prompts' needs class_names, a checkpoint with a text tower and a tokenizer"
            )
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
    text_state = {} if state is None else text_to_transformers(state)
    if not text_state:
        raise ValueError("class_names need the text tower of CLIP, which the checkpoint does not hold")
    source = _tokenizer_beside(checkpoint) if tokenizer is None else Path(tokenizer)
    if source is None:
        raise ValueError(
            "class_names need tokenizer=: the folder of a saved CLIP tokenizer, "
            "or bpe_simple_vocab_16e6.txt.gz"
        )
    kind = clip_activation(activation, checkpoint, "text")
    templates = ENSEMBLE if prompt_templates == "ensemble" else _texts(prompt_templates)
    embeddings = embed_class_names(names, templates, text_state, source, activation=kind)
    head.weight.data.copy_(embeddings)
    backbone.head_start = "prompts"


def _texts(given: Sequence[str] | str | Path) -> list[str]:
    """Return the given texts, or the lines of a file."""
    if not isinstance(given, (str, Path)):
        return list(given)
    return [line.strip() for line in read_text(Path(given)).splitlines() if line.strip()]


def _tokenizer_beside(checkpoint: Path | None) -> Path | None:
    if checkpoint is None:
        return None
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    return folder if any((folder / name).exists() for name in ("tokenizer.json", "vocab.json")) else None


def embed_class_names(
    class_names: Sequence[str],
    templates: Sequence[str],
    text_state: StateDict,
    tokenizer: Path,
    *,
    activation: str = OPENAI_ACTIVATION,
) -> Tensor:
    """Return one embedding of length 1 for each class, ``[K, d]``: the mean over its prompts.

    Args:
        class_names: Names of the classes; underscores become spaces.
        templates: Sentences with ``{}``.
        text_state: Text tower in the names of ``transformers``.
        tokenizer: See :func:`start_head_from_prompts`.
        activation: Of the text tower.
    """
    for template in templates:
        if "{}" not in template:
            raise ValueError(f"prompt_templates must hold {{}} where the class name goes, got {template!r}")
    tower = load_text_tower(text_state, activation)
    prompts = [template.format(name.replace("_", " ")) for name in class_names for template in templates]
    longest = tower.config.max_position_embeddings
    encoded = load_tokenizer(tokenizer)(
        prompts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
    )
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
        num_attention_heads=max(1, width // _HEAD_SIZE),
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


def load_tokenizer(path: Path) -> Any:
    """Return CLIP's tokenizer from a folder, or from OpenAI's list of merges."""
    transformers = require_extra("transformers", "pretrained", "the tokenizer of CLIP")
    if not path.exists():
        raise FileNotFoundError(f"tokenizer {path} does not exist")
    if path.is_dir():
        return transformers.CLIPTokenizer.from_pretrained(str(path), local_files_only=True)
    with tempfile.TemporaryDirectory() as folder:
        write_vocabulary(path, Path(folder))
        return transformers.CLIPTokenizer.from_pretrained(folder, local_files_only=True)


def write_vocabulary(merges_file: Path, folder: Path) -> None:
    """Write ``vocab.json`` and ``merges.txt`` from OpenAI's compressed list of byte-pair merges.

    The vocabulary is implied by the merges: 256 byte symbols, the same ending a word, one entry for each
    merge, and two marks. Of the published list the first 48 894 merges count (49 408 entries in all).
    """
    opener = gzip.open if merges_file.suffix == ".gz" else open
    with opener(merges_file, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[1:]
    merges = [line for line in lines if len(line.split()) == 2][: 49152 - 256 - 2]
    symbols = _byte_symbols()
    entries = [*symbols, *(symbol + "</w>" for symbol in symbols), *("".join(m.split()) for m in merges)]
    entries += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")


def _byte_symbols() -> list[str]:
    """Return a printable character for each byte, printable bytes first, as byte-level BPE orders them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
