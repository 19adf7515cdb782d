"""Toy data, and the objective of MR2Classifier written down again, for its tests."""

import numpy as np
import torch

from classmargin.functional import margin_cross_entropy

SPREADS = np.array([0.5, 1.0, 2.0, 1.0])


def blobs(rows=240, size=6, seed=0, dtype=np.float64):
    """Four classes of different spread around different points."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(4, size)) + 3.0
    y = rng.integers(0, 4, rows)
    return (centres[y] + rng.normal(size=(rows, size)) * SPREADS[y, None]).astype(dtype), y


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def objective(model, X, y, weight=None, cosine=False):
    """The objective and its gradient, written down again with autograd in float64."""
    X, y = torch.tensor(unit(X) if cosine else X, dtype=torch.float64), torch.tensor(y)
    weight = torch.ones(len(y)).double() if weight is None else torch.tensor(weight).double()
    share = weight / weight.sum()
    coef = torch.tensor(model.coef_, dtype=torch.float64, requires_grad=True)
    intercept = torch.tensor(model.intercept_, dtype=torch.float64, requires_grad=True)
    margins = torch.tensor(model.class_margins_)
    losses = margin_cross_entropy(X @ coef.T + intercept, y, margins, reduction="none")
    variance = 1.0 if cosine else (share @ (X - share @ X).square()).sum()
    value = share @ losses + 0.5 * model.alpha * variance * coef.square().sum()
    value.backward()
    return float(value.detach()), coef.grad, intercept.grad
