"""MR² in Lightning: a callback that turns the module's cross-entropy into MR² and logs thirds.

The callback, ``Trainer(callbacks=[MR2Callback()])``, captures the features of the module's head and puts the MR² loss
behind the module's own ``nn.CrossEntropyLoss``, whose class weights, label smoothing and ignored label go on to count.
``validation_step`` gets the cross-entropy itself. Statistics move once per optimiser step, with its first micro-batch,
and are saved as the callback's state: a checkpoint loads for inference without this package.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import require_extra
from classmargin._distributed import all_reduce_sum
from classmargin._types import LossTerms
from classmargin.integrations.capture import CapturedMR2Loss, capture_features, logged_parts
from classmargin.integrations.class_counts import count_classes, headlines
from classmargin.mr2 import MR2Loss

require_extra("lightning.pytorch", "lightning", "the Lightning callback")

import lightning.pytorch as pl  # noqa: E402


class MR2Callback(pl.Callback):
    """Turns the cross-entropy of a LightningModule into MR² and logs thirds.

    Each training step logs ``mr2_logit_margin`` and ``mr2_representation_margin``. Each validation (test) logs
    ``val_overall``, ``val_easy``, ``val_medium``, ``val_hard``, ``val_worst`` and ``val_gap`` (``test_...``), with
    several data loaders once per loader, as ``val_hard/loader_0``. After training, or an error in it, the module has
    its own cross-entropy back.

    Args:
        criterion: Name of the module's ``nn.CrossEntropyLoss``; None takes the only one.
        layer: Name of the classification head in the module; None takes the last ``nn.Linear``.
        preset: Named hyper-parameters, see :meth:`classmargin.MR2Loss.preset`.
        log_thirds: Whether to log thirds, worst class, gap and overall accuracy.
        **options: Arguments of :class:`classmargin.MR2Loss` that win over preset and cross-entropy settings.

    Attributes:
        loss: The loss with its statistics; None before training starts.
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
        self.log_thirds = log_thirds
        self.loss: MR2Loss | None = None
        self._names = criterion, layer
        self._preset, self._options = preset, options
        self._replaced: nn.CrossEntropyLoss | None = None
        self._captured: CapturedMR2Loss | None = None
        self._loaded: dict[str, Any] | None = None
        self._trainer: Any = None
        self._last_step: int | None = None
        self._terms: LossTerms | None = None  # of the last training call
        self._counts: Tensor | None = None  # [loaders, 2, K]
        self._loader = 0

    # --- in and out of a module --------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the MR² loss behind the module's cross-entropy."""
        if self._replaced is not None:
            return
        criterion = find_criterion(pl_module, self._names[0])
        self._trainer, capture = trainer, capture_features(pl_module, self._names[1])
        if self.loss is None:
            settings = {**adopt_settings(criterion), **self._options}
            self.loss = capture.criterion(preset=self._preset, **settings).loss
        if self._loaded is not None:
            self.loss.load_state_dict(self._loaded)
            self._loaded = None
        self._captured, self._replaced = CapturedMR2Loss(capture, self.loss), criterion
        # The module stays registered under its name with its buffers; only what it computes changes.
        criterion.forward = self._forward  # type: ignore[method-assign]

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the module its cross-entropy back; the statistics are kept for a next stage."""
        if self._replaced is not None and self._captured is not None:
            del self._replaced.forward
            self._captured.capture.close()
            self._replaced = self._captured = self._trainer = self._terms = None
            self._last_step = None  # the next trainer counts its steps from 0 again

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Do as in teardown, which Lightning does not call then; the module may be trained again."""
        self.teardown(trainer, pl_module, "")

    def state_dict(self) -> dict[str, Any]:
        """Return the class statistics for Lightning's checkpoint."""
        return {} if self.loss is None else {"statistics": dict(self.loss.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the class statistics of a checkpoint, now or when the loss is made."""
        if "statistics" not in state_dict:
            return
        if self.loss is None:
            self._loaded = dict(state_dict["statistics"])
        else:
            self.loss.load_state_dict(dict(state_dict["statistics"]))

    # --- the loss of a step ------------------------------------------------------------------------------------

    def _forward(self, input: Tensor, target: Tensor) -> Tensor:
        assert self.loss is not None
        assert self._captured is not None
        assert self._replaced is not None
        if torch.is_grad_enabled() and self._trainer.training:
            step = int(self._trainer.global_step)
            first, self._last_step = step != self._last_step, step
            self._terms = self._captured.terms(input, target, update_statistics=first)
            return self._terms.total
        self._captured.capture.clear()
        if self._counts is not None and not target.is_floating_point():
            scores, loss = input.detach(), self.loss
            self._counts[self._loader] += count_classes(scores, target, loss.num_classes, loss.ignore_index)
        return type(self._replaced).forward(self._replaced, input, target)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the parts of the loss; refuse a module that trains with something else."""
        # A module may skip a batch; then there are no outputs, or with manual optimisation no step.
        if self._terms is not None:
            pl_module.log_dict(logged_parts(self._terms))
        elif outputs if pl_module.automatic_optimization else trainer.global_step:
            raise RuntimeError(
                f"MR2Callback changes nothing: training_step of {type(pl_module).__name__} did not call its "
                "nn.CrossEntropyLoss; call that, or use classmargin.capture_features(model).criterion() in the module"
            )

    # --- thirds ------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Start counting; training need not have begun."""
        self.on_fit_start(trainer, pl_module)
        assert self.loss is not None
        if self.log_thirds:
            loaders = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
            shape = max(len(loaders), 1), 2, self.loss.num_classes
            self._counts = torch.zeros(shape, dtype=torch.long, device=pl_module.device)

    on_test_start = on_validation_start

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Remember which data loader the batch comes from."""
        self._loader = dataloader_idx

    on_test_batch_start = on_validation_batch_start

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log ``val_...``, or ``test_...``."""
        if self._counts is None:
            return
        counts, self._counts = all_reduce_sum(self._counts), None
        stage = "test" if trainer.testing else "val"
        counted = [number for number, count in enumerate(counts) if int(count.sum())]
        if not counted:
            warnings.warn(
                "no thirds can be logged: the validation step does not call the module's loss with logits and labels",
                stacklevel=2,
            )
        for number in counted:
            # Not Lightning's own suffix, which releases before 2.6 refuse from callbacks.
            suffix = f"/loader_{number}" if len(counted) > 1 else ""
            values = {f"{stage}_{name}{suffix}": value for name, value in headlines(counts[number]).items()}
            pl_module.log_dict(values, sync_dist=True, add_dataloader_idx=False)

    on_test_epoch_end = on_validation_epoch_end


def find_criterion(module: nn.Module, name: str | None) -> nn.CrossEntropyLoss:
    """Return the module's cross-entropy, by name or the only one there is."""
    found = {key: part for key, part in module.named_modules() if isinstance(part, nn.CrossEntropyLoss)}
    if name is None and len(found) == 1:
        (name,) = found
    if name is None:
        named = f"{len(found)}: {', '.join(found)}; give criterion=" if found else "none"
        raise ValueError(
            f"{type(module).__name__} must have one nn.CrossEntropyLoss that it calls, got {named}. With "
            "F.cross_entropy, use classmargin.capture_features(model).criterion() in the module instead"
        )
    if name not in found:
        raise ValueError(
            f"criterion must name an nn.CrossEntropyLoss of {type(module).__name__}, got {name!r}; "
            f"it has {', '.join(found) or 'none'}"
        )
    return found[name]


def adopt_settings(criterion: nn.CrossEntropyLoss) -> dict[str, Any]:
    """Return the settings of a cross-entropy as arguments of MR2Loss; without smoothing it keeps that of the preset."""
    if criterion.reduction != "mean":
        raise ValueError(f"the loss must have reduction='mean' to become MR², got {criterion.reduction!r}")
    settings = {"ignore_index": criterion.ignore_index, "weight": criterion.weight}
    return settings | ({"label_smoothing": criterion.label_smoothing} if criterion.label_smoothing else {})
