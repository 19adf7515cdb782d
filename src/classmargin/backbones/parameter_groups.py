"""Parameters sorted for the optimiser: who is decayed, and how fast each layer learns.

An encoder takes part in layer-wise decay by having ``num_layers`` and ``layer_of(parameter_name)``; both
networks without such layers and heads simply do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypedDict, runtime_checkable

from torch import nn

from classmargin._checks import check_number


class ParameterGroup(TypedDict):
    """One group for ``torch.optim``; the learning rate of the group is the optimiser's times ``lr_scale``."""

    name: str
    params: list[nn.Parameter]
    weight_decay: float
    lr_scale: float


@runtime_checkable
class LayeredEncoder(Protocol):
    """An encoder that knows how deep each of its parameters sits."""

    num_layers: int

    def layer_of(self, parameter_name: str) -> int:
        """Return the layer of a parameter: 0 for the embedding, ``num_layers - 1`` for the last block."""
        ...


def group_parameters(
    encoder: nn.Module,
    head: nn.Module,
    *,
    weight_decay: float,
    layer_decay: float | None = None,
    decay_norms_and_biases: bool = True,
) -> list[ParameterGroup]:
    """Return the trainable parameters of encoder and head in groups of equal decay and speed.

    Args:
        encoder: Inputs to features; its frozen parameters are left out.
        head: Features to logits.
        weight_decay: Decay of the decayed groups.
        layer_decay: Each layer below the head learns ``layer_decay`` times as fast as the one above it.
        decay_norms_and_biases: Whether parameters with fewer than two dimensions are decayed as well.

    Raises:
        ValueError: ``layer_decay`` for an encoder without layers, or a value out of range.
    """
    check_number("weight_decay", weight_decay, minimum=0.0)
    groups: dict[tuple[float, float], ParameterGroup] = {}
    scales = _LayerScales(encoder, layer_decay)
    exempt = _exempt_names(encoder, head)
    for name, parameter in _trainable(encoder, head):
        decayed = name not in exempt and (decay_norms_and_biases or parameter.dim() >= 2)
        decay, scale = (weight_decay if decayed else 0.0), scales.of(name)
        if (decay, scale) not in groups:
            label = f"{'decayed' if decayed else 'undecayed'}, lr x {scale:.4g}"
            groups[decay, scale] = ParameterGroup(name=label, params=[], weight_decay=decay, lr_scale=scale)
        groups[decay, scale]["params"].append(parameter)
    return list(groups.values())


def _trainable(encoder: nn.Module, head: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    for prefix, module in (("encoder", encoder), ("head", head)):
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                yield f"{prefix}.{name}", parameter


def _exempt_names(encoder: nn.Module, head: nn.Module) -> set[str]:
    exempt: set[str] = set()
    for prefix, module in (("encoder", encoder), ("head", head)):
        names: Any = getattr(module, "no_weight_decay", None)
        if names is not None:
            exempt |= {f"{prefix}.{name}" for name in names()}
    return exempt


class _LayerScales:
    """Learning-rate factor of a parameter; 1 everywhere without layer-wise decay."""

    def __init__(self, encoder: nn.Module, layer_decay: float | None) -> None:
        self.decay = (
            None if layer_decay is None else check_number("layer_decay", layer_decay, above=0.0, maximum=1.0)
        )
        if self.decay is not None and not isinstance(encoder, LayeredEncoder):
            raise ValueError(
                f"layer_decay={layer_decay} needs an encoder with layers (the vision transformers); "
                f"{type(encoder).__name__} has none"
            )
        self.encoder = encoder

    def of(self, name: str) -> float:
        if self.decay is None or not isinstance(self.encoder, LayeredEncoder):
            return 1.0
        part, _, rest = name.partition(".")
        if part == "head":
            return 1.0
        return float(self.decay ** (self.encoder.num_layers - self.encoder.layer_of(rest)))
