"""Which weights move, and at which rate; and which count at the end: last, average, or best on validation.

Optimisers work over the parameter groups of network and method. Every group carries ``lr_scale``; the loop sets
``lr = schedule(step) x lr_scale`` at each step. Networks may offer ``parameter_groups(weight_decay, layer_decay)``;
methods always offer theirs. The schedule is a pure function of the position in a stage: nothing to save, nothing to
drift on resume. With ``t`` the optimiser step in the stage, ``W`` the steps of warm-up, ``T`` the steps of the stage
and ``η`` the peak::

    t < W      η · (start + (1 − start) · (t + 1) / W)
    cosine     min + (η − min) · (1 + cos(π · (t − W) / (T − W))) / 2
    step       η · factor^(milestones passed)
    constant   η
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from classmargin._checks import check_number
from classmargin.methods.base import Method
from classmargin.training.config import LoopConfig, OptimizerConfig, ScheduleConfig
from classmargin.training.evaluate import Accuracies

Group = dict[str, Any]


def make_optimizer(
    config: OptimizerConfig, network: nn.Module, method: Method, learning_rate: float
) -> torch.optim.Optimizer:
    """Return the optimiser of a run, over the groups of the network and those that the method declares."""
    groups = _network_groups(network, config) + _method_groups(method, config)
    for group in groups:
        group["params"] = list(group["params"])
        group.setdefault("lr_scale", 1.0)
    groups = [group for group in groups if group["params"]]
    common = {"lr": learning_rate, "weight_decay": config.weight_decay}
    # One fused call for all tensors: the loop over them otherwise costs as much as a step of a linear probe.
    if config.name == "adamw":
        return torch.optim.AdamW(groups, betas=config.betas, fused=True, **common)  # type: ignore[arg-type]
    # PyTorch's fused SGD leaves most half-precision weights on the CPU where they are (seen with 2.13).
    halves = [p for group in groups for p in group["params"] if p.element_size() < 4 and p.device.type == "cpu"]
    options = {"momentum": config.momentum, "nesterov": config.nesterov, "fused": not halves, **common}
    return torch.optim.SGD(groups, **options)  # type: ignore[arg-type]


def _network_groups(network: nn.Module, config: OptimizerConfig) -> list[Group]:
    grouped = getattr(network, "parameter_groups", None)
    if grouped is not None:
        decay = config.layer_decay if config.layer_decay < 1.0 else None
        return list(grouped(config.weight_decay, decay, decay_norms_and_biases=config.decay_norms))
    if config.layer_decay < 1.0:
        raise ValueError(f"optimizer.layer_decay needs a network that orders its layers, got {type(network).__name__}")
    return [{"params": [p for p in network.parameters() if p.requires_grad]}]


def _method_groups(method: Method, config: OptimizerConfig) -> list[Group]:
    """Return what the method declares, under the run's rules for biases and norms; a twin as the network."""
    declared = method.parameter_groups()
    moving = {parameter for group in declared for parameter in group["params"]}
    inside = [m for m in method.modules() if hasattr(m, "parameter_groups") and not isinstance(m, Method)]
    networks = [network for network in inside if not moving.isdisjoint(network.parameters())]
    theirs = {parameter for network in networks for parameter in network.parameters()}
    groups: list[Group] = []
    for group in declared:
        own = [parameter for parameter in group["params"] if parameter not in theirs]
        if config.decay_norms or "weight_decay" in group:
            groups.append({**group, "params": own})
        else:
            groups.append({**group, "params": [p for p in own if p.dim() >= 2]})
            groups.append({**group, "params": [p for p in own if p.dim() < 2], "weight_decay": 0.0})
    return groups + [group for network in networks for group in _network_groups(network, config)]


# What each optimiser keeps for a parameter: fused kernels read it by the size of the parameter, without looking.
_KEPT = {"AdamW": {"step", "exp_avg", "exp_avg_sq"}, "SGD": {"momentum_buffer"}}


