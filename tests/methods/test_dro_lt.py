import pytest
import torch

from classmargin.methods import Step, create
from classmargin.methods.dro_lt import robust_centroid_losses

CENTROIDS = torch.tensor([[0, 0], [4, 0]], dtype=torch.float64)
FEATURES = torch.tensor([[4, 3], [1, 0], [0, 2]], dtype=torch.float64)
LABELS = torch.tensor([1, 0, 0])
RADII = torch.tensor([0.5, 1.0], dtype=torch.float64)


def by_class(losses, labels):
    return [losses[labels == c].mean().item() for c in (0, 1)]


def test_values_per_class():
    losses = robust_centroid_losses(FEATURES, LABELS, CENTROIDS, RADII)
    assert by_class(losses, LABELS) == pytest.approx([0.835098, 1.468324], abs=1e-6)


@pytest.mark.parametrize(("factor", "value"), [(1.0, 1.151711), (2.0, 1.579999), (0.0, 0.814155)])
def test_robust_part_of_the_second_phase(make, factor, value):
    method = phase_two(make, radius_factor=factor)
    step = Step(torch.zeros(3, 2), FEATURES, LABELS, torch.arange(3), stage=1)
    assert method.loss(step, True).parts["robust"].item() == pytest.approx(value, abs=1e-6)


def phase_two(make, **more):
    method = make("drl", (2, 1), **more)
    method.centroids.copy_(CENTROIDS)
    with torch.no_grad():
        method.radii.copy_(RADII)
    return method


def test_radii_follow_the_class_whatever_the_order_of_the_batch():
    # the original code indexes radii by position: 0.931084 on this unsorted batch
    order = torch.tensor([2, 0, 1])
    losses = robust_centroid_losses(FEATURES, LABELS, CENTROIDS, RADII)
    shuffled = robust_centroid_losses(FEATURES[order], LABELS[order], CENTROIDS, RADII)
    torch.testing.assert_close(shuffled, losses[order])
    assert abs(sum(by_class(losses, LABELS)) / 2 - 0.931084) > 0.1


def test_cross_entropy_of_the_second_phase_is_weighted_by_relative_count(make):
    method = phase_two(make)
    logits = torch.tensor([[0, 0], [2, 0], [0, 2]], dtype=torch.float64)
    step = Step(logits, FEATURES, LABELS, torch.arange(3), stage=1)
    # Weights 0.5, 1, 1 of losses ln 2, ln(1 + e^-2), ln(1 + e^2), divided by their sum.
    expected = (0.5 * 0.693147 + 0.126928 + 2.126928) / 2.5
    assert method.loss(step, True).parts["cross_entropy"].item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("stage", [0, 2])
def test_first_and_last_phase_are_plain_cross_entropy(make, stage):
    step = Step(torch.zeros(3, 2), FEATURES, LABELS, torch.arange(3), stage=stage)
    assert phase_two(make).loss(step, True).total.item() == pytest.approx(0.693147, abs=1e-6)


def test_negative_radii_count_as_zero(make):
    method = phase_two(make)
    with torch.no_grad():
        method.radii.fill_(-3.0)
    step = Step(torch.zeros(3, 2), FEATURES, LABELS, torch.arange(3), stage=1)
    assert method.loss(step, True).parts["robust"].item() == pytest.approx(0.814155, abs=1e-6)


def test_three_phases_share_the_budget(make):
    stages = make("drl").stages(300)
    assert [(s.name, s.epochs, s.train) for s in stages] == [
        ("cross-entropy", 200, "all"),
        ("features", 80, "encoder"),
        ("classifier", 20, "head"),
    ]
    assert [s.sampler for s in stages] == [None, "class-balanced", "class-balanced"]


def test_frozen_features_leave_out_the_phase_that_trains_them(make_task):
    method = create("drl", make_task((2, 1), frozen_features=lambda: iter(())))
    assert [(s.name, s.epochs, s.train) for s in method.stages(300)] == [
        ("cross-entropy", 280, "all"),
        ("classifier", 20, "head"),
    ]
    step = Step(torch.zeros(3, 2), FEATURES, LABELS, torch.arange(3), stage=1)
    assert set(method.loss(step, True).parts) == {"cross_entropy"}


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 10, 31])
def test_phases_add_up_and_are_never_empty(make, epochs):
    stages = make("drl").stages(epochs)
    assert sum(stage.epochs for stage in stages) == epochs
    assert min(stage.epochs for stage in stages) >= 1
    assert len(stages) == min(epochs, 3)


def test_centroids_are_means_of_the_training_pass(make):
    class Context:
        stage = 1

        def training_pass(self):
            yield Step(torch.zeros(2, 2), FEATURES[:2], LABELS[:2], torch.arange(2))
            yield Step(torch.zeros(1, 2), FEATURES[2:], LABELS[2:], torch.arange(1))

    method = make("drl", (2, 1))
    method.on_epoch_start(Context())
    assert method.centroids.tolist() == [[0.5, 1.0], [4.0, 3.0]]


def test_gradient_of_features_and_radii(naive_gradient):
    features, radii = FEATURES.clone().requires_grad_(), RADII.clone().requires_grad_()
    robust_centroid_losses(features, LABELS, CENTROIDS, radii).sum().backward()
    by_features = naive_gradient(lambda x: robust_centroid_losses(x, LABELS, CENTROIDS, RADII).sum(), FEATURES)
    by_radii = naive_gradient(lambda x: robust_centroid_losses(FEATURES, LABELS, CENTROIDS, x).sum(), RADII)
    torch.testing.assert_close(features.grad, by_features, rtol=0, atol=1e-8)
    torch.testing.assert_close(radii.grad, by_radii, rtol=0, atol=1e-8)


def test_a_sample_on_its_centroid_has_a_finite_gradient(make):
    method = phase_two(make)
    features = replace_row(FEATURES, 1, CENTROIDS[0]).requires_grad_()
    step = Step(torch.zeros(3, 2), features, LABELS, torch.arange(3), stage=1)
    method.loss(step, True).total.backward()
    assert torch.isfinite(features.grad).all()


def replace_row(rows, position, value):
    changed = rows.clone()
    changed[position] = value
    return changed


def test_shares_that_leave_no_second_phase_are_refused(make):
    with pytest.raises(ValueError, match="pretrain_share \\+ classifier_share must be < 1"):
        make("drl", pretrain_share=0.7, classifier_share=0.3)


@pytest.mark.parametrize("shares", [(0.0, 0.0), (0.1, 1 / 15), (2 / 3, 1 / 15), (0.04, 0.95), (0.95, 0.04)])
@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 15, 30])
def test_phases_are_told_by_their_position_so_the_first_ones_are_always_there(make, epochs, shares):
    stages = make("drl", pretrain_share=shares[0], classifier_share=shares[1]).stages(epochs)
    names = ["cross-entropy", "features", "classifier"]
    assert [stage.name for stage in stages] == names[: min(epochs, 3)]
    assert sum(stage.epochs for stage in stages) == epochs
    assert min(stage.epochs for stage in stages) >= 1
