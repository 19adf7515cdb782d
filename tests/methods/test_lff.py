from dataclasses import replace

import pytest
import torch
from torch import nn

from classmargin._types import ModelOutput
from classmargin.methods import TaskInfo, create
from classmargin.methods.lff import generalised_cross_entropy

BIASED = torch.tensor([[3, 0, 0], [0, 2, 0], [0, 0, 1], [0, 1, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0])


@pytest.fixture
def make_lff(fixed_network):
    def build(**hyperparameters):
        task = TaskInfo(3, 2, torch.tensor([2, 1, 1]), LABELS, new_model=lambda: fixed_network(BIASED))
        return create("lff", task, **hyperparameters).double()

    return build


def weights_of(method, toy, update_state=True):
    biased = nn.functional.cross_entropy(BIASED, LABELS, reduction="none")
    main = nn.functional.cross_entropy(toy.logits, LABELS, reduction="none")
    return method.sample_weights(toy, biased, main, update_state)


def test_generalised_cross_entropy_of_the_twin():
    losses = nn.functional.cross_entropy(BIASED, LABELS, reduction="none")
    assert losses.tolist() == pytest.approx([0.094923, 0.239545, 0.551445, 1.551445], abs=1e-6)
    assert generalised_cross_entropy(losses, 0.7).mean().item() == pytest.approx(0.429050, abs=1e-6)


def test_plain_formula(make_lff, toy):
    method = make_lff(preset="formula")
    assert weights_of(method, toy).tolist() == pytest.approx([0.188891, 0.370153, 0.764525, 0.585438], abs=1e-6)
    assert method.loss(toy, True).parts["weighted"].item() == pytest.approx(0.250223, abs=1e-6)


def test_first_sight_with_averages_and_class_normalisation(make_lff, toy):
    method = make_lff()
    loss = method.loss(toy, True)
    assert loss.parts["biased"].item() == pytest.approx(0.429050, abs=1e-6)
    assert loss.parts["weighted"].item() == pytest.approx(0.223933, abs=1e-6)
    assert weights_of(make_lff(), toy).tolist() == pytest.approx([0.141562, 0.5, 0.5, 0.5], abs=1e-6)


def test_released_form(make_lff, toy):
    loss = make_lff(preset="release").loss(toy, True)
    assert loss.parts["biased"].item() == pytest.approx(0.208240, abs=1e-6)
    assert loss.total.item() == pytest.approx(0.432173, abs=1e-6)


def test_second_update_mixes(make_lff, toy):
    method, one = make_lff(), torch.ones(4, dtype=torch.float64)
    method.sample_weights(toy, one, one, True)
    method.sample_weights(toy, 2 * one, 2 * one, True)
    assert method.averages.flatten().tolist() == pytest.approx([1.3] * 8)


def test_averages_belong_to_the_sample_index(make_lff, toy):
    method = make_lff()
    moved = replace(toy, index=torch.tensor([2, 0, 3, 1]))
    weights_of(method, moved)
    assert method.averages[[2, 0, 3, 1], 0].tolist() == pytest.approx(
        [0.094923, 0.239545, 0.551445, 1.551445], abs=1e-6
    )


def test_samples_not_seen_yet_count_as_zero_in_the_class_maximum(make_lff, toy):
    method = make_lff()
    only_first = replace(toy, logits=toy.logits[:1], labels=toy.labels[:1], index=toy.index[:1])
    one = torch.ones(1, dtype=torch.float64)
    assert method.sample_weights(only_first, one, one, True).tolist() == pytest.approx([0.5])


def test_gradients_of_both_networks_do_not_mix(make_lff, toy):
    method = make_lff(preset="formula")
    logits = toy.logits.clone().requires_grad_()
    method.loss(replace(toy, logits=logits), True).total.backward()
    main = nn.functional.cross_entropy(toy.logits.requires_grad_(), LABELS, reduction="none")
    fixed = torch.tensor([0.188891, 0.370153, 0.764525, 0.585438], dtype=torch.float64)
    expected = torch.autograd.grad((fixed * main).mean(), toy.logits)[0]
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-6)
    twin = BIASED.clone().requires_grad_()
    gce = generalised_cross_entropy(nn.functional.cross_entropy(twin, LABELS, reduction="none"), 0.7).mean()
    torch.testing.assert_close(method.twin.logits.grad, torch.autograd.grad(gce, twin)[0])


def test_twin_is_trained_but_never_predicts(make_lff, toy):
    method = make_lff()
    assert {id(p) for p in method.parameter_groups()[0]["params"]} == {id(p) for p in method.twin.parameters()}
    assert torch.equal(method.predict(ModelOutput(toy.features, toy.logits)), toy.logits)


def test_running_statistics_of_the_twin_stay_without_update(toy):
    class WithNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, inputs):
            return ModelOutput(inputs, self.norm(inputs))

    task = TaskInfo(3, 2, torch.tensor([2, 1, 1]), LABELS, new_model=WithNorm)
    method = create("lff", task).double()
    step = replace(toy, inputs=toy.logits)
    first = method.loss(step, False).total
    assert method.twin.norm.num_batches_tracked == 0
    assert method.loss(step, True).total == first
    assert method.twin.norm.num_batches_tracked == 1


def test_a_perfectly_fitted_class_gives_finite_weights(make_lff, toy):
    zeros = torch.zeros(4, dtype=torch.float64)
    assert torch.isfinite(make_lff().sample_weights(toy, zeros, zeros, True)).all()


def test_a_single_sample_keeps_its_shape(make_lff, toy):
    one = replace(toy, logits=toy.logits[:1], labels=toy.labels[:1], index=toy.index[:1], inputs=toy.inputs[:1])
    assert make_lff().loss(one, True).total.shape == ()


def test_task_without_new_model_is_refused(make):
    with pytest.raises(ValueError, match=r"task.new_model must make a network for the twin"):
        make("lff")
