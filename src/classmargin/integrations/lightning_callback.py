"""The callback itself, a subclass of Lightning's; reached as ``classmargin.integrations.lightning.MR2Callback``."""

from __future__ import annotations

from typing import Any

from classmargin._checks import require_extra
from classmargin.integrations.lightning import LightningMargin
from classmargin.mr2 import MR2Loss

require_extra("lightning.pytorch", "lightning", "the Lightning callback")

import lightning.pytorch as pl  # noqa: E402


class MR2Callback(pl.Callback):
    """Turns the cross-entropy of a LightningModule into MR² and logs thirds.

    At each validation (test) it logs ``val_overall``, ``val_easy``, ``val_medium``, ``val_hard``, ``val_worst`` and ``val_gap``
    (``test_...``). The class statistics are its state in Lightning's checkpoints, so a resumed run equals an
    uninterrupted one. After training, or an error in it, the module has its own cross-entropy back.

    Args:
        criterion: Name of the module's ``nn.CrossEntropyLoss``; None takes the only one.
        layer: Name of the classification head in the module; None takes the last ``nn.Linear``.
        preset: Named hyper-parameters, see :mod:`classmargin.mr2.presets`.
        log_thirds: Whether to log thirds, worst class, gap and overall accuracy.
        **options: Arguments of :class:`classmargin.MR2Loss`.
    """

    def __init__(
        self,
        criterion: str | None = None,
        *,
        layer: str | None = None,
        preset: str = "recommended",
        log_thirds: bool = True,
        **options: Any,
    ) -> None:
        self.margin = LightningMargin(criterion, layer, preset, options)
        self.log_thirds = log_thirds

    @property
    def loss(self) -> MR2Loss | None:
        """The loss with its statistics; None before training starts."""
        return self.margin.loss

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the MR² loss behind the cross-entropy."""
        self.margin.attach(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Start counting; training need not have begun."""
        self.margin.attach(trainer, pl_module)
        if self.log_thirds:
            self.margin.start_counting(pl_module.device)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Start counting."""
        self.on_validation_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log ``val_...``."""
        self._log(pl_module, "val_")

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log ``test_...``."""
        self._log(pl_module, "test_")

    def _log(self, pl_module: Any, prefix: str) -> None:
        if self.log_thirds:
            values = self.margin.finish_counting()
            pl_module.log_dict({prefix + name: value for name, value in values.items()}, sync_dist=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the module its cross-entropy back."""
        self.margin.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same: Lightning calls no teardown then, and the module may be trained again."""
        self.margin.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return the class statistics for Lightning's checkpoint."""
        return self.margin.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the class statistics of a checkpoint."""
        self.margin.load(state_dict)
