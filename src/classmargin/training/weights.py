"""Which weights count at the end: the last, an average of them, or those that did best on validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from classmargin.training.config import LoopConfig
from classmargin.training.evaluate import Accuracies


class WeightKeeper:
    """An average of the weights (if asked for) and the best weights on validation (if asked for).

    The average moves at each step (exponential, ``ema_decay``) or at the end of each late epoch (equal shares,
    ``swa_start``).

    Args:
        network: The network that is trained; a later stage with a fresh one has a keeper of its own.
        config: Which average, and the accuracy on validation that decides.
    """

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
        """Move a moving average on."""
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
            self._best_weights = {
                name: tensor.detach().clone() for name, tensor in self.evaluated.state_dict().items()
            }

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
    """Load a saved state.

    Raises:
        ValueError: It belongs to another module; the message says what does not fit.
    """
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        raise ValueError(f"the checkpoint does not fit {what}: {error}") from error


def final_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights that count from the tree of a checkpoint, without building anything."""
    kept = state["weights"]
    if isinstance(kept["best_weights"], Mapping) and kept["best_weights"]:
        return dict(kept["best_weights"])
    if kept["average"] is not None and bool(kept["average"]["n_averaged"]):
        prefix = "module."
        return {
            name.removeprefix(prefix): value
            for name, value in kept["average"].items()
            if name.startswith(prefix)
        }
    return dict(state["network"])
