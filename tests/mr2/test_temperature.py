"""Temperature of Eq. 2: a number as printed, or a rule relative to a scale without gradient."""

import mr2_naive as naive
import pytest
import torch
from mr2_batches import history, random_batch, random_batches

from classmargin.mr2 import MR2Loss, representation_margin

pytestmark = pytest.mark.usefixtures("either_table")


def settled(scale, **options):
    """Return the loss after a few batches of features times ``scale``."""
    loss = MR2Loss(6, **options)
    for batch in random_batches(5, 40, 6, 4):
        loss(batch.logits, batch.labels, scale * batch.features)
    return loss


def term_and_gradient(loss, scale):
    batch = random_batch(40, 6, 4, seed=77)
    terms = loss.terms(batch.logits, batch.labels, scale * batch.features, update_statistics=False)
    return terms, torch.autograd.grad(terms.representation_margin, batch.features)[0]


@pytest.mark.parametrize("positives", ["batch", "memory", "moments"])
@pytest.mark.parametrize("scale", [1e-2, 30.0])
def test_total_variance_rule_makes_loss_and_gradient_free_of_scale(scale, positives):
    base_terms, base_gradient = term_and_gradient(settled(1.0, positives=positives), 1.0)
    terms, gradient = term_and_gradient(settled(scale, positives=positives), scale)
    torch.testing.assert_close(terms.total, base_terms.total)
    torch.testing.assert_close(terms.representation_margin, base_terms.representation_margin)
    # with respect to the unscaled features the whole gradient is the same; with respect to a·φ it is 1/a of it
    torch.testing.assert_close(gradient, base_gradient)


@pytest.mark.parametrize(("scale", "check"), [(30.0, lambda r: r > 100), (0.03, lambda r: r < 0.01)])
def test_fixed_temperature_dominates_or_vanishes_with_the_scale(scale, check):
    options = {"temperature": 1.0, "spread_slack": 0.0}
    _, base = term_and_gradient(settled(1.0, **options), 1.0)
    _, gradient = term_and_gradient(settled(scale, **options), scale)
    assert check((gradient.norm() / base.norm()).item())


def test_number_is_the_temperature():
    loss = settled(1.0, temperature=2.5)
    batch = random_batch(40, 6, 4, seed=77)
    terms = loss.terms(*batch, update_statistics=False)
    expected = representation_margin(batch.features, batch.labels, loss.mean_spread, temperature=2.5)
    torch.testing.assert_close(terms.representation_margin, expected)


def test_dimension_rule_is_factor_times_feature_dim():
    loss = settled(1.0, temperature="dimension", temperature_factor=10.0)
    batch = random_batch(40, 6, 4, seed=77)
    terms = loss.terms(*batch, update_statistics=False)
    expected = representation_margin(batch.features, batch.labels, loss.mean_spread, temperature=40.0)
    torch.testing.assert_close(terms.representation_margin, expected)


def test_total_variance_rule_is_factor_times_the_largest_variance_so_far():
    loss = MR2Loss(6, temperature_factor=3.0)
    batches = random_batches(5, 40, 6, 4)
    for number, batch in enumerate(batches):
        shrinking = batch._replace(features=0.8**number * batch.features.detach())
        batches[number] = shrinking
        terms = loss.terms(*shrinking)
    temperature = 3.0 * naive.peak_variance(history(batches))
    assert temperature > 3.5 * naive.total_variance(history(batches))
    expected = representation_margin(
        shrinking.features, shrinking.labels, loss.mean_spread, temperature=temperature
    )
    torch.testing.assert_close(terms.representation_margin, expected)


def test_pull_does_not_grow_when_all_features_shrink():
    """A temperature that shrank with the features would pull the harder the smaller they are."""
    batch = random_batch(40, 6, 4)
    loss = MR2Loss(6, ema_decay=0.0, collapse_check_interval=0)
    pulls = []
    for scale in (1.0, 0.1, 0.01):
        features = (scale * batch.features.detach()).requires_grad_()
        term = loss.terms(batch.logits, batch.labels, features).representation_margin
        pulls.append(torch.autograd.grad(term, features)[0].norm().item())
    assert pulls[0] > 5 * pulls[1] > 25 * pulls[2]


def test_temperature_does_not_fall_to_zero_when_classes_become_compact():
    loss = MR2Loss(2)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(20) % 2
    features = 10.0 * labels[:, None] + 1e-3 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    loss(torch.zeros(20, 2, dtype=torch.float64), labels, features)
    assert loss.mean_spread < 1e-4
    assert loss.statistics.total_variance.item() == pytest.approx(3 * 25, rel=1e-2)


def test_temperature_is_a_constant_for_autograd():
    batch = random_batch(40, 6, 4)
    loss = MR2Loss(6)
    terms = loss.terms(*batch)
    frozen = representation_margin(
        batch.features, batch.labels, loss.mean_spread, temperature=loss.statistics.total_variance
    )
    ours = torch.autograd.grad(terms.representation_margin, batch.features)
    torch.testing.assert_close(ours, torch.autograd.grad(frozen, batch.features))
