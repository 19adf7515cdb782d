"""MAE checkpoints: the release's format and the hub's, against the ViT of transformers as reference."""

import pytest
import torch

from classmargin.backbones import create_backbone
from classmargin.backbones.mae import convert_mae

SIZES = {"input_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2, "drop_path": 0.0}


def mae_shapes(width=16, depth=2, patches=4, patch=8):
    """Names and shapes of ``mae_pretrain_vit_base.pth``, at a small width."""
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + patches, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for block in range(depth):
        layers = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        layers |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
        for name, shape in layers.items():
            shapes[f"blocks.{block}.{name}.weight"] = shape
            shapes[f"blocks.{block}.{name}.bias"] = shape[:1]
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{block}.{name}.weight"] = shapes[f"blocks.{block}.{name}.bias"] = (width,)
    return shapes


@pytest.fixture(scope="module")
def release_state(make_state):
    return make_state(mae_shapes())


@pytest.fixture
def release_file(release_state, saved):
    return saved({"model": release_state}, "mae_pretrain_vit_base.pth")


@pytest.fixture(scope="module")
def hub_model(release_state):
    """A transformers ViT with the same weights; its file on disk has the names of the hub."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
        layer_norm_eps=1e-6,
    )
    return transformers.ViTModel(config, add_pooling_layer=False).eval()


def hub_state(model, tmp_path):
    from safetensors.torch import load_file

    model.save_pretrained(tmp_path)
    return {f"vit.{key}": value for key, value in load_file(tmp_path / "model.safetensors").items()}


def test_release_checkpoint_loads(release_file, release_state):
    backbone = create_backbone("mae-vit-b16", num_classes=3, checkpoint=release_file, **SIZES)
    assert torch.equal(backbone.encoder.blocks[1].attn.qkv.weight, release_state["blocks.1.attn.qkv.weight"])
    assert torch.equal(backbone.encoder.pos_embed, release_state["pos_embed"])


def test_head_on_pretrained_features_starts_near_zero(release_file):
    torch.manual_seed(0)
    fresh = create_backbone("mae-vit-b16", num_classes=500, checkpoint=release_file, **SIZES)
    # 8 000 draws of N(0, (2e-5)^2), cut off far outside.
    assert fresh.head.weight.std().item() == pytest.approx(2e-5, rel=0.03)
    assert fresh.head.bias.abs().max() == 0
    scratch = create_backbone("mae-vit-b16", num_classes=500, **SIZES)
    assert scratch.head.weight.std() > 1e-2


def test_averaged_features_equal_those_of_transformers_without_its_norm(hub_model, tmp_path, make_noise):
    from safetensors.torch import save_file

    save_file(hub_state(hub_model, tmp_path), tmp_path / "mae.safetensors")
    file = tmp_path / "mae.safetensors"
    encoder = create_backbone("mae-vit-b16", num_classes=3, checkpoint=file, **SIZES).encoder.eval()
    images = make_noise(2, 3, 16, 16)
    norm, hub_model.layernorm = hub_model.layernorm, torch.nn.Identity()
    try:
        with torch.no_grad():
            patches = hub_model(images).last_hidden_state[:, 1:].mean(dim=1)
            expected = torch.nn.functional.layer_norm(patches, (16,), eps=1e-6)
            torch.testing.assert_close(encoder(images), expected, atol=1e-5, rtol=1e-5)
    finally:
        hub_model.layernorm = norm


def test_decoder_and_mask_token_are_left_behind(release_state):
    extra = {
        "mask_token": torch.zeros(1),
        "decoder_embed.weight": torch.zeros(1),
        "decoder_blocks.0.x": torch.zeros(1),
    }
    assert convert_mae(release_state | extra).encoder.keys() == release_state.keys()


def test_fine_tuned_checkpoint_loads_norm_and_head(release_state, saved):
    tuned = {key: value for key, value in release_state.items() if not key.startswith("norm.")}
    tuned |= {"fc_norm.weight": torch.full((16,), 2.0), "fc_norm.bias": torch.ones(16)}
    tuned |= {"head.weight": torch.ones(3, 16), "head.bias": torch.zeros(3)}
    backbone = create_backbone("mae-vit-b16", num_classes=3, checkpoint=saved({"model": tuned}), **SIZES)
    assert torch.equal(backbone.encoder.fc_norm.weight, tuned["fc_norm.weight"])
    assert torch.equal(backbone.head.weight, tuned["head.weight"])


def test_positions_are_interpolated_for_larger_images(release_file, release_state):
    sizes = SIZES | {"input_size": (32, 24)}
    backbone = create_backbone("mae-vit-b16", num_classes=3, checkpoint=release_file, **sizes)
    positions = backbone.encoder.pos_embed
    assert positions.shape == (1, 1 + 4 * 3, 16)
    assert torch.equal(positions[:, :1], release_state["pos_embed"][:, :1])
    assert backbone(torch.zeros(1, 3, 32, 24)).logits.shape == (1, 3)


def test_wrong_depth_is_refused(release_file):
    with pytest.raises(ValueError, match=r"12 unexpected \(blocks.1."):
        create_backbone("mae-vit-b16", num_classes=3, checkpoint=release_file, **SIZES | {"depth": 1})


def test_image_must_be_whole_patches():
    with pytest.raises(ValueError, match="multiple of 8, got 20x20"):
        create_backbone("mae-vit-b16", num_classes=3, **SIZES | {"input_size": 20})


def test_dropped_paths_keep_the_mean_and_rest_in_evaluation():
    from classmargin.backbones.mae import drop_path

    torch.manual_seed(0)
    ones = torch.ones(20000, 1, 1)
    dropped = drop_path(ones, 0.25, training=True)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop_path(ones, 0.25, training=False), ones)


def test_fine_tuning_lowers_the_loss(release_file, make_noise):
    torch.manual_seed(0)
    backbone = create_backbone("mae-vit-b16", num_classes=3, checkpoint=release_file, **SIZES)
    images, labels = make_noise(12, 3, 16, 16), torch.arange(12) % 3
    groups = backbone.parameter_groups(0.05, layer_decay=0.65, decay_norms_and_biases=False)
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(backbone(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_own_weights_for_long_images_come_back_as_they_were(saved):
    # 2 x 8 patches are as many as 4 x 4: their positions must not be taken for a square of positions.
    options = {"num_classes": 3, "input_size": (32, 128), "width": 16, "depth": 1, "heads": 2}
    first = create_backbone("mae-vit-b16", **options)
    again = create_backbone("mae-vit-b16", checkpoint=saved(first.state_dict()), **options)
    for key, value in first.state_dict().items():
        assert torch.equal(again.state_dict()[key], value)
