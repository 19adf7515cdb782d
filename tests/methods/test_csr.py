from dataclasses import replace

import pytest
import torch

from classmargin.methods import Step
from classmargin.methods.csr import confusion_counts, spectral_weights

CONFUSION = torch.tensor([[0, 2, 1], [3, 0, 0], [1, 1, 0]], dtype=torch.float64) / 10
LOGITS = torch.tensor([[2, 1, 0], [1.5, 1, -1], [1, 0, 3], [0.2, 0.9, 0.5]], dtype=torch.float64)


def test_spectral_norm_and_weights():
    assert torch.linalg.matrix_norm(CONFUSION, 2).item() == pytest.approx(0.319522, abs=1e-6)
    expected = [[0.307564, 0.061107, 0.01], [2.01, 0.417632, 0.087426], [0.807818, 0.165871, 0.032751]]
    torch.testing.assert_close(
        spectral_weights(CONFUSION), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_loss_with_given_confusions(make, toy):
    method = make("csr")
    method.set_confusion(CONFUSION)
    loss = method.loss(replace(toy, logits=LOGITS), True)
    assert loss.parts["spectral"].item() == pytest.approx(0.978167, abs=1e-6)
    assert loss.total.item() == pytest.approx(0.831516, abs=1e-6)


def test_gradient_is_that_of_weighted_cross_entropy(make, toy):
    method = make("csr", spectral_weight=1.0)
    method.set_confusion(CONFUSION)
    logits = LOGITS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(method.loss(replace(toy, logits=logits), True).total, logits)
    weights = torch.tensor([0.307564, 0.061107, 0.032751, 2.01], dtype=torch.float64)
    weighted = (weights * torch.nn.functional.cross_entropy(logits, toy.labels, reduction="none")).mean()
    assert weighted.item() == pytest.approx(0.788707, abs=1e-6)
    torch.testing.assert_close(slope, torch.autograd.grad(weighted, logits)[0], rtol=0, atol=1e-6)


def test_rows_are_predictions_and_columns_are_true_classes():
    counts = confusion_counts(LOGITS, torch.tensor([0, 1, 2, 0]))
    assert counts.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_margin_counts_narrow_wins_as_confusions():
    logits = torch.tensor([[1.0, 0.95, 0.0], [-1.0, -1.05, -9.0]])  # also where the own logit is negative
    labels = torch.tensor([0, 0])
    assert confusion_counts(logits, labels, 0.0).sum() == 0
    assert confusion_counts(logits, labels, 0.1).tolist() == [[0, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_no_errors_weigh_every_sample_the_same():
    assert spectral_weights(torch.zeros(3, 3)).tolist() == [[1] * 3] * 3


def test_uniform_confusions_give_finite_weights():
    assert torch.isfinite(spectral_weights((1 - torch.eye(4)) / 3)).all()


class Context:
    epoch = 0

    def training_pass(self):
        yield Step(LOGITS[:3], LOGITS[:3], torch.tensor([0, 1, 2]), torch.arange(3))
        yield Step(LOGITS[3:], LOGITS[3:], torch.tensor([0]), torch.tensor([3]))


def test_epoch_start_counts_shares_of_true_classes(make):
    method, by_hand = make("csr"), make("csr")
    method.on_epoch_start(Context())
    by_hand.set_confusion(torch.tensor([[0, 1, 0], [0.5, 0, 0], [0, 0, 0]]))
    assert torch.equal(method.confusion_weights, by_hand.confusion_weights)


def test_before_its_start_it_is_cross_entropy_without_a_pass(make, toy):
    method = make("csr", start_share=0.5)
    method.on_epoch_start(Context())
    assert torch.equal(method.confusion_weights, torch.ones(3, 3, dtype=torch.float64))
    assert method.loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)
    method.set_confusion(CONFUSION)
    assert method.loss(replace(toy, epoch=5), True).total.item() != pytest.approx(0.520918, abs=1e-3)
