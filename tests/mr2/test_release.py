"""What only the authors' released code does: hand values, the naive history, classes never seen, what it refuses."""

import mr2_naive as naive
import pytest
import torch
import torch.nn.functional as F
from mr2_batches import gradients, history, random_batch, random_batches, same_state, state, toy_batch

from classmargin.mr2 import MR2Loss
from classmargin.mr2.release import ReleasedMR2Loss

CIFAR_VARIANT = {"spread_slack": 0.0, "ema_decay": 0.9}  # the release sets s̄ = 0 for CIFAR


def test_release_on_the_toy_batch():
    loss = MR2Loss.preset("release", 3)
    terms = loss.terms(*toy_batch())
    assert loss.class_margins.tolist() == pytest.approx([0.795453, 0.953900, 1.250647], abs=1e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 3)
    assert terms.logit_margin.item() == pytest.approx(0.513625, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(0.0519966, abs=1e-7)
    assert terms.total.item() == pytest.approx(0.518824, abs=1e-6)


def test_cifar_variant_on_the_toy_batch():
    terms = MR2Loss.preset("release", 3, **CIFAR_VARIANT).terms(*toy_batch())
    assert terms.logit_margin.item() == pytest.approx(0.513625, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(0.0532093, abs=1e-7)


def test_squared_norm_of_order_five_is_that_of_the_mean_plus_the_deviation():
    loss = MR2Loss.preset("release", 3)
    loss.terms(*toy_batch())
    assert loss.statistics.class_sqnorm[0].item() == pytest.approx(2.319508, abs=1e-6)


@pytest.mark.parametrize("variant", [{}, CIFAR_VARIANT], ids=["imagenet", "cifar"])
def test_release_equals_the_loop_over_many_batches(variant):
    loss = MR2Loss.preset("release", 6, **variant)
    batches = random_batches(4, 40, 6, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        statistics = naive.batch_statistics(history(batches[:step]), 6, 5.0, variant.get("ema_decay", 0.999))
        assert len(statistics) == 6
        margins = naive.class_margins({k: entry["release_sqnorm"] for k, entry in statistics.items()}, 6, 1.0)
        spread = 0.0 if variant else naive.mean_spread(statistics, "release_spread")
        logit = naive.logit_margin_losses(batch.logits, batch.labels, margins).mean()
        pairs = naive.release_representation_term(batch.features, batch.labels, spread, 6)
        expected = (logit + 0.1 * pairs, logit, pairs)
        torch.testing.assert_close(tuple(terms), expected, rtol=1e-9, atol=1e-9)
        ours, theirs = gradients(terms.total, batch), gradients(expected[0], batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_unseen_classes_count_in_both_averages_as_zero():
    loss = MR2Loss.preset("release", 5)
    logits, labels, features = toy_batch()
    loss.terms(torch.cat([logits, torch.zeros(4, 2, dtype=torch.float64)], 1), labels, features)
    inflated = [5 / 3 * margin for margin in (0.795453, 0.953900, 1.250647)]
    assert loss.class_margins[:3].tolist() == pytest.approx(inflated, abs=2e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 5)


def test_ignored_rows_count_nowhere():
    ours, expected = MR2Loss.preset("release", 5), MR2Loss.preset("release", 5)
    batch = random_batch(24, 5, 3)
    keep = torch.arange(24) % 4 > 0
    total = ours(batch.logits, batch.labels.masked_fill(~keep, -100), batch.features)
    torch.testing.assert_close(total, expected(batch.logits[keep], batch.labels[keep], batch.features[keep]))
    torch.testing.assert_close(ours.statistics.averages, expected.statistics.averages)


def test_saved_loaded_and_continued_equals_the_straight_run():
    batches = random_batches(4, 24, 5, 3)
    straight, first, second = (MR2Loss.preset("release", 5) for _ in range(3))
    for batch in batches:
        straight(*batch)
    for batch in batches[:2]:
        first(*batch)
    second.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        second(*batch)
    assert same_state(state(second), state(straight))


def test_probabilities_are_refused_before_anything_moves():
    loss, batch = MR2Loss.preset("release", 5), random_batch(24, 5, 3)
    loss(*batch)
    before = state(loss)
    with pytest.raises(ValueError, match="labels must be classes with the preset 'release', got probabilities"):
        loss(batch.logits, F.one_hot(batch.labels, 5).double(), batch.features)
    assert same_state(state(loss), before)


def test_the_released_form_is_built_by_name_only():
    assert isinstance(MR2Loss.build(5, representation="released"), ReleasedMR2Loss)
    with pytest.raises(ValueError, match="representation must be one of moments, pairs"):
        MR2Loss(5, representation="released")
