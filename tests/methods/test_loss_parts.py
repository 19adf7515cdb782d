import pytest
import torch
from torch import nn

from classmargin.methods import Step
from classmargin.methods.loss_parts import (
    class_means,
    class_sums,
    frozen_running_statistics,
    training_class_means,
)


def test_class_sums_agree_with_a_loop():
    torch.manual_seed(0)
    values, labels = torch.randn(50, 3, dtype=torch.float64), torch.randint(0, 7, (50,))
    sums, counts = class_sums(values, labels, 8)
    for k in range(8):
        torch.testing.assert_close(sums[k], values[labels == k].sum(0))
        assert counts[k] == (labels == k).sum()


def test_absent_classes_have_mean_zero_and_are_masked():
    losses = torch.tensor([1.0, 3.0], requires_grad=True)
    means, present = class_means(losses, torch.tensor([2, 2]), 3)
    means.sum().backward()
    assert means.tolist() == [0, 0, 2]
    assert present.tolist() == [False, False, True]
    assert losses.grad.tolist() == [0.5, 0.5]


def test_an_empty_training_pass_is_refused():
    class Context:
        def training_pass(self):
            return iter(())

    with pytest.raises(ValueError, match="must yield at least one batch"):
        training_class_means(Context(), lambda step: step.logits, 3)


def test_training_means_agree_with_one_batch_of_everything():
    torch.manual_seed(0)
    features, labels = torch.randn(20, 4), torch.randint(0, 3, (20,))

    class Context:
        def training_pass(self):
            for part in torch.arange(20).split(6):
                yield Step(features[part], features[part], labels[part], part)

    means, present = training_class_means(Context(), lambda step: step.features, 4)
    for k in range(3):
        torch.testing.assert_close(means[k], features[labels == k].mean(0))
    assert present.tolist() == [True, True, True, False]


@pytest.mark.parametrize("training", [True, False])
def test_frozen_layers_compute_as_before_but_keep_their_statistics(training):
    torch.manual_seed(0)
    layer, inputs = nn.BatchNorm1d(3).train(training), torch.randn(8, 3) + 5
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with frozen_running_statistics(layer):
        inside = layer(inputs)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    torch.testing.assert_close(inside, layer(inputs))


def test_statistics_move_again_after_an_error():
    layer = nn.BatchNorm1d(3)
    with pytest.raises(RuntimeError), frozen_running_statistics(layer):
        raise RuntimeError
    assert layer.track_running_stats
