from dataclasses import replace

import pytest
import torch

from classmargin.methods import Step, TaskInfo, create


@pytest.fixture
def ten():
    """Ten samples, E = {2, 5}."""

    def build(**hyperparameters):
        labels = torch.tensor([0, 1] * 5)
        method = create("jtt", TaskInfo(2, 2, torch.tensor([5, 5]), labels, epochs=10), **hyperparameters)
        method.errors[[2, 5]] = True
        return method

    return build


@pytest.mark.parametrize(("up_weight", "size", "share"), [(3, 14, 6 / 14), (4, 16, 8 / 16)])
def test_multiset_of_the_second_training(ten, up_weight, size, share):
    # the released code with λ = 3 appends 3 copies: up_weight 4
    multiplicity = ten(up_weight=up_weight).sample_multiplicity(1)
    assert multiplicity.sum() == size
    assert multiplicity[[2, 5]].sum() / size == share


def test_first_training_sees_each_sample_once(ten):
    assert ten().sample_multiplicity(0) is None


def test_samples_outside_the_training_part_never_appear():
    labels = torch.tensor([0, -1, 1, -1])
    method = create("jtt", TaskInfo(2, 2, torch.tensor([1, 1]), labels))
    assert method.sample_multiplicity(1).tolist() == [1, 0, 1, 0]


def test_two_trainings_the_second_afresh(ten):
    first, second = ten(identification_share=0.3).stages(10)
    assert (first.epochs, first.fresh_model) == (3, False)
    assert (second.epochs, second.fresh_model) == (10, True)


class Context:
    def __init__(self, stage):
        self.stage = stage

    def training_pass(self):
        logits = torch.tensor([[1.0, 0.0]] * 10)  # predicts class 0: the odd samples are wrong
        for part in (slice(0, 6), slice(6, 10)):
            yield Step(logits[part], logits[part], torch.tensor([0, 1] * 5)[part], torch.arange(10)[part])


def test_errors_of_the_first_training_are_found_at_its_end(ten):
    method = ten()
    method.on_stage_end(Context(0))
    assert method.errors.nonzero().flatten().tolist() == [1, 3, 5, 7, 9]


def test_the_second_training_leaves_the_error_set_alone(ten):
    method = ten()
    method.on_stage_end(Context(1))
    assert method.errors.nonzero().flatten().tolist() == [2, 5]


def test_weights_instead_of_copies(toy):
    method = create("jtt", TaskInfo(3, 2, torch.tensor([2, 1, 1]), toy.labels), mode="weight", up_weight=3).double()
    method.errors[3] = True
    assert method.sample_multiplicity(1) is None
    assert method.loss(toy, True).total.item() == pytest.approx(0.520918, abs=1e-6)
    # (0.407606 + 0.407606 + 0.169846 + 3 · 1.098612) / 6
    second = replace(toy, stage=1)
    assert method.loss(second, True).total.item() == pytest.approx(0.713482, abs=1e-6)


def test_error_set_is_saved(ten):
    assert "errors" in ten().state_dict()
