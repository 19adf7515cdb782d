import math

import pytest
import torch
from torch import nn

from classmargin.backbones import Backbone
from classmargin.backbones.heads import CosineHead, GaussianHead, LinearHead, create_head

HEADS = ("linear", "cosine", "gaussian")


def naive_gaussian(features, means):
    rows = []
    for feature in features.double().tolist():
        rows.append([-0.5 * sum((a - b) ** 2 for a, b in zip(feature, mean)) for mean in means.double().tolist()])
    return torch.tensor(rows, dtype=torch.float64)


def naive_cosine(features, weight, scale):
    rows = []
    for feature in features.double().tolist():
        row = []
        for direction in weight.double().tolist():
            dot = sum(a * b for a, b in zip(feature, direction))
            lengths = math.sqrt(sum(a * a for a in feature)) * math.sqrt(sum(b * b for b in direction))
            row.append(scale * dot / lengths)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def test_linear_head_is_an_affine_map():
    head = LinearHead(2, 3)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    head.bias.data = torch.tensor([0.0, 1.0, -1.0])
    assert head(torch.tensor([[2.0, 3.0]])).tolist() == [[2.0, 4.0, 4.0]]


def test_gaussian_logits_of_the_toy_batch_are_minus_half_squared_distances():
    head = GaussianHead(2, 3)
    head.means.data = torch.tensor([[1.0, 1.0], [0.0, 2.0], [3.0, 1.0]])
    logits = head(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [1.0, 2.0]]))
    expected = [[-0.5, -2.5, -2.5], [-1.0, 0.0, -5.0], [-2.0, -5.0, 0.0], [-0.5, -0.5, -2.5]]
    torch.testing.assert_close(logits, torch.tensor(expected), atol=1e-6, rtol=0)


def test_gaussian_logits_equal_a_naive_loop():
    torch.manual_seed(0)
    features, head = torch.randn(5, 7), GaussianHead(7, 4)
    torch.testing.assert_close(head(features).double(), naive_gaussian(features, head.means), atol=1e-5, rtol=1e-5)


def test_gaussian_logits_stay_exact_for_features_far_from_the_origin():
    torch.manual_seed(0)
    head = GaussianHead(64, 10)
    head.means.data += 1000.0
    features = head.means.detach()[:5] + 0.1 * torch.randn(5, 64)
    error = head(features).double() - naive_gaussian(features, head.means)
    assert error.abs().max() < 1e-3
    assert torch.equal(head(features).argmax(1), torch.arange(5))


def test_cosine_logits_equal_a_naive_loop():
    torch.manual_seed(0)
    features, head = torch.randn(5, 7), CosineHead(7, 4, scale=30.0)
    torch.testing.assert_close(head(features).double(), naive_cosine(features, head.weight, 30.0), atol=1e-5, rtol=0)


def test_cosine_logits_ignore_the_length_of_features_and_weights():
    torch.manual_seed(0)
    features, head = torch.randn(5, 7), CosineHead(7, 4)
    before = head(features)
    head.weight.data *= 7.0
    torch.testing.assert_close(head(features * 100.0), before)


def test_scale_is_learned_unless_one_is_given():
    assert isinstance(CosineHead(3, 2).log_scale, torch.nn.Parameter)
    assert not isinstance(CosineHead(3, 2, scale=1.0).log_scale, torch.nn.Parameter)
    assert isinstance(CosineHead(3, 2, scale=100.0, learnable_scale=True).log_scale, torch.nn.Parameter)
    assert CosineHead(3, 2, scale=30.0).scale.item() == pytest.approx(30.0)


def test_fixed_scale_is_saved_with_the_head():
    head = CosineHead(3, 2, scale=5.0)
    other = CosineHead(3, 2, scale=1.0)
    other.load_state_dict(head.state_dict())
    assert other.scale.item() == pytest.approx(5.0)


def test_learned_scale_receives_a_gradient():
    head = CosineHead(3, 2)
    head(torch.randn(4, 3)).square().sum().backward()
    assert head.log_scale.grad is not None
    assert head.log_scale.grad.abs() > 0


@pytest.mark.parametrize("kind", HEADS)
def test_gradients_equal_central_differences(kind):
    torch.manual_seed(0)
    head = create_head(kind, 3, 4).double()
    features = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in head.named_parameters()]

    def logits(inputs, *parameters):
        return torch.func.functional_call(head, dict(zip(names, parameters)), (inputs,))

    assert torch.autograd.gradcheck(logits, (features, *head.parameters()))


@pytest.mark.parametrize("kind", HEADS)
def test_zero_features_give_finite_logits_and_gradients(kind):
    head = create_head(kind, 3, 4)
    features = torch.zeros(2, 3, requires_grad=True)
    head(features).logsumexp(1).sum().backward()
    assert torch.isfinite(features.grad).all()
    assert features.grad.abs().max() < 1e6


@pytest.mark.parametrize("kind", ["cosine", "gaussian"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_scored_in_float32(kind, dtype):
    torch.manual_seed(0)
    head = create_head(kind, 8, 4)
    features = torch.randn(5, 8).to(dtype)
    logits = head(features)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, head(features.float()))


@pytest.mark.parametrize("kind", ["cosine", "gaussian"])
def test_autocast_does_not_reach_the_logits(kind):
    torch.manual_seed(0)
    head, features = create_head(kind, 8, 4), torch.randn(5, 8) * 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = head(features)
    assert torch.equal(inside, head(features))


@pytest.mark.parametrize("kind", HEADS)
def test_the_classifier_has_one_trainable_row_for_each_class(kind):
    rows = Backbone(nn.Identity(), feature_dim=8, num_classes=4, head=kind).classifier_weight
    assert rows.shape == (4, 8)
    assert rows.requires_grad


def test_unknown_head_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        create_head("cosin", 3, 2)


def test_unknown_option_is_answered_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"cosine head has no option 'scal' .did you mean 'scale'"):
        create_head("cosine", 3, 2, scal=1.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan])
def test_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="scale"):
        create_head("cosine", 3, 2, scale=scale)


@pytest.mark.parametrize("sizes", [(0, 2), (3, 0)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        create_head("linear", *sizes)
