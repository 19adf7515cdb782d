"""Theory as plain loops over samples, classes and all sign vectors: slow, and too simple to be wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def sign_vectors(length: int) -> Iterable[tuple[int, ...]]:
    """Yield all 2^length vectors of signs."""
    return itertools.product((-1, 1), repeat=length)


def mean_over_signs(length: int, value: Callable[[tuple[int, ...]], float]) -> float:
    """Return the mean of ``value(signs)`` over all sign vectors."""
    return math.fsum(value(signs) for signs in sign_vectors(length)) / 2**length


def prediction_margin(logits: Sequence[float], label: int) -> float:
    return logits[label] - max(score for k, score in enumerate(logits) if k != label)


def ramp(u: float, gamma: float) -> float:
    return min(1.0, max(0.0, 1.0 - u / gamma))


def cross_entropy(logits: Sequence[float], label: int, gamma: float) -> float:
    others = [(score - logits[label]) / gamma for k, score in enumerate(logits) if k != label]
    top = max(0.0, *others)
    return top + math.log(math.exp(-top) + sum(math.exp(x - top) for x in others))


def lp_norm(vector: Sequence[float], p: float) -> float:
    largest = max(abs(x) for x in vector)
    if math.isinf(p) or largest == 0.0:
        return largest
    return largest * math.fsum((abs(x) / largest) ** p for x in vector) ** (1 / p)


def best_head(u: Tensor, p: float, weight_bound: float) -> Tensor:
    """Return the w with ‖w‖_q = Λ that maximises wᵀu, written out from the equality case of Hölder."""
    if float(u.abs().max()) == 0.0:
        return torch.zeros_like(u)
    if math.isinf(p):
        w = torch.zeros_like(u)
        at = int(u.abs().argmax())
        w[at] = torch.sign(u[at])
        return weight_bound * w
    return weight_bound * torch.sign(u) * (u.abs() / lp_norm(u.tolist(), p)) ** (p - 1)


def complexity(features: Tensor, labels: Tensor, gamma: Tensor, weight_bound: float, p: float) -> float:
    """Eq. 10 as written: all N·K signs, the supremum by an explicit head for every sign matrix."""
    n, k = features.shape[0], gamma.shape[0]

    def supremum(signs: tuple[int, ...]) -> float:
        total = 0.0
        for y in range(k):
            u = sum(signs[i * k + y] * features[i] / gamma[labels[i]] for i in range(n))
            total += float(best_head(u, p, weight_bound) @ u)
        return total

    return mean_over_signs(n * k, supremum) / n


def expected_norm(vectors: Tensor, p: float) -> float:
    """E‖Σ_i ε_i v_i‖_p over all signs."""
    rows = vectors.tolist()
    d = vectors.shape[1]

    def norm(signs: tuple[int, ...]) -> float:
        return lp_norm([sum(s * row[j] for s, row in zip(signs, rows)) for j in range(d)], p)

    return mean_over_signs(len(rows), norm)