def load_optimizer(optimizer: torch.optim.Optimizer, state: Group) -> None:
    """Put a saved state back, if it belongs to these parameters; settings stay those of this run, only the rates come with it."""
    moving = ("params", "lr")
    own = [{k: v for k, v in group.items() if k not in moving} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)
        check_number("the learning rate in the checkpoint", group["lr"], minimum=0.0)
    for parameter, kept in optimizer.state.items():
        fits = set(kept) == _KEPT[type(optimizer).__name__]
        for name, value in kept.items():
            if value is None:
                continue
            shape = torch.Size([]) if name == "step" else parameter.shape
            fits &= isinstance(value, Tensor) and value.shape == shape and value.is_floating_point()
            if fits and name != "step":
                # Fused kernels walk through the memory of weights and state side by side, and files hold tensors in plain
                # order: beside channels-last weights that would be the moments of other weights.
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        if not fits:
            raise ValueError("the checkpoint does not fit the optimiser: its state is of another shape or kind")


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def make_schedule(config: ScheduleConfig, *, peak: float, epochs: int, steps_per_epoch: int) -> Callable[[int], float]:
    """Return the learning rate of each optimiser step of a stage (0-based)."""
    total = max(1, epochs * steps_per_epoch)
    warmup = config.warmup_steps or round(config.warmup_epochs * steps_per_epoch)
    # A warm-up longer than the whole stage (a smoke run of a paper preset) would never reach the peak.
    warmup = min(warmup, total // 2)
    milestones = sorted(config.milestones)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (config.warmup_start + (1.0 - config.warmup_start) * (step + 1) / warmup)
        if config.name == "step":
            return peak * config.factor ** bisect_right(milestones, step // steps_per_epoch)
        if config.name == "constant":
            return peak
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return config.minimum + (peak - config.minimum) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return rate


def choose_trainable(network: nn.Module, which: str, *, probe: bool) -> None:
    """Let ``all`` parameters move, or ``encoder`` or ``head`` alone; in a probe the encoder stays frozen."""
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


class WeightKeeper:
    """An average of the weights (per step, or equal shares of late epochs) and the best ones on validation."""

    def __init__(self, network: nn.Module, config: LoopConfig) -> None:
        self._network, self._select, self._swa_start = network, config.select, config.swa_start
        self._average: AveragedModel | None = None
        if config.ema_decay is not None or config.swa_start is not None:
            decay = config.ema_decay
            average = None if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
            self._average = AveragedModel(network, multi_avg_fn=average)
            self._average.requires_grad_(False)
        self._best_value: float | None = None
        self._best_weights: dict[str, Tensor] = {}
        self.best_epoch: int | None = None

    def after_step(self) -> None:
        """Update a moving average."""
        if self._average is not None and self._swa_start is None:
            self._average.update_parameters(self._network)

    def after_epoch(self, done: float) -> None:
        """Take the weights of an epoch's end into an average of epochs; ``done`` is the finished share of all."""
        if self._average is not None and self._swa_start is not None and done > self._swa_start:
            self._average.update_parameters(self._network)

    @property
    def averages_epochs(self) -> bool:
        """Whether the evaluated weights are an average whose running statistics no step has ever seen."""
        return self._swa_start is not None and self.evaluated is not self._network

    @property
    def evaluated(self) -> nn.Module:
        """The network that evaluations look at: the average as soon as there is one."""
        begun = self._average is not None and (self._swa_start is None or bool(self._average.n_averaged))
        return self._average.module if begun and self._average is not None else self._network

    def after_evaluation(self, accuracies: Accuracies, epoch: int) -> None:
        """Keep a copy of the evaluated weights if they are the best so far; ties keep the earlier ones."""
        if self._select == "last":
            return
        value = float(getattr(accuracies, self._select))
        if self._best_value is None or value > self._best_value:
            self._best_value, self.best_epoch = value, epoch
            weights = self.evaluated.state_dict()
            self._best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def final_network(self) -> nn.Module:
        """Return the network with the weights that count, ready for the test set."""
        network = self.evaluated
        if self._best_weights:
            load_weights(network, self._best_weights, "the network")
        return network

    def state_dict(self) -> dict[str, Any]:
        """Return average and best weights."""
        return {
            "average": None if self._average is None else dict(self._average.state_dict()),
            "best_value": self._best_value,
            "best_epoch": self.best_epoch,
            "best_weights": self._best_weights,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a saved state back."""
        if self._average is not None:
            load_weights(self._average, state["average"], "the moving average")
        self._best_value, self.best_epoch = state["best_value"], state["best_epoch"]
        self._best_weights = state["best_weights"]


def load_weights(module: nn.Module, state: Mapping[str, Any], what: str) -> None:
    """Load a saved state; the error for one of another module says what does not fit."""
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"the checkpoint does not fit {what}: {error}") from error


def final_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights that count from the tree of a checkpoint, without building anything."""
    kept = state["weights"]
    average, prefix = kept["average"], "module."
    if isinstance(kept["best_weights"], Mapping) and kept["best_weights"]:
        return dict(kept["best_weights"])
    if average is not None and bool(average["n_averaged"]):
        names = [name for name in average if name.startswith(prefix)]
        return {name.removeprefix(prefix): average[name] for name in names}
    return dict(state["network"])
