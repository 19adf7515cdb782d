"""MR2Loss takes what cross-entropy takes: weights, smoothing, soft labels, ignored rows, priors."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, random_batch, random_batches, same_state, state

from classmargin.mr2 import MR2Loss, margin_cross_entropy

WEIGHT = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
PRIOR = torch.log_softmax(torch.linspace(2.0, -2.0, 5, dtype=torch.float64), 0)
POSITIVES = ("batch", "memory", "moments")


def mixed(batch, share=0.3):
    """Return the batch after mixup with its own reverse: features, logits and labels."""
    one_hot = F.one_hot(batch.labels, 5).double()
    mix = lambda x: (1 - share) * x + share * x.flip(0)
    return batch._replace(
        logits=mix(batch.logits.detach()).requires_grad_(),
        labels=mix(one_hot),
        features=mix(batch.features.detach()).requires_grad_(),
    )


@pytest.mark.parametrize(
    ("weighted", "smoothing", "labels", "prior"),
    list(itertools.product([False, True], [0.0, 0.1], ["hard", "soft", "ignored"], [False, True])),
)
def test_uniform_margins_of_one_are_cross_entropy_in_every_combination(weighted, smoothing, labels, prior):
    batch = random_batch(24, 5, 3)
    if labels == "soft":
        batch = mixed(batch)
    if labels == "ignored":
        batch = batch._replace(labels=batch.labels.masked_fill(batch.labels == 2, -100))
    options = {"weight": WEIGHT if weighted else None, "label_smoothing": smoothing}
    log_prior = PRIOR if prior else None
    loss = MR2Loss(5, margin_source="uniform", log_prior=log_prior, **options)
    ours = loss.terms(*batch).logit_margin
    scores = batch.logits + PRIOR if prior else batch.logits
    expected = F.cross_entropy(scores, batch.labels, **options)
    torch.testing.assert_close(ours, expected)
    mine, theirs = (torch.autograd.grad(value, batch.logits)[0] for value in (ours, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("options", [{"weight": WEIGHT}, {"label_smoothing": 0.2}, {"log_prior": PRIOR}])
@pytest.mark.parametrize("soft", [False, True])
def test_logit_term_is_the_function_with_the_current_margins(options, soft):
    batch = mixed(random_batch(24, 5, 3)) if soft else random_batch(24, 5, 3)
    loss = MR2Loss(5, mean_margin=2.0, **options)
    ours = loss.terms(*batch).logit_margin
    assert loss.class_margins.std() > 0.01
    torch.testing.assert_close(
        ours, margin_cross_entropy(batch.logits, batch.labels, loss.class_margins, **options)
    )


@pytest.mark.parametrize("options", [{"weight": WEIGHT}, {"label_smoothing": 0.2}, {"log_prior": PRIOR}])
def test_options_of_the_logit_term_do_not_touch_the_representation_term(options):
    batch = random_batch(24, 5, 3)
    torch.testing.assert_close(
        MR2Loss(5, **options).terms(*batch).representation_margin,
        MR2Loss(5).terms(*batch).representation_margin,
    )


@pytest.mark.parametrize("positives", ["batch", "moments"])
def test_one_hot_soft_labels_equal_hard_labels(positives):
    hard, soft = (MR2Loss(5, positives=positives) for _ in range(2))
    for batch in random_batches(3, 24, 5, 3):
        one_hot = batch._replace(labels=F.one_hot(batch.labels, 5).double())
        expected, ours = hard(*batch), soft(*one_hot)
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(gradients(ours, batch), gradients(expected, batch))
    for name, value in state(hard).items():
        torch.testing.assert_close(state(soft)[name], value)


@pytest.mark.parametrize("positives", POSITIVES)
def test_mixup_trains_with_finite_loss_and_gradient(positives):
    loss = MR2Loss(5, positives=positives)
    for batch in random_batches(3, 24, 5, 3):
        batch = mixed(batch)
        total = loss(*batch)
        assert total.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients(total, batch))
    assert loss.statistics.seen.all()


def test_pairs_of_mixed_samples_count_with_the_probability_of_a_common_class():
    """Two samples, each half class 0 and half something else: the pair counts one quarter."""
    features = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    logits = torch.zeros(2, 3, dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    loss = MR2Loss(3, temperature=1.0, spread_slack=0.0)
    term = loss.terms(logits, labels, features).representation_margin
    assert term.item() == pytest.approx(
        torch.log1p(0.25 * torch.tensor(4.0, dtype=torch.float64).exp()).item()
    )


def test_ignored_rows_count_nowhere():
    loss, reference = MR2Loss(5), MR2Loss(5)
    batch = random_batch(24, 5, 3)
    keep = torch.arange(24) % 4 > 0
    total = loss(batch.logits, batch.labels.masked_fill(~keep, -100), batch.features)
    expected = reference(batch.logits[keep], batch.labels[keep], batch.features[keep])
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradients(total, batch), gradients(expected, batch))
    assert same_state(state(loss), state(reference))


def test_a_real_class_can_be_the_one_ignored():
    loss, reference = MR2Loss(5, ignore_index=2), MR2Loss(5)
    batch = random_batch(24, 5, 3)
    keep = batch.labels != 2
    torch.testing.assert_close(
        loss(*batch), reference(batch.logits[keep], batch.labels[keep], batch.features[keep])
    )
    assert not loss.statistics.seen[2]


@pytest.mark.parametrize("positives", POSITIVES)
def test_all_rows_ignored_give_a_zero_that_keeps_the_graph(positives):
    batch = random_batch(6, 5, 3)._replace(labels=torch.full((6,), -100))
    total = MR2Loss(5, positives=positives)(*batch)
    assert total.item() == 0.0
    assert all(gradient.abs().sum() == 0 for gradient in gradients(total, batch))


def test_class_weights_of_one_change_nothing():
    batch = random_batch(24, 5, 3)
    torch.testing.assert_close(
        MR2Loss(5, weight=torch.ones(5, dtype=torch.float64))(*batch), MR2Loss(5)(*batch)
    )


def test_class_of_weight_zero_has_no_gradient_on_the_logits():
    weight = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    batch = random_batch(24, 5, 3)
    of_logits, _ = gradients(MR2Loss(5, weight=weight)(*batch), batch)
    assert of_logits[batch.labels == 0].abs().max() == 0
    assert of_logits[batch.labels == 1].abs().min() > 0


def test_uniform_log_prior_changes_nothing():
    batch = random_batch(24, 5, 3)
    flat = torch.full((5,), -1.6, dtype=torch.float64)
    torch.testing.assert_close(MR2Loss(5, log_prior=flat)(*batch), MR2Loss(5)(*batch))


def test_log_prior_and_weight_are_copied_from_the_caller():
    prior = PRIOR.clone()
    loss = MR2Loss(5, log_prior=prior)
    prior.zero_()
    torch.testing.assert_close(loss.log_prior, PRIOR)
