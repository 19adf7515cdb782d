"""Named settings: what each computes on the toy batch, the paper against loops, and the arguments they may set."""

import inspect

import mr2_naive as naive
import numpy as np
import pytest
import torch
from mr2_batches import gradients, history, random_batch, random_batches, toy_batch

from classmargin.mr2 import PRESETS, MR2Loss


def test_paper_on_the_toy_batch():
    loss = MR2Loss.preset("paper", 3)
    terms = loss.terms(*toy_batch())
    assert loss.class_margins.tolist() == pytest.approx([1.669243, 1.837240, 2.493518], abs=1e-6)
    assert loss.mean_spread.item() == pytest.approx(1 / 3)
    assert terms.logit_margin.item() == pytest.approx(0.730988, abs=1e-6)
    assert terms.representation_margin.item() == pytest.approx(1.684193, abs=1e-6)
    assert terms.total.item() == pytest.approx(1.573085, abs=1e-6)


def test_variants_of_the_paper_on_the_toy_batch():
    first = MR2Loss.preset("paper", 3, mean_margin=1.0).terms(*toy_batch())
    assert first.logit_margin.item() == pytest.approx(0.514279, abs=1e-6)
    without_slack = MR2Loss.preset("paper", 3, spread_slack=0.0).terms(*toy_batch())
    assert without_slack.representation_margin.item() == pytest.approx(2.009075, abs=1e-6)
    third = MR2Loss.preset("paper", 3, mean_margin=1.0, norm_order=3.0)
    third(toy_batch().logits.requires_grad_(), *toy_batch()[1:])
    assert third.class_margins.tolist() == pytest.approx([0.820125, 0.939195, 1.240680], abs=1e-6)
    prior = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    adjusted = MR2Loss.preset("paper", 3, log_prior=prior).terms(*toy_batch())
    assert adjusted.logit_margin.item() == pytest.approx(0.784328, abs=1e-6)


def test_paper_gradient_on_the_toy_batch():
    logits, labels, features = toy_batch()
    terms = MR2Loss.preset("paper", 3).terms(logits, labels, features.requires_grad_())
    (gradient,) = torch.autograd.grad(terms.representation_margin, features)
    assert gradient[0].tolist() == pytest.approx([0.0, -1.931110], abs=1e-6)


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
        spread = naive.mean_spread(statistics)
        pairs = naive.representation_margin_losses(batch.features, batch.labels, spread).mean()
        expected = (logit + 0.5 * pairs, logit, pairs)
        torch.testing.assert_close(tuple(terms), expected, rtol=1e-9, atol=1e-9)
        ours, theirs = gradients(terms.total, batch), gradients(expected[0], batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_presets_are_those_of_the_documentation():
    assert set(PRESETS) == {"recommended", "paper", "release"}


def test_the_constructor_is_the_recommended_preset():
    bare, preset = MR2Loss(5), MR2Loss.preset("recommended", 5)
    assert repr(bare) == repr(preset)
    plain = lambda loss: {name: value for name, value in vars(loss).items() if not name.startswith("_")}
    assert plain(bare) == plain(preset)
    for batch in random_batches(3, 24, 5, 3):
        assert bare(*batch).item() == preset(*batch).item()


def test_the_recommended_settings_are_the_printed_defaults():
    found = MR2Loss(5)
    assert (found.mean_margin, found.representation_weight, found.label_smoothing) == (1.0, 1.0, 0.1)
    assert (found.representation, found.margin_source, found.spread_slack) == ("moments", "uniform", 1.0)
    assert (found.statistics.ema_decay, found.statistics.norm_order) == (0.9, 2.0)


def test_the_constructor_has_at_most_sixteen_arguments():
    assert len(inspect.signature(MR2Loss).parameters) <= 16


@pytest.mark.parametrize("name", PRESETS)
def test_presets_set_only_constructor_arguments(name):
    assert set(PRESETS[name]) <= set(inspect.signature(MR2Loss).parameters)


def test_overrides_win_over_the_preset():
    loss = MR2Loss.preset("paper", 3, 2, mean_margin=1.5, representation="moments")
    assert loss.mean_margin == 1.5
    assert loss.statistics.estimator == "moments"
    assert loss.representation_weight == 0.5
    assert loss.statistics.feature_dim == 2


def test_presets_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        PRESETS["paper"]["mean_margin"] = 3.0


def test_numbers_of_numpy_are_numbers():
    loss = MR2Loss(np.int64(3), representation_weight=np.float32(0.5), accumulate=np.int32(2))
    assert (loss.num_classes, loss.representation_weight, loss.accumulate) == (3, 0.5, 2)
    assert type(loss.num_classes) is int


def test_equal_spreads_give_equal_margins():
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    rows = torch.cat([corners, corners + 5.0, corners - 3.0])
    loss = MR2Loss(3, margin_source="spread", mean_margin=2.0)
    loss(torch.zeros(12, 3, dtype=torch.float64, requires_grad=True), torch.arange(12) // 4, rows)
    assert loss.class_margins.tolist() == pytest.approx([2.0] * 3)


def test_wider_classes_get_larger_margins_from_the_spread():
    loss = MR2Loss(5, margin_source="spread")
    for batch in random_batches(20, 60, 5, 8):  # spreads grow with the class number
        loss(*batch)
    assert loss.class_margins.diff().min() > 0
    assert loss.class_margins.mean().item() == pytest.approx(1.0)


def test_uniform_margins_are_the_mean_margin():
    loss = MR2Loss(5, mean_margin=2.5)
    loss(*random_batch(24, 5, 3))
    assert loss.class_margins.tolist() == [2.5] * 5


@pytest.mark.parametrize("representation", ["moments", "pairs"])
def test_classes_never_seen_get_the_mean_margin_and_change_no_other(representation):
    batch = toy_batch()
    wide = torch.cat([batch.logits, torch.full((4, 4), -1e9, dtype=torch.float64)], 1)
    options = {"mean_margin": 2.0, "margin_source": "sqnorm", "label_smoothing": 0.0}
    few, many = (MR2Loss(k, representation=representation, **options) for k in (3, 7))
    terms, wide_terms = few.terms(*batch), many.terms(wide, batch.labels, batch.features)
    assert many.class_margins[3:].tolist() == pytest.approx([2.0] * 4)
    torch.testing.assert_close(many.class_margins[:3], few.class_margins)
    torch.testing.assert_close(tuple(wide_terms), tuple(terms))
