"""The cosine head of MR2Classifier: weights of one length, found at a minimum."""

import numpy as np
import pytest
import torch
from sklearn_toys import blobs, objective

from classmargin import MR2Classifier


def test_cosine_weights_have_one_length_and_rows_none():
    X, y = blobs()
    model = MR2Classifier(norm_order=3.0, cosine=True).fit(X, y)
    np.testing.assert_allclose(np.linalg.norm(model.coef_, axis=1), model.scale_)
    factor = np.random.default_rng(1).uniform(0.1, 10.0, (len(X), 1))
    np.testing.assert_allclose(model.decision_function(factor * X), model.decision_function(X))
    assert model.score(X, y) > 0.8


def test_cosine_fit_is_a_minimum():
    X, y = blobs()
    model = MR2Classifier(norm_order=3.0, cosine=True, alpha=1e-4, tol=1e-9, epochs=2000).fit(X, y)
    value, coef_gradient, intercept_gradient = objective(model, X, y, cosine=True)
    directions = torch.tensor(model.coef_ / model.scale_)
    along = (coef_gradient * directions).sum(1, keepdim=True)
    assert model.objective_ == pytest.approx(value, rel=1e-9)
    assert (coef_gradient - along * directions).abs().max() < 1e-4  # nothing is gained by turning
    assert abs(along.sum()) < 1e-4  # nor by another scale
    assert intercept_gradient.abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_given_scale_is_kept():
    X, y = blobs()
    model = MR2Classifier(cosine=True, scale=10.0).fit(X, y)
    assert model.scale_ == pytest.approx(10.0)


@pytest.mark.filterwarnings("ignore:MR2Classifier has uniform margins:UserWarning")
def test_margins_of_directions_need_another_norm_than_two():
    X, y = blobs()
    np.testing.assert_allclose(MR2Classifier(cosine=True).fit(X, y).class_margins_, 1.0)
    assert np.ptp(MR2Classifier(norm_order=3.0, cosine=True).fit(X, y).class_margins_) > 0.01


def test_rows_that_span_little_and_a_class_without_rows_leave_the_head_whole():
    X, y = blobs(rows=80)
    X[:, 3:] = 0.0
    model = MR2Classifier(norm_order=3.0, cosine=True).fit(X, y, sample_weight=(y != 3).astype(float))
    np.testing.assert_allclose(np.linalg.norm(model.coef_, axis=1), model.scale_)
    assert np.isfinite(model.predict_proba(X)).all()
    assert model.score(X[y != 3], y[y != 3]) > 0.6


def test_nothing_but_zeros_is_a_head_without_knowledge():
    model = MR2Classifier(cosine=True).fit(np.zeros((12, 3)), np.arange(12) % 3)
    np.testing.assert_allclose(model.predict_proba(np.zeros((1, 3))), 1 / 3, atol=1e-6)
