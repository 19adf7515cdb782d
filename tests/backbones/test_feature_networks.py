import pytest
import torch
from torch import nn

from classmargin.backbones import create_backbone


def test_linear_backbone_hands_its_inputs_on_as_features():
    backbone = create_backbone("linear", num_classes=3, input_size=8)
    inputs = torch.randn(4, 8)
    output = backbone(inputs)
    assert torch.equal(output.features, inputs)
    torch.testing.assert_close(output.logits, inputs @ backbone.head.weight.T + backbone.head.bias)


def test_mlp_applies_its_hidden_layers_in_order():
    backbone = create_backbone("mlp", num_classes=3, input_size=8, hidden=(6, 4))
    first, second = (layer for layer in backbone.encoder.layers if isinstance(layer, nn.Linear))
    inputs = torch.randn(5, 8)
    torch.testing.assert_close(backbone(inputs).features, second(first(inputs).relu()).relu())
    assert backbone.feature_dim == 4


def test_mlp_takes_one_width_as_a_number():
    assert create_backbone("mlp", num_classes=3, input_size=8, hidden=16).feature_dim == 16


def test_mlp_with_batch_norm_and_dropout_trains_every_parameter():
    backbone = create_backbone("mlp", num_classes=3, input_size=8, batch_norm=True, dropout=0.2)
    backbone(torch.randn(16, 8)).logits.square().sum().backward()
    kinds = {type(layer) for layer in backbone.encoder.layers}
    assert {nn.BatchNorm1d, nn.Dropout} <= kinds
    assert all(p.grad is not None for p in backbone.parameters())


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_number_of_features_must_be_given(name):
    with pytest.raises(ValueError, match=f"{name!r} needs input_size"):
        create_backbone(name, num_classes=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hidden": ()}, "hidden must name"), ({"hidden": (0,)}, "hidden"), ({"dropout": 1.0}, "dropout")],
)
def test_impossible_layers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        create_backbone("mlp", num_classes=3, input_size=8, **options)


def test_mlp_is_one_graph_for_the_compiler():
    backbone = create_backbone("mlp", num_classes=3, input_size=8)
    inputs = torch.randn(4, 8)
    compiled = torch.compile(backbone, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(inputs).logits, backbone(inputs).logits)
