"""MR² in Lightning: a callback that turns the module's cross-entropy into MR² and logs thirds.

    class LitModel(LightningModule):                      # as it is
        def __init__(self): ...; self.criterion = nn.CrossEntropyLoss()
        def training_step(self, batch, _): return self.criterion(self(batch[0]), batch[1])

    trainer = Trainer(callbacks=[MR2Callback()])          # the one new thing

Data flow: when a stage starts the callback captures the features of the module's head and puts the MR² loss behind the module's
own ``nn.CrossEntropyLoss`` (whose class weights, label smoothing and ignored label go on to count) -> ``training_step`` and
``validation_step`` call it as before -> statistics move once an optimiser step, with its first micro-batch -> at the end of
each validation the thirds are logged (``val_easy``, ``val_medium``, ``val_hard``, ``val_worst``, ``val_gap``, ``val_overall``).

The statistics are saved in the checkpoint as the callback's state; the module's own ``state_dict`` is unchanged, so a checkpoint
loads for inference without this package. A module that calls ``F.cross_entropy`` instead can use the two-line change of
:mod:`classmargin.integrations.capture` in its ``__init__``; then the statistics are in the module's ``state_dict``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from classmargin._distributed import all_reduce_sum
from classmargin.integrations.capture import capture_features
from classmargin.integrations.capture_loss import CapturedMR2Loss, adopt_settings
from classmargin.integrations.class_counts import count_classes, headlines
from classmargin.mr2 import MR2Loss

if TYPE_CHECKING:
    from classmargin.integrations.lightning_callback import MR2Callback as MR2Callback


class LightningMargin:
    """What :class:`MR2Callback` does, without Lightning's base class.

    Args:
        criterion: Name of the module's ``nn.CrossEntropyLoss``; None takes the only one.
        layer: Name of the classification head in the module; None takes the last ``nn.Linear``.
        preset: Named hyper-parameters, see :mod:`classmargin.mr2.presets`.
        options: Arguments of :class:`classmargin.MR2Loss` that win over preset and cross-entropy settings.
    """

    def __init__(
        self, criterion: str | None, layer: str | None, preset: str, options: Mapping[str, Any]
    ) -> None:
        self._names = criterion, layer
        self._preset, self._options = preset, dict(options)
        self._replaced: nn.Module | None = None
        self._captured: CapturedMR2Loss | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._counts: Tensor | None = None
        self._last_step: int | None = None
        self._trainer: Any = None
        self.loss: MR2Loss | None = None

    # --- in and out of a module --------------------------------------------------------------------------------

    def attach(self, trainer: Any, module: nn.Module) -> None:
        """Put the MR² loss behind the module's cross-entropy."""
        if self._replaced is not None:
            return
        criterion = find_criterion(module, self._names[0])
        settings = {**adopt_settings(criterion), **self._options}
        self._trainer, capture = trainer, capture_features(module, self._names[1])
        if self.loss is None:
            classes = settings.pop("num_classes", capture.num_classes)
            if classes is None:
                raise ValueError(f"num_classes must be given: layer {capture.layer_name!r} does not tell it")
            self.loss = MR2Loss.preset(self._preset, classes, capture.feature_dim, **settings)
        if self._loaded is not None:
            self.loss.load_state_dict(dict(self._loaded))
            self._loaded = None
        self._captured, self._replaced = CapturedMR2Loss(capture, self.loss), criterion
        # The module stays registered under its name with its buffers; only what it computes changes.
        criterion.forward = self._forward  # type: ignore[method-assign, assignment]

    def detach(self) -> None:
        """Give the module its cross-entropy back; the statistics are kept for a next stage."""
        if self._replaced is not None and self._captured is not None:
            del self._replaced.forward
            self._captured.capture.close()
            self._replaced = self._captured = self._trainer = None
            self._last_step = None  # the next trainer counts its steps from 0 again

    def state(self) -> dict[str, Any]:
        """Return the class statistics for the checkpoint."""
        return {} if self.loss is None else {"statistics": dict(self.loss.state_dict())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the class statistics of a checkpoint, now or when the loss is made."""
        if "statistics" not in state:
            return
        if self.loss is None:
            self._loaded = state["statistics"]
        else:
            self.loss.load_state_dict(dict(state["statistics"]))

    # --- the loss of a step ------------------------------------------------------------------------------------

    def _forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        assert self._captured is not None
        training = torch.is_grad_enabled() and bool(self._trainer.training)
        update = False
        if training:
            step = int(self._trainer.global_step)
            update, self._last_step = step != self._last_step, step
        elif self._counts is not None:
            self.count(logits, labels)
        return self._captured.terms(logits, labels, update_statistics=update).total

    # --- thirds ------------------------------------------------------------------------------------------------

    def start_counting(self, device: torch.device) -> None:
        """A pass over validation or test data begins."""
        assert self.loss is not None
        self._counts = torch.zeros(2, self.loss.num_classes, dtype=torch.long, device=device)

    def count(self, logits: Tensor, labels: Tensor) -> None:
        """Add one batch (hard labels only)."""
        assert self.loss is not None
        assert self._counts is not None
        if not labels.is_floating_point():
            self._counts += count_classes(
                logits.detach(), labels, self.loss.num_classes, self.loss.ignore_index
            )

    def finish_counting(self) -> dict[str, float]:
        """Return the six headline numbers over all processes; empty if nothing was counted."""
        assert self._counts is not None
        counts, self._counts = all_reduce_sum(self._counts), None
        if int(counts.sum()):
            return headlines(counts)
        warnings.warn(
            "no thirds can be logged: the validation step does not call the module's loss with logits and labels",
            stacklevel=2,
        )
        return {}


def find_criterion(module: nn.Module, name: str | None) -> nn.CrossEntropyLoss:
    """Return the module's cross-entropy, by name or the only one there is.

    Example:
        >>> model = nn.ModuleDict({"net": nn.Linear(2, 2), "loss": nn.CrossEntropyLoss()})
        >>> find_criterion(model, None)
        CrossEntropyLoss()
    """
    found = {key: part for key, part in module.named_modules() if isinstance(part, nn.CrossEntropyLoss)}
    if name is None:
        if len(found) != 1:
            named = f"{len(found)}: {', '.join(found)}; give criterion=" if found else "none"
            raise ValueError(
                f"{type(module).__name__} must have one nn.CrossEntropyLoss that it calls, got {named}. With "
                "F.cross_entropy, use classmargin.capture_features(model).criterion() in the module instead"
            )
        return next(iter(found.values()))
    if name not in found:
        raise ValueError(
            f"criterion must name an nn.CrossEntropyLoss of {type(module).__name__}, got {name!r}; "
            f"it has {', '.join(found) or 'none'}"
        )
    return found[name]


def __getattr__(name: str) -> Any:
    if name != "MR2Callback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from classmargin.integrations.lightning_callback import MR2Callback

    return MR2Callback


def __dir__() -> list[str]:
    return ["LightningMargin", "MR2Callback", "find_criterion"]
