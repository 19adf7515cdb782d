"""The factor p_y on the pull of a sample: what is not fitted yet is not pulled to its classmates."""

import math

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, random_batch, toy_batch

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")
POSITIVES = ("batch", "memory", "moments")


def own_probability(logits, label, margin, prior=None):
    scores = [float(z) / margin + (0.0 if prior is None else float(prior[k])) for k, z in enumerate(logits)]
    return math.exp(scores[label]) / sum(math.exp(score) for score in scores)


def test_hand_value_on_the_toy_batch():
    """Equal scores of three classes: every pull counts a third."""
    batch = toy_batch()
    loss = MR2Loss.preset("paper", 3, weigh_by_confidence=True, mean_margin=1.0)
    terms = loss.terms(torch.zeros_like(batch.logits), batch.labels, batch.features)
    assert terms.representation_margin.item() == pytest.approx(1.684193 / 3, abs=1e-6)


@pytest.mark.parametrize("positives", POSITIVES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mean_margin": 2.0, "margin_source": "relative-spread", "weigh_by_margin": True},
        {"log_prior": torch.linspace(-3.0, -1.0, 5, dtype=torch.float64)},
        {"weight": torch.linspace(0.5, 2.0, 5, dtype=torch.float64), "label_smoothing": 0.1},
    ],
    ids=["margins", "weighed margins", "prior", "class weights and smoothing"],
)
def test_value_and_gradient_equal_the_loop(positives, options):
    """Eq. 2 one row at a time, times the probability from a loop over classes."""
    batch = random_batch(20, 5, 3)
    before = random_batch(20, 5, 3, seed=7)
    ours, plain = (
        MR2Loss(5, positives=positives, weigh_by_confidence=flag, **options) for flag in (True, False)
    )
    for loss in (ours, plain):
        loss(*before)
    terms = ours.terms(*batch, update_statistics=False)
    margins = ours.class_margins.tolist()
    expected = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(batch.labels.tolist()):
        probability = own_probability(
            batch.logits[i].tolist(), label, margins[label], options.get("log_prior")
        )
        expected = expected + probability * row_loss(plain, batch, i)
    torch.testing.assert_close(terms.representation_margin, expected / 20)
    found = torch.autograd.grad(terms.representation_margin, batch.features, retain_graph=True)[0]
    torch.testing.assert_close(found, torch.autograd.grad(expected / 20, batch.features)[0])
    assert_without_gradient(terms.representation_margin, batch.logits)


def row_loss(loss, batch, row):
    """Eq. 2 of one row by a loop over its classmates in batch and memory, or its closed form."""
    features, label = batch.features, int(batch.labels[row])
    spread, temperature = float(loss.mean_spread), float(loss.scale.peak_variance)
    if loss.positives == "moments":
        mean = loss.statistics.class_mean[label]
        distance = (features[row] - mean).square().sum() + loss.statistics.class_spread[label]
        return F.softplus((distance - 2 * spread) / temperature)
    mates = [features[j] for j in range(len(features)) if j != row and int(batch.labels[j]) == label]
    if loss.memory is not None:
        mates += list(loss.memory.ring[label, : int(loss.memory.filled[label])])
    exponents = [((features[row] - mate).square().sum() - 2 * spread) / temperature for mate in mates]
    return torch.log1p(sum((e.exp() for e in exponents), torch.zeros((), dtype=torch.float64)))


def assert_without_gradient(value, tensor):
    gradient = torch.autograd.grad(value, tensor, allow_unused=True)[0]
    assert gradient is None or not gradient.any()


@pytest.mark.parametrize("positives", POSITIVES)
def test_a_fitted_sample_is_pulled_fully_and_a_hopeless_one_not_at_all(positives):
    batch = random_batch(20, 5, 3)
    ours, plain = (MR2Loss(5, positives=positives, weigh_by_confidence=flag) for flag in (True, False))
    sure = 200.0 * F.one_hot(batch.labels, 5).double()
    torch.testing.assert_close(
        ours.terms(sure, batch.labels, batch.features).representation_margin,
        plain.terms(sure, batch.labels, batch.features).representation_margin,
    )
    wrong = ours.terms(-2000.0 * F.one_hot(batch.labels, 5).double(), batch.labels, batch.features)
    assert wrong.representation_margin.item() == 0.0
    assert torch.isfinite(wrong.total)


def test_soft_labels_weigh_by_the_probability_of_their_mix():
    batch = random_batch(20, 5, 3)
    soft = F.one_hot(batch.labels, 5).double()
    for positives in ("batch", "moments"):
        hard_loss, soft_loss = (MR2Loss(5, positives=positives, weigh_by_confidence=True) for _ in range(2))
        torch.testing.assert_close(soft_loss(batch.logits, soft, batch.features), hard_loss(*batch))
    half = torch.full((20, 5), 0.2, dtype=torch.float64)
    ours, plain = (MR2Loss(5, weigh_by_confidence=flag) for flag in (True, False))
    parts = [loss.terms(batch.logits, half, batch.features).representation_margin for loss in (ours, plain)]
    torch.testing.assert_close(parts[0], parts[1] / 5)


def test_second_derivatives_are_right():
    batch = random_batch(6, 3, 2)
    loss = MR2Loss(3, positives="moments", weigh_by_confidence=True, representation_weight=1.0)
    loss(*batch)
    logits = batch.logits.detach()  # the factor is a constant for autograd, so numbers of logits would differ

    def of_features(features):
        return loss(logits, batch.labels, features, update_statistics=False)

    assert torch.autograd.gradcheck(of_features, batch.features)
    assert torch.autograd.gradgradcheck(of_features, batch.features)
    assert all(torch.isfinite(part).all() for part in gradients(loss(*batch), batch))


def test_the_logit_term_is_untouched():
    batch = random_batch(30, 5, 3)
    ours, plain = (MR2Loss(5, weigh_by_confidence=flag) for flag in (True, False))
    mine, theirs = (loss.terms(*batch).logit_margin for loss in (ours, plain))
    torch.testing.assert_close(mine, theirs)
    losses = naive.logit_margin_losses(batch.logits, batch.labels, ours.class_margins.tolist())
    torch.testing.assert_close(mine, losses.mean())
