"""The cosine head of MR2Classifier: weights of one length, found at a minimum."""

import numpy as np
import pytest
import torch
from sklearn_toys import blobs, objective

from classmargin import MR2Classifier
from classmargin.functional import margin_cross_entropy
from classmargin.integrations.sklearn_parts import cosine_newton, margin_objective


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


@pytest.mark.parametrize("learned", [(True, True), (False, True), (True, False), (False, False)])
def test_derivatives_of_a_cosine_head_are_those_of_autograd(learned):
    """In all variables, away from a minimum; the directions that change nothing have curvature 1."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, labels = torch.nn.functional.normalize(draw(20, 4), dim=1), torch.arange(20) % 3
    share, margins = torch.softmax(draw(20), 0), torch.tensor([0.5, 1.0, 1.5]).double()
    target = margin_objective.MarginObjective(rows, labels, share, margins, 0.01)
    start = cosine_newton.CosinePoint(
        torch.nn.functional.normalize(draw(3, 4), dim=1), draw(3), torch.tensor(5.0).double()
    )
    moves = torch.tensor([*([1.0] * 4 + [float(learned[0])]) * 3, float(learned[1])]).double()

    def value_after(step):
        point = start.moved(step * moves)
        losses = margin_cross_entropy(
            rows @ point.coef.T + point.intercept, labels, margins, reduction="none"
        )
        return share @ losses + 0.005 * point.coef.square().sum()

    nowhere = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    value, slopes, hessian = cosine_newton.derivatives(
        target, start, learns_intercept=learned[0], learns_scale=learned[1]
    )
    assert value == pytest.approx(value_after(nowhere).item(), rel=1e-12)
    torch.testing.assert_close(slopes, torch.autograd.grad(value_after(nowhere), nowhere)[0])
    offsets = torch.tensor([*([0.0] * 4 + [1.0]) * 3, 0.0]).double()
    added = torch.outer(offsets, offsets) / 3
    added[-1, -1] = 0.0 if learned[1] else 1.0
    expected = torch.autograd.functional.hessian(value_after, nowhere) + added
    # A longer u_k changes nothing: there ours has curvature 1, and autograd what the next turn would lose by it.
    lengths = torch.nn.functional.pad(start.directions, (0, 1))
    along = torch.block_diag(*(torch.outer(u, u) for u in lengths), torch.zeros(1, 1))
    across = torch.eye(16, dtype=torch.float64) - along
    torch.testing.assert_close(across @ hessian @ across, across @ expected @ across)
    torch.testing.assert_close(along @ hessian @ along, along)


def test_given_scale_is_kept():
    X, y = blobs()
    model = MR2Classifier(cosine=True, scale=10.0).fit(X, y)
    assert model.scale_ == pytest.approx(10.0)


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
