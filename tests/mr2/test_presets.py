"""Named sets of hyper-parameters: what each computes on the toy batch, and against loops over many batches."""

import inspect

import mr2_naive as naive
import pytest
import torch
from mr2_batches import gradients, history, random_batches, toy_batch

from classmargin.mr2 import PRESETS, MR2Loss

CIFAR_VARIANT = {"spread_slack": 0.0, "ema_decay": 0.9}  # the release sets s̄ = 0 for CIFAR


def test_paper_on_the_toy_batch():
    loss = MR2Loss.preset("paper", 3)
    terms = loss.terms(*toy_batch())
    assert loss.class_margins.tolist() == pytest.approx([1.669243, 1.837240, 2.493518], abs=1e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 3)
    assert terms.logit_margin.item() == pytest.approx(0.730988, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(1.684193, abs=1e-6)
    assert terms.total.item() == pytest.approx(1.573085, abs=1e-6)


def test_paper_with_mean_margin_one_on_the_toy_batch():
    terms = MR2Loss.preset("paper", 3, mean_margin=1.0).terms(*toy_batch())
    assert terms.logit_margin.item() == pytest.approx(0.514279, abs=1e-6)


def test_paper_of_order_three_on_the_toy_batch():
    loss = MR2Loss.preset("paper", 3, mean_margin=1.0, norm_order=3.0)
    loss(*toy_batch())
    assert loss.class_margins.tolist() == pytest.approx([0.820125, 0.939195, 1.240680], abs=1e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 3)


def test_paper_without_slack_on_the_toy_batch():
    terms = MR2Loss.preset("paper", 3, spread_slack=0.0).terms(*toy_batch())
    assert terms.representation_margin.item() == pytest.approx(2.009075, abs=1e-6)


def test_paper_gradient_on_the_toy_batch():
    logits, labels, features = toy_batch()
    features.requires_grad_()
    terms = MR2Loss.preset("paper", 3).terms(logits, labels, features)
    (gradient,) = torch.autograd.grad(terms.representation_margin, features)
    assert gradient[0].tolist() == pytest.approx([0.0, -1.931110], abs=1e-6)


def test_paper_with_log_prior_on_the_toy_batch():
    prior = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    terms = MR2Loss.preset("paper", 3, log_prior=prior).terms(*toy_batch())
    assert terms.logit_margin.item() == pytest.approx(0.784328, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(1.684193, abs=1e-6)


def test_release_on_the_toy_batch():
    loss = MR2Loss.preset("release", 3)
    terms = loss.terms(*toy_batch())
    assert loss.class_margins.tolist() == pytest.approx([0.795453, 0.953900, 1.250647], abs=1e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 3)
    assert terms.logit_margin.item() == pytest.approx(0.513625, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(0.0519966, abs=1e-7)
    assert terms.total.item() == pytest.approx(0.518824, abs=1e-6)


def test_cifar_variant_of_the_release_on_the_toy_batch():
    terms = MR2Loss.preset("release", 3, **CIFAR_VARIANT).terms(*toy_batch())
    assert terms.logit_margin.item() == pytest.approx(0.513625, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(0.0532093, abs=1e-7)
    assert terms.total.item() == pytest.approx(0.513625 + 0.1 * 0.0532093, abs=1e-6)


def test_release_keeps_unseen_classes_in_both_averages_as_zero():
    loss = MR2Loss.preset("release", 5)
    logits, labels, features = toy_batch()
    loss(torch.cat([logits, torch.zeros(4, 2, dtype=torch.float64)], 1), labels, features)
    inflated = [5 / 3 * margin for margin in (0.795453, 0.953900, 1.250647)]
    assert loss.class_margins[:3].tolist() == pytest.approx(inflated, abs=2e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 5)


@pytest.mark.parametrize(("size", "num_classes"), [(24, 5), (12, 30)])
def test_paper_equals_the_loop_over_many_batches(size, num_classes):
    loss = MR2Loss.preset("paper", num_classes)
    batches = random_batches(4, size, num_classes, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        statistics = naive.batch_statistics(history(batches[:step]), num_classes)
        sums = {k: entry["mean_sqnorm"] + entry["spread"] for k, entry in statistics.items()}
        margins = naive.class_margins(sums, num_classes, 2.0)
        logit = naive.logit_margin_losses(batch.logits, batch.labels, margins).mean()
        pairs = naive.representation_margin_losses(
            batch.features, batch.labels, naive.mean_spread(statistics)
        )
        torch.testing.assert_close(terms.logit_margin, logit, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(terms.representation_margin, pairs.mean(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(terms.total, logit + 0.5 * pairs.mean(), rtol=1e-9, atol=1e-9)
        expected = gradients(logit + 0.5 * pairs.mean(), batch)
        torch.testing.assert_close(gradients(terms.total, batch), expected, rtol=1e-8, atol=1e-9)


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
        torch.testing.assert_close(terms.logit_margin, logit, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(terms.representation_margin, pairs, rtol=1e-9, atol=1e-9)
        expected = gradients(logit + 0.1 * pairs, batch)
        torch.testing.assert_close(gradients(terms.total, batch), expected, rtol=1e-8, atol=1e-9)


def test_presets_are_those_of_the_documentation():
    assert set(PRESETS) == {"paper", "release", "plain", "recommended"}


def test_plain_is_the_bare_constructor():
    assert MR2Loss.preset("plain", 3).extra_repr() == MR2Loss(3).extra_repr()
    defaults = inspect.signature(MR2Loss).parameters
    assert all(defaults[name].default == value for name, value in PRESETS["plain"].items())


def test_every_preset_says_what_the_recommended_one_changes():
    """Methods start from the recommended settings: a preset that left one out would keep it."""
    changed = set(PRESETS["recommended"])
    assert all(changed <= set(preset) for preset in PRESETS.values())


def test_recommended_margins_are_uniform_in_the_first_steps_and_differ_after_the_warmup():
    loss = MR2Loss.preset("recommended", 5, warmup_steps=3)
    margins = []
    for batch in random_batches(5, 24, 5, 3):
        loss(*batch)
        margins.append(loss.class_margins)
    assert margins[2].tolist() == [1.0] * 5
    assert margins[4].std() > 0.01


def test_recommended_is_the_constructor_with_what_the_preset_says():
    preset, plain = MR2Loss.preset("recommended", 3), MR2Loss(3, **PRESETS["recommended"])
    assert repr(preset) == repr(plain)
    assert preset.statistics.estimator == "moments"
    assert preset.scale.temperature == "total-variance"


def test_overrides_win_over_the_preset():
    loss = MR2Loss.preset("paper", 3, 2, mean_margin=1.5, estimator="moments")
    assert loss.mean_margin == 1.5
    assert loss.statistics.estimator == "moments"
    assert loss.representation_weight == 0.5
    assert loss.statistics.feature_dim == 2


def test_presets_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        PRESETS["paper"]["mean_margin"] = 3.0
