"""What must not matter: unit and origin of the features, names of classes, order of rows, ignored rows, shift of logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mr2_batches import gradients, random_batch, random_batches

from classmargin.mr2 import MR2Loss

CONFIGURATIONS = {
    "recommended": {},
    "spread": {"margin_source": "spread", "margin_power": 0.5},
    "standardised r²": {"margin_source": "sqnorm"},
    "order three": {"margin_source": "sqnorm", "norm_order": 3.0},
    "paper": {
        "representation": "pairs",
        "margin_source": "sqnorm",
        "mean_margin": 2.0,
        "label_smoothing": 0.0,
    },
    "release": {"representation": "released", "margin_source": "sqnorm", "norm_order": 5.0},
}
STANDARDISED = [name for name in CONFIGURATIONS if name not in ("paper", "release")]
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
standardised_ones = pytest.mark.parametrize("name", STANDARDISED)
K, D = 6, 3


def run(options, change=lambda batch: batch):
    """Return the totals, the gradients of the last batch and the loss after changed batches."""
    loss, totals = MR2Loss.build(K, **options), []
    for batch in random_batches(4, 30, K, D):
        total = loss(*change(batch))
        totals.append(total)
    return torch.stack(totals), gradients(total, batch), loss


def leaf(batch, features):
    return batch._replace(features=features.detach().requires_grad_())


# --- unit and origin of the features ------------------------------------------------------------------------------


@standardised_ones
@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (0.3, 5.0), (1e4, -7.0), (-2.0, 100.0)])
def test_scaling_and_shifting_all_features_changes_nothing(name, scale, shift):
    totals, grads, loss = run(CONFIGURATIONS[name])
    move = lambda b: b._replace(features=scale * b.features + shift * torch.arange(1, D + 1))
    new_totals, new_grads, new_loss = run(CONFIGURATIONS[name], move)
    tolerance = {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(new_totals, totals, **tolerance)
    torch.testing.assert_close(new_grads, grads, **tolerance)  # with respect to what was there before the change
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins, **tolerance)
    torch.testing.assert_close(new_loss.mean_spread, loss.mean_spread, **tolerance)


@standardised_ones
@pytest.mark.parametrize("scale", [1e-3, 50.0])
def test_the_gradient_scales_as_one_over_the_scale(name, scale):
    loss, scaled = (MR2Loss.build(K, **CONFIGURATIONS[name]) for _ in range(2))
    for batch in random_batches(3, 30, K, D):
        larger = leaf(batch, scale * batch.features)
        small, large = gradients(loss(*batch), batch), gradients(scaled(*larger), larger)
        torch.testing.assert_close(large[0], small[0])
        torch.testing.assert_close(scale * large[1], small[1])


@standardised_ones
@pytest.mark.parametrize("soft", [False, True])
def test_shrinking_features_earns_nothing(name, soft):
    """The gradient is orthogonal to the scale of the features and to every shift of all of them."""
    loss = MR2Loss.build(K, **CONFIGURATIONS[name])
    for batch in random_batches(3, 30, K, D):
        labels = torch.softmax(batch.logits.detach(), 1) if soft else batch.labels
        _, gradient = gradients(loss(batch.logits, labels, batch.features), batch)
        assert gradient.norm() > 1e-3
        features = batch.features.detach()
        assert abs((gradient * features).sum()) < 1e-10 * gradient.norm() * features.norm()
        assert gradient.sum(0).abs().max() < 1e-12


def test_shrinking_features_pays_in_the_printed_form():
    """The reason for the standardised form, and for the warning of the preset ``paper``."""
    loss = MR2Loss.build(K, **CONFIGURATIONS["paper"])
    for batch in random_batches(3, 30, K, D):
        _, gradient = gradients(loss(*batch), batch)
        assert (gradient * batch.features.detach()).sum() > 0.1 * gradient.norm()


@pytest.mark.parametrize("unit", [1e-3, 0.3, 1e4])
def test_margins_of_the_printed_form_do_not_depend_on_the_unit_of_the_features(unit):
    for name in ("paper", "release"):
        _, _, loss = run(CONFIGURATIONS[name])
        _, _, scaled = run(CONFIGURATIONS[name], lambda b: b._replace(features=unit * b.features))
        torch.testing.assert_close(scaled.class_margins, loss.class_margins)
        torch.testing.assert_close(scaled.mean_spread, unit**2 * loss.mean_spread)


@pytest.mark.parametrize("name", ["recommended", "spread", "standardised r²", "paper"])
def test_rotation_of_the_features_does_not_matter_in_l2(name):
    generator = torch.Generator().manual_seed(5)
    rotation, _ = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=generator))
    totals, grads, loss = run(CONFIGURATIONS[name])
    turn = lambda b: b._replace(features=b.features @ rotation)
    new_totals, new_grads, new_loss = run(CONFIGURATIONS[name], turn)
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins)


# --- classes, rows, logits ----------------------------------------------------------------------------------------


@every_configuration
def test_relabelling_the_classes_permutes_the_margins_and_nothing_else(options):
    permutation = torch.randperm(K, generator=torch.Generator().manual_seed(3))
    inverse = permutation.argsort()  # class k becomes permutation[k]
    relabel = lambda b: b._replace(logits=b.logits[:, inverse], labels=permutation[b.labels])
    totals, grads, loss = run(options)
    new_totals, new_grads, new_loss = run(options, relabel)
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    torch.testing.assert_close(new_loss.class_margins[permutation], loss.class_margins)
    torch.testing.assert_close(new_loss.mean_spread, loss.mean_spread)


@every_configuration
def test_order_of_the_rows_does_not_matter(options):
    order = torch.randperm(30, generator=torch.Generator().manual_seed(4))
    totals, grads, loss = run(options)
    new_totals, new_grads, new_loss = run(options, lambda b: type(b)(*(part[order] for part in b)))
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins)


@every_configuration
@pytest.mark.parametrize("weighted", [False, True])
def test_ignored_rows_are_dropped_rows(options, weighted):
    weight = torch.linspace(0.5, 2.0, K, dtype=torch.float64) if weighted else None
    keep = torch.arange(30) % 4 > 0
    ignore = lambda b: b._replace(labels=b.labels.masked_fill(~keep, -100))
    totals, grads, loss = run({**options, "weight": weight}, ignore)
    new_totals, new_grads, new_loss = run({**options, "weight": weight}, lambda b: type(b)(*(part[keep] for part in b)))
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    assert all(gradient[~keep].abs().max() == 0 for gradient in grads)
    torch.testing.assert_close(new_loss.statistics.averages, loss.statistics.averages)
    torch.testing.assert_close(new_loss.health.variance, loss.health.variance)


@every_configuration
def test_shift_of_the_logits_of_a_row_does_not_matter(options):
    shift = torch.linspace(-50, 50, 30, dtype=torch.float64).unsqueeze(1)
    totals, grads, _ = run(options)
    new_totals, new_grads, _ = run(options, lambda b: b._replace(logits=b.logits + shift))
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 12), st.sampled_from(list(CONFIGURATIONS)))
def test_any_batch_gives_finite_gradients_and_a_non_negative_loss(seed, size, num_classes, name):
    loss = MR2Loss.build(num_classes, **CONFIGURATIONS[name])
    batch = random_batch(size, num_classes, D, seed)
    terms = loss.terms(*batch)
    assert terms.logit_margin >= 0
    assert terms.representation_margin >= 0
    of_features = gradients(terms.total, batch)[1]
    assert of_features.isfinite().all()
    assert of_features.sum(0).abs().max() < 1e-8
    if name == "paper":  # rows move only along the differences to classmates
        for k in batch.labels.unique():
            assert of_features[batch.labels == k].sum(0).abs().max() < 1e-8
