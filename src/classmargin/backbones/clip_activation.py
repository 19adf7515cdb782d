"""Which activation a CLIP was trained with: the weights do not show it, and the wrong one spoils the features.

OpenAI trained with ``x * sigmoid(1.702 x)`` (``quick_gelu``), most networks of open_clip (LAION, DataComp) with
``gelu``. The settings that lie beside published weights name it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from classmargin._checks import check_choice
from classmargin.backbones.checkpoints import weights_file

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
        settings = json.loads(file.read_text(encoding="utf-8"))
        parts = [
            settings,
            *(settings.get(key) or {} for key in ("model_cfg", "vision_config", "text_config")),
        ]
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error!r})") from error
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError(f"{file} cannot be read (its parts must be dictionaries)")
    return dict(settings)
