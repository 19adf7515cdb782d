"""Which weights count at the end: the last, their moving average, or those that did best on validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from classmargin.training.evaluate import Accuracies


class WeightKeeper:
    """The moving average (if asked for) and the best weights on validation (if asked for).

    Args:
        network: The network that is trained.
        ema_decay: Decay of the moving average, or None.
        select: ``last``, or the accuracy on validation that decides.
    """

    def __init__(self, network: nn.Module, ema_decay: float | None, select: str) -> None:
        self._ema_decay = ema_decay
        self._select = select
        self._best_value: float | None = None
        self._best_weights: dict[str, Tensor] = {}
        self.best_epoch: int | None = None
        self.follow(network)

    def follow(self, network: nn.Module) -> None:
        """Start anew on a network (a method's later stage may begin with a fresh one)."""
        self._network = network
        self._average: AveragedModel | None = None
        if self._ema_decay is not None:
            average = get_ema_multi_avg_fn(self._ema_decay)  # type: ignore[no-untyped-call]
            self._average = AveragedModel(network, multi_avg_fn=average)
            self._average.requires_grad_(False)
        self._best_value, self._best_weights, self.best_epoch = None, {}, None

    def after_step(self) -> None:
        """Move the average on."""
        if self._average is not None:
            self._average.update_parameters(self._network)

    @property
    def evaluated(self) -> nn.Module:
        """The network that evaluations look at: the average where there is one."""
        return self._average.module if self._average is not None else self._network

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
    if kept["best_weights"]:
        return dict(kept["best_weights"])
    if kept["average"] is not None:
        prefix = "module."
        return {
            name.removeprefix(prefix): value
            for name, value in kept["average"].items()
            if name.startswith(prefix)
        }
    return dict(state["network"])
