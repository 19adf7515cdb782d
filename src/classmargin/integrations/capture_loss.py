"""The MR² loss behind the signature that training scripts use: ``criterion(logits, labels)``.

Scripts built around ``nn.CrossEntropyLoss`` (an own loop, timm's train script, a LightningModule) hand logits and labels to
the loss and nothing else; the features come from the capture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import check_int
from classmargin._types import LossTerms
from classmargin.integrations.capture import FeatureCapture
from classmargin.mr2 import MR2Loss


class CapturedMR2Loss(nn.Module):
    """``criterion(logits, labels)`` with the features of the last forward pass.

    Made by :meth:`FeatureCapture.criterion`. In training it updates the class statistics, once a call; under
    ``criterion.eval()`` or ``torch.no_grad()`` never. Its ``state_dict`` holds the statistics: save it with the model's
    to resume exactly. Several forward passes and one loss (stacked views) are refused by their number of rows.

    Args:
        capture: Where features come from.
        loss: The loss itself, also reached as ``.loss`` (margins, statistics, collapse sign).
        accumulate: Micro-batches of an optimiser step; the statistics move with the first of them only, so that all
            see the same margins.

    Example:
        >>> from classmargin import capture_features
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> criterion = capture_features(model).criterion()
        >>> value = criterion(model(torch.randn(6, 8)), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> value.backward()
        >>> int(criterion.loss.statistics.updates)
        1
    """

    def __init__(self, capture: FeatureCapture, loss: MR2Loss, accumulate: int = 1) -> None:
        super().__init__()
        self.capture = capture
        self.loss = loss
        self.accumulate = check_int("accumulate", accumulate, minimum=1)
        self._micro_batches = 0

    def forward(self, logits: Tensor, labels: Tensor, *, update_statistics: bool | None = None) -> Tensor:
        """Return the total loss, scalar; arguments as in :meth:`classmargin.MR2Loss.terms`."""
        return self.terms(logits, labels, update_statistics=update_statistics).total

    def terms(self, logits: Tensor, labels: Tensor, *, update_statistics: bool | None = None) -> LossTerms:
        """Return the total and its parts.

        Raises:
            RuntimeError: No forward pass since the last call.
            ValueError: Shapes that do not fit, e.g. logits of another forward pass or of another layer.
        """
        self._check_head(logits)
        features = self.capture.take(logits)
        if features.dim() != 2 or features.shape[0] != logits.shape[0]:
            raise ValueError(
                f"captured features must have shape ({logits.shape[0]}, d) to go with logits {tuple(logits.shape)}, got "
                f"{tuple(features.shape)} from layer {self.capture.layer_name!r}; give capture_features() the layer "
                "that makes the logits, and call the loss after each forward pass"
            )
        if self.loss.statistics.class_scalars.device != logits.device:
            self.loss.to(logits.device)  # scripts seldom move their criterion
        if update_statistics is None and self.accumulate > 1 and self.training and torch.is_grad_enabled():
            update_statistics = self._micro_batches % self.accumulate == 0
            self._micro_batches += 1
        return self.loss.terms(logits, labels, features, update_statistics=update_statistics)

    def _check_head(self, logits: Tensor) -> None:
        """Refuse logits that another layer made: the last ``nn.Linear`` that a model declares need not be its head."""
        outputs, columns = self.capture.num_classes, logits.shape[-1]
        if outputs not in (None, columns) and columns != self.loss.num_classes:
            raise ValueError(
                f"layer {self.capture.layer_name!r} ({outputs} outputs) was captured as the head but the logits have "
                f"{columns} columns; give capture_features(model, NAME) the layer that makes the logits"
            )


def adopt_settings(criterion: nn.Module | None) -> dict[str, Any]:
    """Return the settings of a cross-entropy loss as arguments of :class:`classmargin.MR2Loss`.

    Raises:
        TypeError: Another loss, whose meaning MR² would change silently.
        ValueError: A reduction other than the mean.

    Example:
        >>> adopt_settings(nn.CrossEntropyLoss(label_smoothing=0.1))
        {'label_smoothing': 0.1, 'ignore_index': -100, 'weight': None}
    """
    if criterion is None:
        return {}
    if not isinstance(criterion, nn.CrossEntropyLoss):
        raise TypeError(
            f"the loss must be an nn.CrossEntropyLoss to become MR², got {type(criterion).__name__}"
        )
    if criterion.reduction != "mean":
        raise ValueError(f"the loss must have reduction='mean' to become MR², got {criterion.reduction!r}")
    return {
        "label_smoothing": criterion.label_smoothing,
        "ignore_index": criterion.ignore_index,
        "weight": criterion.weight,
    }
