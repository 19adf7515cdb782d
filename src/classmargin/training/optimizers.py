"""Optimisers by name over the parameter groups of network and method.

Every group carries ``lr_scale``; the loop sets ``lr = schedule(step) x lr_scale`` at each step. Networks may
offer ``parameter_groups(weight_decay, layer_decay)``; methods always offer theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from classmargin._checks import check_number
from classmargin.methods.base import Method
from classmargin.training.config import OptimizerConfig

Group = dict[str, Any]


def make_optimizer(
    config: OptimizerConfig, network: nn.Module, method: Method, learning_rate: float
) -> torch.optim.Optimizer:
    """Return the optimiser of a run.

    Args:
        config: Name and settings.
        network: Whose parameters move.
        method: Whose own parameters move with them, by the groups it declares.
        learning_rate: Peak learning rate.

    Example:
        >>> from classmargin.methods.base import TaskInfo
        >>> task = TaskInfo(2, 3, torch.ones(2), torch.zeros(2))
        >>> optimizer = make_optimizer(OptimizerConfig("adamw"), nn.Linear(3, 2), Method(task), 0.001)
        >>> type(optimizer).__name__, optimizer.param_groups[0]["lr_scale"]
        ('AdamW', 1.0)
    """
    groups = _network_groups(network, config) + [dict(group) for group in method.parameter_groups()]
    for group in groups:
        group["params"] = list(group["params"])
        group.setdefault("lr_scale", 1.0)
    groups = [group for group in groups if group["params"]]
    common = {"lr": learning_rate, "weight_decay": config.weight_decay}
    # One fused call for all tensors: the loop over them otherwise costs as much as a step of a linear probe.
    if config.name == "adamw":
        return torch.optim.AdamW(groups, betas=config.betas, fused=True, **common)  # type: ignore[arg-type]
    return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.nesterov, fused=True, **common)  # type: ignore[arg-type]


def _network_groups(network: nn.Module, config: OptimizerConfig) -> list[Group]:
    grouped = getattr(network, "parameter_groups", None)
    if grouped is not None:
        decay = config.layer_decay if config.layer_decay < 1.0 else None
        return list(grouped(config.weight_decay, decay, decay_norms_and_biases=config.decay_norms))
    if config.layer_decay < 1.0:
        raise ValueError(
            f"optimizer.layer_decay needs a network that orders its layers, got {type(network).__name__}"
        )
    return [{"params": [p for p in network.parameters() if p.requires_grad]}]


# What each optimiser keeps for a parameter: fused kernels read it by the size of the parameter, without looking.
_KEPT = {"AdamW": {"step", "exp_avg", "exp_avg_sq"}, "SGD": {"momentum_buffer"}}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Group) -> None:
    """Put a saved state back; settings stay those of this run, only the rates of the last step come with it.

    Raises:
        ValueError: It belongs to other parameters.
    """
    moving = ("params", "lr")
    own = [{k: v for k, v in group.items() if k not in moving} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
        check_number("the learning rate in the checkpoint", group["lr"], minimum=0.0)
    for parameter, kept in optimizer.state.items():
        fits = set(kept) == _KEPT[type(optimizer).__name__] and all(
            _fits(name, value, parameter) for name, value in kept.items() if value is not None
        )
        if not fits:
            raise ValueError(
                "the checkpoint does not fit the optimiser: its state is of another shape or kind"
            )


def _fits(name: str, value: Any, parameter: torch.Tensor) -> bool:
    shape = torch.Size([]) if name == "step" else parameter.shape
    return isinstance(value, torch.Tensor) and value.shape == shape and value.is_floating_point()


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]
