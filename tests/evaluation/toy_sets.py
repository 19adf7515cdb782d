"""Small test sets with known truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ToySet:
    """A linear classifier on Gaussian classes of different spread; every array an audit takes."""

    labels: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    weight: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        powers = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"logits": self.logits, "features": self.features, "classifier_weight": self.weight}


def make_toy(seed: int = 0, samples: int = 600, num_classes: int = 7, size: int = 5) -> ToySet:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(num_classes, size))
    labels = rng.integers(0, num_classes, samples)
    spread = np.linspace(0.4, 1.6, num_classes)
    features = weight[labels] + rng.normal(size=(samples, size)) * spread[labels, None]
    return ToySet(labels, features @ weight.T, features, weight)
