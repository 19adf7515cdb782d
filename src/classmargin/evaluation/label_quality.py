"""Samples whose label looks wrong: the confident-learning estimate, per class.

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels" (2021). A sample labelled
i counts for class j when j is the most likely class among those whose probability reaches their threshold t_j = mean
probability of class j over the samples labelled j. Off-diagonal counts are label issues.
"""

from __future__ import annotations

import numpy as np

from classmargin.evaluation.class_metrics import class_means
from classmargin.evaluation.inputs import AnyArray, FloatArray, IntArray


def label_issues(
    labels: IntArray,
    true_probability: FloatArray,
    candidates: IntArray,
    candidate_probabilities: FloatArray,
    num_classes: int,
) -> AnyArray:
    """Return for each sample whether confident learning takes it for another class ``[N]``.

    Args:
        labels: Given classes ``[N]``.
        true_probability: Probability of the given class ``[N]``.
        candidates: The most likely classes of each sample, most likely first ``[N, T]``.
        candidate_probabilities: Their probabilities ``[N, T]``.
        num_classes: Number of classes K.
    """
    thresholds = class_means(true_probability, labels, num_classes)
    thresholds = np.where(np.isnan(thresholds), np.inf, thresholds)  # an absent class is nobody's true class
    confident = candidate_probabilities >= thresholds[candidates]
    first = np.argmax(confident, axis=1)
    rows = np.arange(labels.shape[0])
    return np.asarray(confident[rows, first] & (candidates[rows, first] != labels))
