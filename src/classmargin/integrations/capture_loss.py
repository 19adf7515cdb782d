"""The MR² loss behind the signature that training scripts use, ``criterion(logits, labels)``; features come from the capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from classmargin._checks import check_floating
from classmargin._types import LossTerms
from classmargin.integrations.capture import FeatureCapture
from classmargin.mr2 import MR2Loss


class CapturedMR2Loss(nn.Module):
    """``criterion(logits, labels)`` with the features of the last forward pass.

    Made by :meth:`FeatureCapture.criterion`. In training it updates the class statistics, once per call. Under ``criterion.eval()`` or
    ``torch.no_grad()`` it is the plain cross-entropy of the logits, which needs no features, so early stopping and the choice of a
    checkpoint go as with ``nn.CrossEntropyLoss``. Its ``state_dict`` holds the statistics: save it with the model's to resume exactly.

    Args:
        capture: Where features come from.
        loss: The loss itself (margins, statistics, collapse sign).
        smooth_probabilities: Whether label smoothing also applies to labels that are probabilities.

    Example:
        >>> from classmargin import capture_features
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        >>> criterion = capture_features(model).criterion()
        >>> value = criterion(model(torch.randn(6, 8)), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> value.backward()
        >>> int(criterion.loss.statistics.updates)
        1
    """

    # nn.Module leaves calls untyped; with this, type checkers know that criterion(logits, labels) is a tensor.
    __call__: Callable[..., Tensor]

    def __init__(self, capture: FeatureCapture, loss: MR2Loss, *, smooth_probabilities: bool = True) -> None:
        super().__init__()
        self.capture, self.loss, self.smooth_probabilities = capture, loss, smooth_probabilities

    def forward(
        self, logits: Tensor, labels: Tensor, *, features: Tensor | None = None, update_statistics: bool | None = None
    ) -> Tensor:
        """Return the MR² loss in training and the plain cross-entropy in evaluation, scalar; arguments as in :meth:`terms`."""
        if self.training and torch.is_grad_enabled():
            return self.terms(logits, labels, features=features, update_statistics=update_statistics).total
        self.capture.clear()
        with self._loss_for(logits, labels) as loss:
            return loss.cross_entropy(logits, labels)

    def terms(
        self, logits: Tensor, labels: Tensor, *, features: Tensor | None = None, update_statistics: bool | None = None
    ) -> LossTerms:
        """Return the MR² total and its parts, in training and in evaluation.

        Args:
            logits: Output of the model ``[B, K]``.
            labels: Classes ``[B]`` or class probabilities ``[B, K]``.
            features: Input of the head ``[B, d]`` where it is at hand; None takes what was captured.
            update_statistics: As in :meth:`classmargin.MR2Loss.terms`.
        """
        check_floating("logits", logits, dim=2)
        if features is None:
            outputs, columns = self.capture.num_classes, logits.shape[-1]
            if outputs not in (None, columns) and columns != self.loss.num_classes:
                # The last nn.Linear that a model declares need not be its head.
                name = f"layer {self.capture.layer_name!r} ({outputs} outputs)"
                raise ValueError(
                    f"{name} was captured as the head but the logits have {columns} columns; give another layer"
                )
            features = self.capture.take(logits)
        else:
            self.capture.clear()
        with self._loss_for(logits, labels) as loss:
            return loss.terms(logits, labels, features, update_statistics=update_statistics)

    @contextmanager
    def _loss_for(self, logits: Tensor, labels: Tensor) -> Iterator[MR2Loss]:
        if next(self.loss.buffers()).device != logits.device:
            self.loss.to(logits.device)  # scripts seldom move their criterion
        before = self.loss.label_smoothing
        if labels.is_floating_point() and not self.smooth_probabilities:
            self.loss.label_smoothing = 0.0
        try:
            yield self.loss
        finally:
            self.loss.label_smoothing = before


def adopt_settings(criterion: nn.CrossEntropyLoss) -> dict[str, Any]:
    """Return the settings of a cross-entropy as arguments of MR2Loss; without smoothing it keeps that of the preset."""
    if criterion.reduction != "mean":
        raise ValueError(f"the loss must have reduction='mean' to become MR², got {criterion.reduction!r}")
    settings = {"ignore_index": criterion.ignore_index, "weight": criterion.weight}
    return settings | ({"label_smoothing": criterion.label_smoothing} if criterion.label_smoothing else {})


def logged_parts(terms: LossTerms) -> dict[str, Tensor]:
    """Return the parts of the loss under the names by which training logs know them."""
    names = ("logit_margin", "representation_margin")
    return {f"mr2_{name}": getattr(terms, name).detach() for name in names}
