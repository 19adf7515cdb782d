"""Names for the things that travel between packages: network outputs, batches and loss parts.

Shape letters used in every docstring: ``B`` samples in a batch, ``K`` classes, ``d`` feature size,
``N`` samples of a data set, ``V`` augmented views of one sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class ModelOutput(NamedTuple):
    """What every network returns: penultimate features and logits.

    Attributes:
        features: Input of the classification head, shape ``[B, d]``.
        logits: Scores before any margin, prior or scale of a loss, shape ``[B, K]``.
    """

    features: Tensor
    logits: Tensor


class LossTerms(NamedTuple):
    """A loss with its parts; the parts are unweighted so that logs and ablations need no second pass.

    Attributes:
        total: What is differentiated, scalar.
        logit_margin: Mean margin cross-entropy (Eq. 1), scalar.
        representation_margin: Mean representation margin (Eq. 2), scalar, before its weight λ.
    """

    total: Tensor
    logit_margin: Tensor
    representation_margin: Tensor


@dataclass(frozen=True)
class Batch:
    """One batch as the loaders hand it out.

    Attributes:
        inputs: Images ``[B, C, H, W]`` or features ``[B, d]``, float, already augmented and normalised. With ``V > 1`` views the first
            dimension is ``V * B``, view after view.
        labels: Class of each row of ``inputs``, int64; the loop may put class probabilities ``[B, K]`` in their place.
        index: Stable position of each row in the full training set, int64.
        views: How many augmented views of each sample ``inputs`` holds; ``labels`` and ``index`` are repeated for each.
    """

    inputs: Tensor
    labels: Tensor
    index: Tensor
    views: int = 1
