"""Which parameters of a network move during a stage."""

from __future__ import annotations

from torch import nn


def is_probe(network: nn.Module) -> bool:
    """Whether the encoder was frozen before the training began, and has to stay so."""
    return bool(getattr(network, "encoder_frozen", False))


def choose_trainable(network: nn.Module, which: str, *, probe: bool) -> None:
    """Let all parameters move, or only those of the encoder, or only those of the head.

    Args:
        network: Has ``head``, ``freeze_encoder()`` and ``unfreeze_encoder()`` unless ``which`` is ``"all"``
            throughout. A frozen encoder stays in evaluation mode while the rest trains.
        which: ``all``, ``encoder`` or ``head``.
        probe: Keep the encoder frozen whatever the stage says.

    Raises:
        ValueError: A stage that trains the encoder alone, in a probe.
    """
    if probe and which == "encoder":
        raise ValueError("this method has a stage that trains the encoder, so it cannot probe a frozen one")
    if hasattr(network, "freeze_encoder"):
        if which == "head" or probe:
            network.freeze_encoder()  # type: ignore[operator]
        else:
            network.unfreeze_encoder()  # type: ignore[operator]
    elif which != "all":
        name = type(network).__name__
        raise TypeError(f"a stage trains the {which} alone, and {name} does not tell encoder and head apart")
    if which != "all" or hasattr(network, "freeze_encoder"):
        head: nn.Module = network.head  # type: ignore[assignment]
        head.requires_grad_(which != "encoder")
    for parameter in network.parameters():
        if not parameter.requires_grad:
            parameter.grad = None
