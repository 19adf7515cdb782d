"""Prediction margin, 0-1 loss, γ-margin loss (Eq. 8–9) and the surrogate inequality (Lemma 3).

Data flow: ``logits, labels`` -> :func:`prediction_margin` u ``[N]`` -> :func:`margin_loss` Φ_γ(u) ``[N]``.
For every sample and every γ > 0::

    zero_one_loss  <=  class_margin_loss = Φ_{γ_y}(u)  <=  surrogate_loss = ℓ_{γ,ce} / ln 2

so that the mean of the last, which is what training minimises, stands above the error rate.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from classmargin.mr2 import margin_cross_entropy
from classmargin.theory._inputs import FloatArray, LabelArray, as_class_margins, as_float64, as_labels


def prediction_margin(logits: FloatArray, labels: LabelArray) -> Tensor:
    """Return γ_f(x, y) = z_y − max_{y' ≠ y} z_{y'} (Eq. 8): how far the true class leads the runner-up.

    ``logits`` z are ``[N, K]`` with ``K >= 2``, ``labels`` ``[N]``. The paper's two other margins are measured and not
    bounded: the same difference on probabilities, and the smallest angle between two weight vectors.

    Example:
        >>> prediction_margin(torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]]), torch.tensor([0, 2])).tolist()
        [1.0, -3.0]
    """
    scores, classes = _as_predictions(logits, labels)
    true_score = scores.gather(1, classes[:, None]).squeeze(1)
    others = scores.scatter(1, classes[:, None], -math.inf)
    return true_score - others.amax(dim=1)


def margin_loss(margins: FloatArray | float, gamma: FloatArray | float) -> Tensor:
    """Return Φ_γ(u) = min(1, max(0, 1 − u/γ)): 1 for wrong, 0 for right by γ or more, a ramp between.

    Φ_γ lies in [0, 1], falls in u, is 1/γ-Lipschitz, at least the 0-1 loss 1[u <= 0] (its limit for γ -> 0), and never
    falls when γ grows. ``margins`` u have any shape; ``gamma`` > 0 is a number or broadcasts against them.

    Example:
        >>> margin_loss(torch.tensor([-1.0, 0.5, 1.0, 3.0]), 2.0).tolist()
        [1.0, 0.75, 0.5, 0.0]
    """
    u, scale = (
        as_float64(name, values, dim=np.ndim(values)) for name, values in (("margins", margins), ("gamma", gamma))
    )
    if not bool((scale > 0).all()):
        raise ValueError(f"gamma must be > 0 everywhere, got a smallest value of {float(scale.min()):g}")
    return (1.0 - u / scale).clamp(0.0, 1.0)


def zero_one_loss(logits: FloatArray, labels: LabelArray) -> Tensor:
    """Return 1 where the true class does not score strictly highest (a tie is an error), else 0 ``[N]``, float64."""
    return (prediction_margin(logits, labels) <= 0).to(torch.float64)


def class_margin_loss(logits: FloatArray, labels: LabelArray, class_margins: FloatArray) -> Tensor:
    """Return the γ-margin loss ℓ_γ(f, x, y) = Φ_{γ_y}(γ_f(x, y)) of each sample (Eq. 9).

    Each sample takes the margin of its true class from ``class_margins`` γ ``[K]``, all above zero.

    Example:
        >>> logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> class_margin_loss(logits, torch.tensor([0, 1]), torch.tensor([4.0, 1.0])).tolist()
        [0.75, 1.0]
    """
    scores, classes = _as_predictions(logits, labels)
    gamma = as_class_margins(class_margins, num_classes=scores.shape[1])
    return margin_loss(prediction_margin(scores, classes), gamma[classes])


def surrogate_loss(logits: FloatArray, labels: LabelArray, class_margins: FloatArray) -> Tensor:
    """Return ℓ_{γ,ce} / ln 2 of each sample, which is never below :func:`class_margin_loss` (Lemma 3).

    Proof. Let t = u/γ and g(t) = log2(1 + e^{−t}). Then Φ_γ(u) = min(1, max(0, 1 − t)) <= g(t): for t <= 0,
    g(t) >= g(0) = 1; for t >= 1, g(t) > 0; in between, g(t) − (1 − t) starts at 0 and has the slope
    1 − 1/((1 + e^t) ln 2) >= 1 − 1/(2 ln 2) > 0. And the largest of the terms e^{(z_k − z_y)/γ}, k ≠ y, is
    e^{−u/γ}, so that replacing it by their sum gives g(u/γ) <= ℓ_{γ,ce}/ln 2. ∎

    The constant 1/ln 2 is the smallest possible: with two equal logits both sides are 1. Contrary to the print,
    ℓ_{γ,ce} falls in γ where z_y is below the average logit under softmax(z/γ). Arguments are those of
    :func:`class_margin_loss`.

    Example:
        >>> loss = surrogate_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([0]), torch.tensor([2.0, 1.0]))
        >>> round(float(loss[0]) * math.log(2), 6)
        0.974077
    """
    scores, classes = _as_predictions(logits, labels)
    gamma = as_class_margins(class_margins, num_classes=scores.shape[1])
    return margin_cross_entropy(scores, classes, gamma, reduction="none") / math.log(2)


def _as_predictions(logits: FloatArray, labels: LabelArray) -> tuple[Tensor, Tensor]:
    """Return logits ``[N, K]`` in float64 and labels ``[N]``; a margin needs a second class."""
    scores = as_float64("logits", logits, dim=2)
    if scores.shape[1] < 2:
        raise ValueError(f"logits must have at least 2 classes, got shape {tuple(scores.shape)}")
    return scores, as_labels(labels, num_samples=scores.shape[0], num_classes=scores.shape[1])
