from dataclasses import replace

import pytest
import torch

from classmargin.methods import Step, create, requirements_of
from classmargin.methods.method_registry import resolve_hyperparameters, settle_hyperparameters
from classmargin.methods.supcon import contrastive_losses

VIEWS = torch.tensor([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]], dtype=torch.float64)  # view 1, then view 2
LABELS = torch.tensor([0, 1, 0, 1])
SINGLE = torch.tensor([[1, 0], [0.6, 0.8], [0, 1]], dtype=torch.float64)
SINGLE_LABELS = torch.tensor([0, 0, 1])


def test_values_with_two_views():
    losses, has_positive = contrastive_losses(VIEWS, LABELS, 0.5)
    assert losses.tolist() == pytest.approx([0.294129, 1.939178, 0.948774, 0.362230], abs=1e-6)
    assert losses.mean().item() == pytest.approx(0.886078, abs=1e-6)
    assert has_positive.all()


def test_value_at_the_published_temperature():
    assert contrastive_losses(VIEWS, LABELS, 0.07)[0].mean().item() == pytest.approx(3.585490, abs=1e-6)


def test_an_anchor_without_positive_counts_zero():
    losses, has_positive = contrastive_losses(SINGLE, SINGLE_LABELS, 0.5)
    assert losses.tolist() == pytest.approx([0.263282, 0.913015, 0.0], abs=1e-6)
    assert has_positive.tolist() == [True, True, False]


@pytest.mark.parametrize(("anchors", "value"), [("all", 0.392099), ("valid", 0.588149)])
def test_mean_over_all_or_over_valid_anchors(make, anchors, value):
    method = with_identity_projection(make("supcon", (2, 1), mode="two-stage", anchors=anchors, temperature=0.5))
    step = Step(torch.zeros(3, 2), SINGLE, SINGLE_LABELS, torch.arange(3))
    assert method.loss(step, True).total.item() == pytest.approx(value, abs=1e-6)


def with_identity_projection(method):
    method.projection = torch.nn.Identity()
    return method


def test_base_temperature_rescales_the_loss(make):
    step = Step(torch.zeros(4, 2), VIEWS, LABELS, torch.arange(4), views=2)
    method = with_identity_projection(make("supcon", (2, 2), mode="two-stage", temperature=0.5, base_temperature=0.07))
    assert method.loss(step, True).total.item() == pytest.approx(0.886078 * 0.5 / 0.07, abs=1e-5)


def test_joint_mode_adds_cross_entropy(make):
    step = Step(torch.zeros(4, 2), VIEWS, LABELS, torch.arange(4), views=2)
    method = with_identity_projection(make("supcon", (2, 2), mode="joint", temperature=0.5, contrastive_weight=0.5))
    assert method.loss(step, True).total.item() == pytest.approx(0.693147 + 0.5 * 0.886078, abs=1e-6)


def test_projection_only_keeps_direction(make):
    step = Step(torch.zeros(4, 2), VIEWS, LABELS, torch.arange(4), views=2)
    method = with_identity_projection(make("supcon", (2, 2), mode="two-stage", temperature=0.5))
    scaled = replace(step, features=7 * VIEWS)
    assert method.loss(scaled, True).total.item() == pytest.approx(0.886078, abs=1e-6)


def test_second_stage_trains_the_head_alone_with_cross_entropy(make):
    method = make("supcon", (2, 2), preset="two-stage")
    features, classifier = method.stages(110)
    assert (features.epochs, features.train, features.views) == (100, "encoder", None)
    assert (classifier.epochs, classifier.train, classifier.views) == (10, "head", 1)
    step = Step(torch.zeros(2, 2), VIEWS[:2], LABELS[:2], torch.arange(2), stage=1)
    assert method.loss(step, True).total.item() == pytest.approx(0.693147, abs=1e-6)


def test_joint_mode_has_one_stage(make):
    assert [stage.train for stage in make("supcon", (2, 2), preset="joint").stages(7)] == ["all"]


def test_a_single_epoch_trains_both_parts(make_task):
    method = create("supcon", make_task((2, 2), epochs=1), preset="two-stage")
    assert [(stage.epochs, stage.train) for stage in method.stages(1)] == [(1, "all")]
    step = Step(torch.zeros(4, 2), VIEWS.float(), LABELS, torch.arange(4), views=2)
    assert set(method.loss(step, True).parts) == {"cross_entropy", "contrastive"}


def test_two_views_and_a_projection_head_are_the_default(make):
    assert requirements_of("supcon").views == 2
    shapes = [tuple(p.shape) for p in make("supcon").projection.parameters()]
    assert shapes == [(2, 2), (2,), (128, 2), (128,)]


def test_a_lone_sample_gives_zero_and_a_finite_gradient():
    alone = torch.tensor([[1.0, 0.0]], requires_grad=True)
    losses, _ = contrastive_losses(alone, torch.tensor([0]), 0.07)
    losses.sum().backward()
    assert losses.item() == 0
    assert torch.isfinite(alone.grad).all()


def test_gradient_of_the_contrastive_loss(naive_gradient):
    at = VIEWS.clone().requires_grad_()
    contrastive_losses(at, LABELS, 0.5)[0].mean().backward()
    expected = naive_gradient(lambda h: contrastive_losses(h, LABELS, 0.5)[0].mean(), VIEWS)
    torch.testing.assert_close(at.grad, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("epochs", "distinct", "mode"),
    [(10, True, "joint"), (199, True, "joint"), (200, True, "two-stage"), (300, False, "joint")],
)
def test_the_form_is_joint_for_short_trainings_and_where_views_do_not_differ(make_task, epochs, distinct, mode):
    options = settle_hyperparameters(
        "supcon", resolve_hyperparameters("supcon"), epochs=epochs, distinct_views=distinct
    )
    assert options["mode"] == mode
    assert create("supcon", make_task((2, 2), epochs=epochs, distinct_views=distinct)).mode == mode
    through_sam = settle_hyperparameters(
        "sam+supcon", resolve_hyperparameters("sam+supcon"), epochs=epochs, distinct_views=distinct
    )
    assert through_sam["mode"] == mode


def test_two_stages_on_identical_views_are_refused(make_task):
    with pytest.raises(ValueError, match="views are the same"):
        create("supcon", make_task((2, 2), distinct_views=False), preset="two-stage")


def test_the_joint_form_takes_one_view_where_two_would_be_the_same(make_task):
    method = create("supcon", make_task((2, 2), distinct_views=False))
    assert [(stage.name, stage.views) for stage in method.stages(10)] == [("joint", 1)]
