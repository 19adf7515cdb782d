import copy

import pytest
import torch
from torch import nn

from classmargin._types import ModelOutput
from classmargin.backbones import Backbone, create_backbone


class NoisyEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs):
        return self.dropout(self.norm(self.linear(inputs)))


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return Backbone(NoisyEncoder(), feature_dim=6, num_classes=3)


def test_forward_returns_features_and_the_logits_of_the_head(backbone):
    backbone.eval()
    inputs = torch.randn(5, 4)
    output = backbone(inputs)
    assert isinstance(output, ModelOutput)
    assert torch.equal(output.features, backbone.encode(inputs))
    assert torch.equal(output.logits, backbone.head(output.features))


@pytest.mark.parametrize("kind", ["linear", "cosine", "gaussian"])
def test_classifier_weight_has_one_row_for_each_class(kind):
    backbone = Backbone(NoisyEncoder(), feature_dim=6, num_classes=3, head=kind)
    assert backbone.classifier_weight.shape == (3, 6)


def test_classifier_weight_of_a_foreign_head_is_its_weight(backbone):
    backbone.head = nn.Linear(6, 3)
    assert backbone.classifier_weight is backbone.head.weight


def test_classifier_weight_of_a_head_without_weight_is_refused(backbone):
    backbone.head = nn.Identity()
    with pytest.raises(TypeError, match="Identity has neither"):
        _ = backbone.classifier_weight


def test_frozen_encoder_stays_at_rest_while_the_head_trains(backbone):
    backbone.freeze_encoder()
    backbone.train()
    before = copy.deepcopy(backbone.encoder.state_dict())
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    head_before = backbone.head.weight.detach().clone()
    for _ in range(3):
        output = backbone(torch.randn(8, 4))
        assert not output.features.requires_grad
        output.logits.square().sum().backward()
        optimizer.step()
    assert backbone.head.training
    assert not backbone.encoder.training
    assert all(torch.equal(before[key], value) for key, value in backbone.encoder.state_dict().items())
    assert not torch.equal(head_before, backbone.head.weight)


def test_unfrozen_encoder_trains_again(backbone):
    backbone.freeze_encoder()
    backbone.unfreeze_encoder()
    assert backbone.encoder.training
    assert backbone(torch.randn(8, 4)).features.requires_grad


def test_normalized_features_have_length_one():
    backbone = Backbone(nn.Flatten(), feature_dim=8, num_classes=2, normalize_features=True)
    output = backbone(torch.randn(5, 2, 4))
    torch.testing.assert_close(output.features.norm(dim=1), torch.ones(5))
    assert torch.equal(output.logits, backbone.head(output.features))


def test_state_survives_saving_and_loading():
    first, second = (create_backbone("small-cnn", num_classes=4, in_channels=1) for _ in range(2))
    inputs = torch.randn(2, 1, 28, 28)
    assert not torch.equal(first(inputs).logits, second(inputs).logits)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(inputs).logits, second(inputs).logits)


@pytest.mark.parametrize("sizes", [{"feature_dim": 0, "num_classes": 2}, {"feature_dim": 2, "num_classes": 0}])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        Backbone(nn.Flatten(), **sizes)
