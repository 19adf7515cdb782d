"""The whole objective (Eq. 4) in its own form: moments, relative temperature, every margin source."""

import mr2_naive as naive
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, history, random_batch, random_batches, toy_batch

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")


def naive_terms(
    batches, num_classes, *, mean_margin=1.0, source="sqnorm", power=1 / 3, norm_order=2.0, factor=1.0
):
    """Return both terms of the last batch after all batches."""
    statistics = naive.moments_statistics(history(batches), num_classes, norm_order)
    margins = naive.class_margins(
        {k: s[source] for k, s in statistics.items()}, num_classes, mean_margin, power
    )
    temperature = factor * naive.peak_variance(history(batches))
    last = batches[-1]
    logit = naive.logit_margin_losses(last.logits, last.labels, margins)
    pairs = naive.representation_margin_losses(
        last.features, last.labels, naive.mean_spread(statistics), temperature
    )
    return logit.mean(), pairs.mean()


@pytest.mark.parametrize(
    ("size", "num_classes", "options"),
    [
        (24, 5, {}),
        (60, 4, {"norm_order": 3.0, "mean_margin": 2.0}),
        (12, 40, {}),
        (24, 5, {"source": "spread", "power": 0.5}),
        (24, 5, {"source": "relative-spread", "power": 0.5}),
        (24, 5, {"factor": 4.0}),
    ],
)
def test_every_step_equals_the_loop(size, num_classes, options):
    names = {"source": "margin_source", "power": "margin_power", "factor": "temperature_factor"}
    settings = {names.get(name, name): value for name, value in options.items()}
    loss = MR2Loss(num_classes, representation_weight=0.3, **settings)
    batches = random_batches(4, size, num_classes, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        if "spread" in options.get("source", "") and step == 1:
            continue  # a class with one sample has spread 0, tested elsewhere
        logit, pairs = naive_terms(batches[:step], num_classes, **options)
        torch.testing.assert_close(terms.logit_margin, logit)
        torch.testing.assert_close(terms.representation_margin, pairs)
        torch.testing.assert_close(terms.total, logit + 0.3 * pairs)
        torch.testing.assert_close(gradients(terms.total, batch), gradients(logit + 0.3 * pairs, batch))


def test_total_is_the_logit_term_plus_weighted_representation_term():
    loss = MR2Loss(5, representation_weight=0.7)
    terms = loss.terms(*random_batch(24, 5, 3))
    torch.testing.assert_close(terms.total, terms.logit_margin + 0.7 * terms.representation_margin)
    assert terms.representation_margin > 0


def test_each_part_has_its_own_gradient():
    batch = random_batch(24, 5, 3)
    terms = MR2Loss(5, representation_weight=0.7).terms(*batch)
    logit = torch.autograd.grad(terms.logit_margin, batch.logits, retain_graph=True)[0]
    pairs = torch.autograd.grad(terms.representation_margin, batch.features, retain_graph=True)[0]
    of_logits, of_features = gradients(terms.total, batch)
    torch.testing.assert_close(of_logits, logit)
    torch.testing.assert_close(of_features, 0.7 * pairs)


def test_forward_is_the_total():
    batch = random_batch(24, 5, 3)
    torch.testing.assert_close(MR2Loss(5)(*batch), MR2Loss(5).terms(*batch).total)


def test_weight_zero_drops_the_representation_term():
    batch = random_batch(24, 5, 3)
    terms = MR2Loss(5, representation_weight=0.0).terms(*batch)
    assert terms.representation_margin.item() == 0.0
    torch.testing.assert_close(terms.total, MR2Loss(5).terms(*batch).logit_margin)
    (of_features,) = torch.autograd.grad(terms.total, batch.features, allow_unused=True)
    assert of_features is None or of_features.abs().max() == 0


def test_weight_zero_with_uniform_margins_of_one_is_cross_entropy():
    batch = random_batch(24, 5, 3)
    loss = MR2Loss(5, representation_weight=0.0, margin_source="uniform")
    torch.testing.assert_close(loss(*batch), F.cross_entropy(batch.logits, batch.labels))


def test_uniform_margins_are_the_mean_margin():
    loss = MR2Loss(5, margin_source="uniform", mean_margin=2.5)
    loss(*random_batch(24, 5, 3))
    assert loss.class_margins.tolist() == [2.5] * 5


def test_equal_spreads_give_equal_margins():
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    loss = MR2Loss(3, margin_source="spread", mean_margin=2.0)
    loss(torch.zeros(12, 3, dtype=torch.float64), torch.arange(12) // 4, corners.repeat(3, 1) + 5.0)
    assert loss.class_margins.tolist() == pytest.approx([2.0] * 3)


def test_wider_classes_get_larger_margins_from_the_spread():
    loss = MR2Loss(5, margin_source="spread")
    for batch in random_batches(20, 60, 5, 8):  # spreads grow with the class number
        loss(*batch)
    assert loss.class_margins.diff().min() > 0


def test_margins_average_to_mean_margin():
    loss = MR2Loss(5, mean_margin=2.0)
    loss(*random_batch(24, 5, 3))
    assert loss.class_margins.mean().item() == pytest.approx(2.0)


def test_classes_never_seen_get_the_mean_margin_and_change_no_other():
    batch = toy_batch()
    wide = torch.cat([batch.logits, torch.full((4, 4), -1e9, dtype=torch.float64)], 1)
    few, many = MR2Loss(3, mean_margin=2.0), MR2Loss(7, mean_margin=2.0)
    terms, wide_terms = few.terms(*batch), many.terms(wide, batch.labels, batch.features)
    assert many.class_margins[3:].tolist() == pytest.approx([2.0] * 4)
    torch.testing.assert_close(many.class_margins[:3], few.class_margins)
    torch.testing.assert_close(wide_terms.logit_margin, terms.logit_margin)
    torch.testing.assert_close(wide_terms.representation_margin, terms.representation_margin)


def test_statistics_move_before_they_are_used():
    loss = MR2Loss.preset("paper", 3)
    first = loss.terms(*toy_batch()).total
    again = loss.terms(*toy_batch(), update_statistics=False).total
    torch.testing.assert_close(first, again)


def test_margins_and_spread_are_constants_for_autograd():
    batch = random_batch(24, 5, 3)
    loss = MR2Loss(5)
    terms = loss.terms(*batch)
    assert not loss.class_margins.requires_grad
    assert not loss.mean_spread.requires_grad
    # the logit term depends on the features only through γ, so it has no gradient there
    (gradient,) = torch.autograd.grad(terms.logit_margin, batch.features, allow_unused=True)
    assert gradient is None or gradient.abs().max() == 0


@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)])
def test_value_does_not_depend_on_what_needs_a_gradient(needs):
    batch = random_batch(24, 5, 3)
    expected = MR2Loss(5)(*batch)
    logits, features = (
        tensor.detach().clone().requires_grad_(need)
        for tensor, need in zip((batch.logits, batch.features), needs, strict=True)
    )
    loss = MR2Loss(5)(logits, batch.labels, features)
    torch.testing.assert_close(loss, expected)
    for tensor, reference, need in zip((logits, features), gradients(expected, batch), needs, strict=True):
        if need:
            torch.testing.assert_close(torch.autograd.grad(loss, tensor, retain_graph=True)[0], reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_of_logits_and_features_may_differ(dtype):
    batch = random_batch(24, 5, 3)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    loss = MR2Loss(5)(batch.logits.to(dtype), batch.labels, batch.features.to(other))
    torch.testing.assert_close(loss.double(), MR2Loss(5)(*batch), rtol=1e-5, atol=1e-6)


def test_numbers_of_numpy_are_numbers():
    loss = MR2Loss(np.int64(3), representation_weight=np.float32(0.5), warmup_steps=np.int32(2))
    assert (loss.num_classes, loss.representation_weight, loss.warmup_steps) == (3, 0.5, 2)
    assert type(loss.num_classes) is int
    with pytest.raises(TypeError, match="num_classes must be an int, got float64"):
        MR2Loss(np.float64(3.0))
