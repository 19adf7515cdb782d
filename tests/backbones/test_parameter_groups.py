import pytest
import torch

from classmargin.backbones import create_backbone


def ids(groups):
    return [id(parameter) for group in groups for parameter in group["params"]]


@pytest.fixture(scope="module")
def vit():
    return create_backbone("mae-vit-b16", num_classes=5, input_size=16, patch_size=8, width=8, depth=3, heads=2)


def group_of(backbone, groups, name):
    parameter = dict(backbone.named_parameters())[name]
    return next(group for group in groups if any(p is parameter for p in group["params"]))


@pytest.mark.parametrize("name", ["small-cnn", "resnet20"])
@pytest.mark.parametrize("decay_all", [True, False])
def test_every_parameter_is_in_exactly_one_group(name, decay_all):
    backbone = create_backbone(name, num_classes=5)
    groups = backbone.parameter_groups(0.1, decay_norms_and_biases=decay_all)
    assert sorted(ids(groups)) == sorted(id(p) for p in backbone.parameters())


def test_everything_is_decayed_by_default():
    groups = create_backbone("resnet20", num_classes=5).parameter_groups(5e-4)
    assert [(group["weight_decay"], group["lr_scale"]) for group in groups] == [(5e-4, 1.0)]


def test_norms_and_biases_can_be_spared():
    backbone = create_backbone("resnet20", num_classes=5)
    groups = backbone.parameter_groups(0.1, decay_norms_and_biases=False)
    spared = next(group for group in groups if group["weight_decay"] == 0.0)
    decayed = next(group for group in groups if group["weight_decay"] == 0.1)
    assert all(p.dim() == 1 for p in spared["params"])
    assert all(p.dim() >= 2 for p in decayed["params"])


def test_scale_of_a_cosine_head_is_never_decayed():
    backbone = create_backbone("small-cnn", num_classes=5, head="cosine")
    groups = backbone.parameter_groups(0.1)
    assert group_of(backbone, groups, "head.log_scale")["weight_decay"] == 0.0
    assert group_of(backbone, groups, "head.weight")["weight_decay"] == 0.1


def test_frozen_encoder_leaves_only_the_head():
    backbone = create_backbone("small-cnn", num_classes=5)
    backbone.freeze_encoder()
    assert sorted(ids(backbone.parameter_groups(0.0))) == sorted(id(p) for p in backbone.head.parameters())


def test_each_layer_learns_slower_than_the_one_above(vit):
    groups = vit.parameter_groups(0.05, layer_decay=0.65, decay_norms_and_biases=False)
    scale = lambda name: group_of(vit, groups, name)["lr_scale"]
    assert scale("head.weight") == 1.0
    assert scale("encoder.fc_norm.weight") == 1.0
    assert scale("encoder.blocks.2.attn.qkv.weight") == pytest.approx(0.65)
    assert scale("encoder.blocks.0.mlp.fc1.bias") == pytest.approx(0.65**3)
    assert scale("encoder.patch_embed.proj.weight") == pytest.approx(0.65**4)
    assert scale("encoder.pos_embed") == pytest.approx(0.65**4)


def test_positions_of_a_vision_transformer_are_not_decayed(vit):
    groups = vit.parameter_groups(0.05)
    assert group_of(vit, groups, "encoder.pos_embed")["weight_decay"] == 0.0
    assert group_of(vit, groups, "encoder.cls_token")["weight_decay"] == 0.0
    assert group_of(vit, groups, "encoder.blocks.0.attn.qkv.weight")["weight_decay"] == 0.05


def test_groups_are_taken_by_an_optimiser_and_keep_their_scale(vit):
    optimizer = torch.optim.AdamW(vit.parameter_groups(0.05, layer_decay=0.65), lr=1e-3)
    assert min(group["lr_scale"] for group in optimizer.param_groups) == pytest.approx(0.65**4)


def test_layer_decay_needs_layers():
    with pytest.raises(ValueError, match=r"layer_decay=0.65 needs an encoder with layers"):
        create_backbone("small-cnn", num_classes=5).parameter_groups(0.1, layer_decay=0.65)


@pytest.mark.parametrize(("option", "value"), [("weight_decay", -0.1), ("layer_decay", 0.0), ("layer_decay", 1.5)])
def test_values_out_of_range_are_refused(vit, option, value):
    with pytest.raises(ValueError, match=option):
        vit.parameter_groups(**{"weight_decay": 0.1, option: value})


def test_means_of_a_gaussian_head_learn_twice_as_fast():
    backbone = create_backbone("mlp", num_classes=3, input_size=4, hidden=(5,), head="gaussian")
    scales = {id(p): group["lr_scale"] for group in backbone.parameter_groups(0.1) for p in group["params"]}
    assert scales[id(backbone.head.means)] == 2.0
    assert {scales[id(p)] for p in backbone.encoder.parameters()} == {1.0}
