import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from classmargin.backbones import create_backbone

transformers = pytest.importorskip("transformers")


@pytest.fixture
def vit_folder(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
    )
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.4] * 3}))
    return tmp_path, model


def test_image_folder_becomes_a_backbone_with_its_statistics(vit_folder):
    folder, model = vit_folder
    backbone = create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(images).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(backbone.encode(images), expected)
    assert backbone.input_mean == (0.5, 0.5, 0.5)
    assert backbone.input_std == (0.4, 0.4, 0.4)


def test_grey_images_are_seen_as_grey_colour_images(vit_folder):
    folder, model = vit_folder
    backbone = create_backbone("hf-image", num_classes=3, in_channels=1, input_size=16, checkpoint=folder).eval()
    images = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        expected = model(images.expand(-1, 3, -1, -1)).last_hidden_state.mean(dim=1)
        torch.testing.assert_close(backbone.encode(images), expected, atol=1e-5, rtol=1e-5)


def test_pooled_maps_of_a_convolutional_model_are_flattened(tmp_path):
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    backbone = create_backbone("hf-image", num_classes=3, input_size=32, checkpoint=tmp_path)
    assert backbone(torch.randn(2, 3, 32, 32)).features.shape == (2, 8)
    assert backbone.input_mean is None


def test_folder_with_weights_missing_is_refused(vit_folder):
    folder, _ = vit_folder
    weights = load_file(folder / "model.safetensors")
    weights.pop("layernorm.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weights \(layernorm.weight\)"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)


def test_folder_must_be_given():
    with pytest.raises(ValueError, match="needs checkpoint="):
        create_backbone("hf-image", num_classes=3)


def test_folder_must_hold_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"must be a folder with config.json"):
        create_backbone("hf-image", num_classes=3, checkpoint=tmp_path)


def test_folder_with_pickled_weights_only_is_refused(vit_folder):
    folder, model = vit_folder
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)


def test_code_that_a_folder_brings_along_is_neither_run_nor_asked_about(vit_folder, monkeypatch):
    folder, _ = vit_folder
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "mine.py").write_text(f"open({str(folder / 'proof')!r}, 'w').close()\nclass Mine: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether code may run"))
    with pytest.raises(ValueError, match="cannot be read"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)
    assert not (folder / "proof").exists()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"model_type": 5}', '{"model_type": "vit", "hidden_size": "x"}', "[" * 10_000]
)
def test_settings_that_no_model_has_end_in_words(vit_folder, content):
    folder, _ = vit_folder
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"cannot be read|lacks"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"image_mean": "abc"}', '{"image_mean": 5}', "[" * 10_000])
def test_statistics_that_are_none_end_in_words(vit_folder, content):
    folder, _ = vit_folder
    (folder / "preprocessor_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"preprocessor_config\.json cannot be read"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_folders_in_half_precision_train_in_float32(vit_folder, dtype):
    folder, model = vit_folder
    model.to(dtype).save_pretrained(folder)
    backbone = create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}
    assert backbone(torch.randn(2, 3, 16, 16)).logits.dtype == torch.float32


def test_statistics_that_the_folder_does_not_use_are_not_used(vit_folder):
    folder, _ = vit_folder
    settings = {"do_normalize": False, "image_mean": [0.5] * 3, "image_std": [0.4] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    backbone = create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=folder)
    assert (backbone.input_mean, backbone.input_std) == ((0.0,) * 3, (1.0,) * 3)


SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
}


def test_a_masked_autoencoder_is_refused_in_words(tmp_path):
    transformers.ViTMAEModel(transformers.ViTMAEConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"masked autoencoder.*mae-vit-b16"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=tmp_path)


def test_of_a_model_of_images_and_text_the_images_are_taken(tmp_path):
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    config = transformers.CLIPConfig(vision_config=SMALL, text_config=text, projection_dim=4)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(tmp_path)
    backbone = create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=tmp_path).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model.vision_model(pixel_values=images).pooler_output
        torch.testing.assert_close(backbone.encode(images), expected)


def test_a_folder_of_a_text_model_is_refused_in_words(tmp_path):
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="makes no features of images"):
        create_backbone("hf-image", num_classes=3, input_size=16, checkpoint=tmp_path)
