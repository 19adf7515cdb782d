"""The plug-in: the loss itself is tested with the package mr2."""

import pytest
import torch

from classmargin.methods import create, default_hyperparameters, method_info, requirements_of
from classmargin.mr2 import PRESETS, MR2Loss


def test_paper_value_on_the_toy_batch(make, toy):
    loss = make("mr2", preset="paper").loss(toy, True)
    assert loss.total.item() == pytest.approx(1.573085, abs=1e-6)
    assert loss.parts["logit_margin"].item() == pytest.approx(0.730988, abs=1e-6)
    assert loss.parts["representation_margin"].item() == pytest.approx(1.684193, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "hyperparameters", "value"),
    [
        ("mr2-logit", {}, 0.730988),
        ("mr2-logit", {"mean_margin": 1.0}, 0.514279),
        ("mr2-representation", {}, 0.520918 + 0.5 * 1.684193),
        ("mr2-zero-spread", {}, 0.520918 + 0.5 * 2.009075),
    ],
)
def test_rows_of_the_component_table(make, toy, name, hyperparameters, value):
    assert make(name, preset="paper", **hyperparameters).loss(toy, True).total.item() == pytest.approx(value, abs=2e-6)


def test_uniform_margin_divides_all_logits_alike(make, toy):
    expected = torch.nn.functional.cross_entropy(toy.logits / 2, toy.labels).item()
    assert make("mr2-uniform").loss(toy, True).total.item() == pytest.approx(expected, abs=1e-9)


def test_uniform_margin_of_one_is_cross_entropy(make, toy):
    assert make("mr2-uniform", mean_margin=1.0).loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_the_uniform_control_has_the_mean_margin_of_the_row_it_controls(make, toy, preset):
    controlled = make("mr2-logit", preset=preset).criterion.mean_margin
    expected = torch.nn.functional.cross_entropy(toy.logits / controlled, toy.labels).item()
    assert make("mr2-uniform", preset=preset).loss(toy, True).total.item() == pytest.approx(expected, abs=1e-9)


def test_prior_is_added_after_the_division_by_the_margin(make, toy):
    loss = make("mr2-la", (6, 3, 1), preset="paper").loss(toy, True)
    assert loss.parts["logit_margin"].item() == pytest.approx(0.784328, abs=1e-6)


def test_equal_counts_leave_the_prior_without_effect(make, toy):
    plain, adjusted = make("mr2", (5, 5, 5)), make("mr2-la", (5, 5, 5))
    assert adjusted.loss(toy, True).total.item() == pytest.approx(plain.loss(toy, True).total.item(), abs=1e-6)


def test_defaults_are_those_of_the_loss(make_task):
    ours = create("mr2", make_task()).criterion
    theirs = MR2Loss.preset("recommended", 3, 2)
    assert ours.extra_repr() == theirs.extra_repr()
    assert default_hyperparameters("mr2")["mean_margin"] == theirs.mean_margin


def test_every_preset_of_the_loss_is_one_of_the_method(make_task):
    assert dict(method_info("mr2").presets) == dict(PRESETS)
    for name in PRESETS:
        assert create("mr2", make_task(), preset=name).criterion.representation_weight >= 0


def test_a_preset_never_undoes_what_the_name_stands_for(make_task):
    for preset in PRESETS:
        assert create("mr2-logit", make_task(), preset=preset).criterion.representation_weight == 0
        assert create("mr2-zero-spread", make_task(), preset=preset).criterion.spread_slack == 0
        assert create("mr2-representation", make_task(), preset=preset).criterion.mean_margin == 1


def test_statistics_move_only_with_update(make, toy):
    method = make("mr2")
    method.loss(toy, False)
    assert not method.criterion.statistics.seen.any()
    method.loss(toy, True)
    assert method.criterion.statistics.seen.all()


def test_features_are_declared():
    assert requirements_of("mr2").features


def test_what_the_task_decides_is_no_hyperparameter(make):
    with pytest.raises(ValueError, match="method mr2 has no hyper-parameter 'feature_dim'"):
        make("mr2", feature_dim=3)
