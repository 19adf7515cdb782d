import pytest
import torch

from classmargin._types import ModelOutput


@pytest.mark.parametrize(("tau", "value"), [(1.0, 0.487323), (0.5, 0.460353), (0.0, 0.520918)])
def test_loss_form(make, toy, tau, value):
    method = make("logit-adjustment", (6, 3, 1), tau=tau)
    assert method.loss(toy, True).total.item() == pytest.approx(value, abs=1e-6)


def test_tau_one_is_balanced_softmax(make, toy):
    adjusted, balanced = make("logit-adjustment", (6, 3, 1)), make("balanced-softmax", (6, 3, 1))
    assert adjusted.loss(toy, True).total.item() == pytest.approx(balanced.loss(toy, True).total.item(), abs=1e-9)


def test_loss_form_predicts_with_raw_logits(make, toy):
    scores = make("logit-adjustment", (6, 3, 1)).predict(ModelOutput(toy.features, toy.logits))
    assert torch.equal(scores, toy.logits)


def test_post_hoc_form_trains_cross_entropy_and_shifts_predictions(make, toy):
    method = make("logit-adjustment", (6, 3, 1), preset="post-hoc")
    assert method.loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)
    scores = method.predict(ModelOutput(toy.features, toy.logits))
    assert scores.argmax(dim=1).tolist() == [0, 1, 2, 2]


def test_unknown_mode_names_the_choices(make):
    with pytest.raises(ValueError, match=r"mode must be one of loss, post-hoc; got 'posthoc'.*did you mean"):
        make("logit-adjustment", mode="posthoc")
