"""Classifier-level margin: angles between the weights of the head.

The output-level margin (p_y minus the largest other probability) is a per-sample number and comes from
:mod:`classmargin.evaluation.sample_scores`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray


@dataclass(frozen=True)
class WeightAngles:
    """Angles between class weights.

    Attributes:
        norms: Length of each weight ``[K]``.
        nearest: Class with the smallest angle to each class ``[K]``, -1 if there is none.
        nearest_degrees: That angle ``[K]``, NaN if there is none.
        minimum_degrees: Classifier-level margin: the smallest angle of all pairs, NaN if there is no pair.
    """

    norms: FloatArray
    nearest: IntArray
    nearest_degrees: FloatArray
    minimum_degrees: float


def weight_angles(classifier_weight: AnyArray) -> WeightAngles:
    """Return lengths and nearest neighbours (by angle) of the class weights ``[K, d]``.

    ``m_c = min over i != j of arccos(w_i . w_j / (|w_i| |w_j|))``; a weight of length zero has no angle.

    Example:
        >>> float(weight_angles(np.eye(3)).minimum_degrees)
        90.0
    """
    weight = np.asarray(classifier_weight, dtype=np.float64)
    if not np.isfinite(weight).all():
        raise ValueError("classifier_weight must be finite, got NaN or infinite values")
    norms = np.linalg.norm(weight, axis=1)
    usable = norms > 0
    unit = weight / np.where(usable, norms, 1.0)[:, None]
    cosine = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(cosine, -np.inf)
    cosine[~usable, :] = -np.inf
    cosine[:, ~usable] = -np.inf
    nearest = np.argmax(cosine, axis=1)
    best = cosine[np.arange(len(norms)), nearest]
    known = np.isfinite(best)
    degrees = np.degrees(np.arccos(np.where(known, best, 0.0)))
    degrees[~known] = np.nan
    minimum = float(np.nanmin(degrees)) if known.any() else float("nan")
    return WeightAngles(norms, np.where(known, nearest, -1), degrees, minimum)
