import pytest
import torch


def test_value_on_the_toy_batch_with_centres_at_zero(make, toy):
    loss = make("center").loss(toy, True)
    assert loss.parts["center"].item() == pytest.approx(2.5, abs=1e-9)
    assert loss.total.item() == pytest.approx(0.528418, abs=1e-6)


def test_mean_goes_with_mean_not_with_sum(make, toy):
    assert make("center").loss(toy, True).total.item() != pytest.approx(0.550918, abs=1e-3)


def test_centres_after_one_step_follow_the_published_rule(make, toy):
    method = make("center")
    method.on_step_end(toy)
    expected = torch.tensor([[1 / 3, 1 / 3], [0, 0.5], [0.75, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(method.centers, expected)


def test_centres_of_absent_classes_stay(make, toy):
    from dataclasses import replace

    method = make("center")
    method.centers.copy_(torch.tensor([[1, 1], [2, 2], [3, 3]]))
    method.on_step_end(replace(toy, features=toy.features[:2], labels=toy.labels[:2]))
    assert method.centers[2].tolist() == [3, 3]


def test_loss_alone_never_moves_centres(make, toy):
    method = make("center")
    method.loss(toy, True)
    assert torch.equal(method.centers, torch.zeros(3, 2, dtype=torch.float64))


def test_centres_are_not_trained_by_gradient(make):
    assert make("center").parameter_groups() == []
