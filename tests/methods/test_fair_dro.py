import pytest
import torch

from classmargin.methods import Step
from classmargin.methods.group_dro import chi_square_weights

LOSSES = torch.tensor([0.2, 0.5, 1.1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("radius", "expected", "value"),
    [(0.3, [0.057307, 0.264327, 0.678366], 0.889828), (0.5, [-0.023015, 0.244246, 0.778769], 0.974166)],
)
def test_worst_weights_and_their_value(radius, expected, value):
    weights = chi_square_weights(LOSSES, radius)
    assert weights.tolist() == pytest.approx(expected, abs=1e-6)
    assert (weights @ LOSSES).item() == pytest.approx(value, abs=1e-6)
    spread = LOSSES.std(unbiased=False)
    assert value == pytest.approx((LOSSES.mean() + (2 * radius) ** 0.5 * spread).item(), abs=1e-6)


def test_no_weights_on_the_ball_do_worse():
    radius, best = 0.3, chi_square_weights(LOSSES, 0.3) @ LOSSES
    directions = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions -= directions.mean(dim=1, keepdim=True)
    directions /= directions.norm(dim=1, keepdim=True)
    on_ball = 1 / 3 + (2 * radius / 3) ** 0.5 * directions
    assert (on_ball @ LOSSES).max() <= best + 1e-12


def test_equal_losses_give_uniform_weights():
    assert chi_square_weights(torch.full((3,), 0.7), 0.5).tolist() == pytest.approx([1 / 3] * 3)


def test_half_a_step_from_uniform(make):
    method = make("fair-dro", radius=0.3)
    method.move_weights(LOSSES, 0.5)
    assert method.weights.tolist() == pytest.approx([0.195320, 0.298830, 0.505850], abs=1e-6)


def test_value_on_the_toy_batch(make, toy):
    method = make("fair-dro", radius=0.3)
    method.move_weights(LOSSES, 1.0)
    assert method.loss(toy, True).total.item() == pytest.approx(0.266117, abs=1e-6)


def test_closed_form_may_leave_the_simplex(make):
    method = make("fair-dro", radius=0.5, preset="closed-form")
    method.move_weights(LOSSES, 1.0)
    assert method.weights.tolist() == pytest.approx([-0.023015, 0.244246, 0.778769], abs=1e-6)


def test_weights_are_clamped_and_renormalised_by_default(make):
    method = make("fair-dro", radius=0.5)
    method.move_weights(LOSSES, 1.0)
    assert method.weights.tolist() == pytest.approx([0, 0.238751, 0.761249], abs=1e-5)


def test_steps_shrink_from_one_to_zero(make):
    linear, cosine = make("fair-dro"), make("fair-dro", smoothing="cosine")
    assert [linear.step_size_at(t, 10) for t in (0, 5, 10)] == [1.0, 0.5, 0.0]
    assert [cosine.step_size_at(t, 10) for t in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])


class Context:
    epoch, epochs = 5, 10

    def __init__(self, toy):
        self.toy = toy

    def training_pass(self):
        for part in (slice(0, 3), slice(3, 4)):
            yield Step(self.toy.logits[part], self.toy.features[part], self.toy.labels[part], self.toy.index[part])


def test_epoch_end_uses_class_losses_of_the_whole_training_set(make, toy):
    method, by_hand = make("fair-dro", radius=0.3), make("fair-dro", radius=0.3)
    method.on_epoch_end(Context(toy))
    by_hand.move_weights(torch.tensor([0.753109, 0.407606, 0.169846]), 0.5)
    torch.testing.assert_close(method.weights, by_hand.weights, rtol=0, atol=1e-6)


def test_zero_one_losses_of_the_pass(make, toy):
    method = make("fair-dro", radius=0.3, loss_kind="zero-one")
    method.on_epoch_end(Context(toy))  # no errors (the tie goes to class 0): nothing to lean towards
    assert method.weights.tolist() == pytest.approx([1 / 3] * 3)


def test_a_class_without_training_samples_counts_as_average(make, toy):
    from dataclasses import replace

    method = make("fair-dro", radius=0.3)
    keep = replace(toy, logits=toy.logits[:2], labels=toy.labels[:2], features=toy.features[:2], index=toy.index[:2])

    class Short(Context):
        def training_pass(self):
            yield keep

    method.on_epoch_end(Short(toy))
    assert torch.isfinite(method.weights).all()
    assert method.weights.sum().item() == pytest.approx(1, abs=1e-6)
