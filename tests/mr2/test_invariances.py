"""What must not matter: names of classes, order of samples, unit of the features, rotation, shift of logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mr2_batches import gradients, random_batch, random_batches

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

CONFIGURATIONS = {
    "default": {},
    "paper": {"temperature": 1.0, "representation_weight": 0.5, "mean_margin": 2.0, "estimator": "batch"},
    "order three": {"norm_order": 3.0},
    "memory": {"positives": "memory"},
    "moments": {"positives": "moments"},
    "spread": {"margin_source": "spread"},
    "relative spread": {"margin_source": "relative-spread", "margin_power": 0.5},
    "weighed": {"margin_source": "relative-spread", "weigh_by_margin": True},
    "confident": {"positives": "moments", "weigh_by_confidence": True},
    "release": {"representation_reduction": "classes", "dimension_scale": 0.1},
    "smoothing": {"label_smoothing": 0.1},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
K, D = 6, 3


def run(options, change, batches=None):
    """Return the totals, the gradients of the last batch and the loss after changed batches."""
    loss = MR2Loss(K, **options)
    totals = []
    for batch in batches or random_batches(4, 20, K, D):
        total = loss(*change(batch))
        totals.append(total)
    return torch.stack(totals), gradients(total, batch), loss


def same(batch):
    return batch


@every_configuration
def test_relabelling_the_classes_permutes_the_margins_and_nothing_else(options):
    permutation = torch.randperm(K, generator=torch.Generator().manual_seed(3))
    inverse = permutation.argsort()  # class k becomes permutation[k]
    relabel = lambda b: b._replace(logits=b.logits[:, inverse], labels=permutation[b.labels])
    totals, grads, loss = run(options, same)
    new_totals, new_grads, new_loss = run(options, relabel)
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    torch.testing.assert_close(new_loss.class_margins[permutation], loss.class_margins)
    torch.testing.assert_close(new_loss.mean_spread, loss.mean_spread)


@every_configuration
def test_order_of_the_samples_does_not_matter(options):
    if options.get("positives") == "memory":
        options = {
            **options,
            "memory_size": 50,
        }  # a full ring forgets the oldest, so there order is meant to matter
    order = torch.randperm(20, generator=torch.Generator().manual_seed(4))
    shuffle = lambda b: b._replace(logits=b.logits[order], labels=b.labels[order], features=b.features[order])
    totals, grads, loss = run(options, same)
    new_totals, new_grads, new_loss = run(options, shuffle)
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins)


@every_configuration
@pytest.mark.parametrize("unit", [1e-6, 0.3, 1e4])
def test_margins_do_not_depend_on_the_unit_of_the_features(options, unit):
    _, _, loss = run(options, same)
    _, _, scaled = run(options, lambda b: b._replace(features=unit * b.features))
    torch.testing.assert_close(scaled.class_margins, loss.class_margins)
    torch.testing.assert_close(scaled.mean_spread, unit**2 * loss.mean_spread)
    torch.testing.assert_close(scaled.spread_ratio, loss.spread_ratio)


@pytest.mark.parametrize("name", ["default", "paper", "memory", "moments", "spread", "relative spread"])
def test_rotation_of_the_features_does_not_matter_in_l2(name):
    rotation, _ = torch.linalg.qr(
        torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    )
    totals, _, loss = run(CONFIGURATIONS[name], same)
    new_totals, _, new_loss = run(CONFIGURATIONS[name], lambda b: b._replace(features=b.features @ rotation))
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins)


@pytest.mark.parametrize("source", ["spread", "relative-spread"])
@pytest.mark.parametrize("name", ["default", "memory", "moments"])
def test_shift_of_the_features_moves_neither_spread_nor_representation_term(name, source):
    options = {**CONFIGURATIONS[name], "margin_source": source}
    totals, _, loss = run(options, same)
    new_totals, _, new_loss = run(options, lambda b: b._replace(features=b.features + 50.0))
    torch.testing.assert_close(new_totals, totals, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(new_loss.class_margins, loss.class_margins, rtol=1e-8, atol=1e-8)


@every_configuration
def test_shift_of_the_logits_of_a_sample_does_not_matter(options):
    shift = torch.linspace(-50, 50, 20, dtype=torch.float64).unsqueeze(1)
    totals, grads, _ = run(options, same)
    new_totals, new_grads, _ = run(options, lambda b: b._replace(logits=b.logits + shift))
    torch.testing.assert_close(new_totals, totals)
    torch.testing.assert_close(new_grads, grads)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 24), st.integers(1, 12), st.sampled_from(list(CONFIGURATIONS)))
def test_any_batch_gives_mean_margins_and_a_non_negative_loss(seed, size, num_classes, name):
    options = CONFIGURATIONS[name]
    loss = MR2Loss(num_classes, **options)
    batch = random_batch(size, num_classes, D, seed)
    terms = loss.terms(*batch)
    assert loss.class_margins.mean().item() == pytest.approx(loss.mean_margin)
    assert terms.logit_margin >= 0
    assert terms.representation_margin >= 0
    # features move only along the differences to classmates: the sum over a class is zero without memory
    if options.get("positives") not in ("memory", "moments"):
        of_features = torch.autograd.grad(terms.total, batch.features)[0]
        for k in batch.labels.unique():
            assert of_features[batch.labels == k].sum(0).abs().max() < 1e-8
