"""Running means of the loss and its parts over an epoch, as tensors so that an accelerator need not wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from classmargin.methods.base import MethodLoss


class LossMeter:
    """Mean of each loss part over the steps seen since the last :meth:`reset`.

    Example:
        >>> meter = LossMeter()
        >>> meter.add(MethodLoss(torch.tensor(2.0), {"margin": torch.tensor(1.5)}))
        >>> meter.means()
        {'loss': 2.0, 'margin': 1.5}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def add(self, loss: MethodLoss) -> None:
        """Take one step."""
        self._steps += 1
        for name, value in {"loss": loss.total.detach(), **loss.parts}.items():
            # float64, so that sums of long epochs lose nothing that a reader could see.
            known = self._sums.get(name)
            self._sums[name] = value.double() if known is None else known + value.double()

    def means(self) -> dict[str, float]:
        """Return the means by name, the total first; parts that merely repeat the total are left out."""
        means = {name: float(value) / max(1, self._steps) for name, value in self._sums.items()}
        return {name: value for name, value in means.items() if name == "loss" or value != means["loss"]}

    def reset(self) -> None:
        """Forget everything."""
        self._sums, self._steps = {}, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on in the middle of an epoch."""
        return {"sums": dict(self._sums), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Put a saved state back."""
        self._sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._steps = state["steps"]
