"""The one shape every network has: an encoder, a head, and what the data must look like.

    inputs --encoder--> features [B, d] --head--> logits [B, K]

Methods, the loop and the audit know only :class:`Backbone`. An encoder may have ``num_layers`` and ``layer_of(name)`` (0 for the
embedding, ``num_layers - 1`` for the last block), and ``no_weight_decay()``, the names that are not decayed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classmargin._checks import check_int, check_number
from classmargin._types import ModelOutput
from classmargin.backbones.heads import create_head


class ParameterGroup(TypedDict):
    """One group for ``torch.optim``; the learning rate of the group is the optimiser's times ``lr_scale``."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float
    lr_scale: float


class Backbone(nn.Module):
    """Encoder and head behind one call that returns features and logits.

    Args:
        encoder: Module from inputs to features ``[B, d]``.
        feature_dim: Feature size d.
        num_classes: Number of classes K.
        head: Kind of head: ``"linear"``, ``"cosine"`` or ``"gaussian"``.
        head_options: Options of the head, e.g. ``{"scale": 30.0}``.
        normalize_features: Scale features to length 1, for the head and for all other readers (CLIP).
        name: Name under which it was created.
        input_size: ``(height, width)`` of the images (``(d,)`` for features) it was built for, if that matters.
        input_mean: Channel means, in units of pixels in [0, 1], that the data must be normalised with.
            Without them the data's own are right.
        input_std: Channel deviations, likewise.

    Example:
        >>> backbone = Backbone(nn.Flatten(), feature_dim=12, num_classes=5)
        >>> output = backbone(torch.zeros(2, 3, 2, 2))
        >>> output.features.shape, output.logits.shape
        (torch.Size([2, 12]), torch.Size([2, 5]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        feature_dim: int,
        num_classes: int,
        head: str = "linear",
        head_options: Mapping[str, Any] | None = None,
        normalize_features: bool = False,
        name: str = "custom",
        input_size: Sequence[int] | None = None,
        input_mean: Sequence[float] | None = None,
        input_std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.feature_dim = check_int("feature_dim", feature_dim, minimum=1)
        self.num_classes = check_int("num_classes", num_classes, minimum=1)
        self.normalize_features = normalize_features
        self.name = name
        self.input_size = None if input_size is None else tuple(input_size)
        self.input_mean = None if input_mean is None else tuple(input_mean)
        self.input_std = None if input_std is None else tuple(input_std)
        # Options the encoder was built with; they may change features without changing a single weight.
        self.encoder_options: dict[str, Any] = {}
        self.encoder_frozen = False
        # Where the weights of the head come from: "random", "prompts" (class names) or "checkpoint".
        self.head_start = "random"
        self.encoder = encoder
        self.head: nn.Module = create_head(head, feature_dim, num_classes, **(head_options or {}))

    def encode(self, inputs: Tensor) -> Tensor:
        """Return features ``[B, d]``; a frozen encoder records no gradient."""
        if self.encoder_frozen:
            with torch.no_grad():
                features: Tensor = self.encoder(inputs)
        else:
            features = self.encoder(inputs)
        return F.normalize(features, dim=-1) if self.normalize_features else features

    def forward(self, inputs: Tensor) -> ModelOutput:
        """Return features ``[B, d]`` and logits ``[B, K]``."""
        features = self.encode(inputs)
        return ModelOutput(features, self.head(features))

    @property
    def classifier_weight(self) -> Tensor:
        """What classifier angles are measured on, shape ``[K, d]`` (the means of a Gaussian head)."""
        vectors = getattr(self.head, "means", getattr(self.head, "weight", None))
        if not isinstance(vectors, Tensor):
            raise TypeError(f"head {type(self.head).__name__} has neither weight nor means of shape [K, d]")
        return vectors

    def freeze_encoder(self) -> None:
        """Train the head alone (linear probe); batch norm and dropout of the encoder are in evaluation mode."""
        self.encoder_frozen = True
        self.encoder.requires_grad_(False)
        self.encoder.eval()

    def unfreeze_encoder(self) -> None:
        """Undo :meth:`freeze_encoder`."""
        self.encoder_frozen = False
        self.encoder.requires_grad_(True)
        self.encoder.train(self.training)

    def train(self, mode: bool = True) -> Backbone:
        """Switch between training and evaluation; a frozen encoder stays in evaluation."""
        super().train(mode)
        if self.encoder_frozen:
            self.encoder.eval()
        return self

    def parameter_groups(
        self,
        weight_decay: float,
        layer_decay: float | None = None,
        *,
        decay_norms_and_biases: bool = True,
    ) -> list[ParameterGroup]:
        """Return the trainable parameters in groups for an optimiser.

        The learning rate of a group is the optimiser's times ``lr_scale``, which ``torch.optim`` does not apply by itself.

        Args:
            weight_decay: Decay of weights; never applied to the logarithmic scale of a cosine head.
            layer_decay: Factor between the learning rates of neighbouring layers (vision transformers; 0.65 to
                0.75 in the fine-tuning of MAE).
            decay_norms_and_biases: Whether parameters with fewer than two dimensions are decayed too.

        Example:
            >>> backbone = Backbone(nn.Flatten(), feature_dim=12, num_classes=5)
            >>> groups = backbone.parameter_groups(0.1, decay_norms_and_biases=False)
            >>> [group["weight_decay"] for group in groups]
            [0.1, 0.0]
        """
        check_number("weight_decay", weight_decay, minimum=0.0)
        if layer_decay is not None:
            check_number("layer_decay", layer_decay, above=0.0, maximum=1.0)
            if not hasattr(self.encoder, "layer_of"):
                raise ValueError(
                    f"layer_decay={layer_decay} needs an encoder with layers, not {type(self.encoder).__name__}"
                )
        groups: dict[tuple[float, float], ParameterGroup] = {}
        modules: tuple[Any, ...] = (self.encoder, self.head)
        for module in modules:
            exempt: Container[str] = getattr(module, "no_weight_decay", frozenset)()
            scales: Mapping[str, float] = getattr(module, "lr_scales", dict)()
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    continue
                decayed = name not in exempt and (decay_norms_and_biases or parameter.dim() >= 2)
                decay, scale = (weight_decay if decayed else 0.0), scales.get(name, 1.0)
                if layer_decay is not None and hasattr(module, "layer_of"):
                    scale = float(layer_decay ** (module.num_layers - module.layer_of(name)))
                label = f"{'decayed' if decayed else 'undecayed'}, lr x {scale:.4g}"
                group = ParameterGroup(name=label, params=[], weight_decay=decay, lr_scale=scale)
                groups.setdefault((decay, scale), group)["params"].append(parameter)
        return list(groups.values())


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, trained or not, each counted once.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in module.parameters())
