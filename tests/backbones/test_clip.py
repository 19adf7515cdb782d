"""CLIP from published formats, at tiny widths. Expected numbers were computed with open_clip 3.3.0 on the same weights."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from classmargin.backbones import create_backbone
from classmargin.backbones.clip_text import (
    ENSEMBLE,
    clip_activation,
    load_text_tower,
    load_tokenizer,
    text_to_transformers,
    vision_to_transformers,
)
from classmargin.backbones.registry import CLIP_MEAN, CLIP_STD

RESNET = {"input_size": 64, "depths": (1, 2, 1, 1), "width": 8, "output_dim": 6}
VIT = {"input_size": 16, "patch_size": 8, "width": 64, "depth": 2, "heads": 1, "output_dim": 6}
RESNET_FEATURES = [
    [3.2944, 1.39152, 1.84207, 1.40144, -0.3864, -0.56273],
    [3.28843, 1.413, 1.86436, 1.40542, -0.38117, -0.56062],
]
VIT_FEATURES = [
    [0.47675, 5.77679, -1.50061, -10.73004, 2.80487, 0.93679],
    [1.48078, 1.45782, 2.24842, -9.118, 1.95186, -0.14037],
]
TEXT_FEATURES = [
    [2.11252, -7.92186, 0.73161, -9.33244, 2.57678, -1.23175],
    [2.40181, -3.89131, -0.68449, -4.04812, -1.20166, 2.57536],
]
VOCABULARY = 100


def resnet_shapes():
    shapes = {}

    def conv(name, out, into, size, norm):
        shapes[f"{name}.weight"] = (out, into, size, size)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = (out,)
        shapes[f"{norm}.num_batches_tracked"] = ()

    for number, (out, into) in enumerate([(4, 3), (4, 4), (8, 4)], start=1):
        conv(f"conv{number}", out, into, 3, f"bn{number}")
    channels = 8
    for stage, depth in enumerate(RESNET["depths"], start=1):
        width = 8 * 2 ** (stage - 1)
        for block in range(depth):
            prefix = f"layer{stage}.{block}"
            conv(f"{prefix}.conv1", width, channels, 1, f"{prefix}.bn1")
            conv(f"{prefix}.conv2", width, width, 3, f"{prefix}.bn2")
            conv(f"{prefix}.conv3", 4 * width, width, 1, f"{prefix}.bn3")
            if block == 0:
                conv(f"{prefix}.downsample.0", 4 * width, channels, 1, f"{prefix}.downsample.1")
            channels = 4 * width
    shapes["attnpool.positional_embedding"] = (5, 256)
    for name, out in (("q_proj", 256), ("k_proj", 256), ("v_proj", 256), ("c_proj", 6)):
        shapes[f"attnpool.{name}.weight"], shapes[f"attnpool.{name}.bias"] = (out, 256), (out,)
    return shapes


def transformer_shapes(prefix):
    shapes = {}
    for block in range(2):
        name = f"{prefix}transformer.resblocks.{block}"
        shapes[f"{name}.attn.in_proj_weight"], shapes[f"{name}.attn.in_proj_bias"] = (192, 64), (192,)
        for layer, shape in {
            "attn.out_proj": (64, 64),
            "mlp.c_fc": (256, 64),
            "mlp.c_proj": (64, 256),
        }.items():
            shapes[f"{name}.{layer}.weight"], shapes[f"{name}.{layer}.bias"] = shape, shape[:1]
        for norm in ("ln_1", "ln_2"):
            shapes[f"{name}.{norm}.weight"] = shapes[f"{name}.{norm}.bias"] = (64,)
    return shapes


def clip_vit_shapes():
    shapes = transformer_shapes("visual.") | transformer_shapes("")
    shapes |= {
        "visual.class_embedding": (64,),
        "visual.positional_embedding": (5, 64),
        "visual.proj": (64, 6),
    }
    shapes |= {"visual.conv1.weight": (64, 3, 8, 8), "token_embedding.weight": (VOCABULARY, 64)}
    shapes |= {"positional_embedding": (12, 64), "text_projection": (64, 6), "logit_scale": ()}
    for norm in ("visual.ln_pre", "visual.ln_post", "ln_final"):
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (64,)
    return shapes


@pytest.fixture(scope="module")
def resnet_state(make_state):
    return {f"visual.{key}": value for key, value in make_state(resnet_shapes()).items()}


@pytest.fixture(scope="module")
def vit_state(make_state):
    return make_state(clip_vit_shapes())


@pytest.fixture
def tokenizer_folder(tmp_path):
    """A saved tokenizer of CLIP's kind: 256 bytes, the same at the end of a word, "cat" and "dog", two marks."""
    merges = ["c a", "ca t</w>", "d o", "do g</w>"]
    # Byte-level BPE gives each byte a printable character, printable bytes first.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [*map(chr, printable), *(chr(256 + k) for k in range(256 - len(printable)))]
    entries = [*symbols, *(symbol + "</w>" for symbol in symbols), *("".join(m.split()) for m in merges)]
    entries += ["<|startoftext|>", "<|endoftext|>"]
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({entry: k for k, entry in enumerate(entries)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def full_state(vit_state, make_noise):
    """A checkpoint whose vocabulary is the one of ``tokenizer_folder``: 512 bytes, 4 merges, 2 marks."""
    return vit_state | {"token_embedding.weight": make_noise(518, 64), "logit_scale": torch.tensor(4.0)}


def test_resnet_features_equal_those_of_open_clip(resnet_state, saved, make_noise):
    backbone = create_backbone("clip-resnet50", num_classes=3, checkpoint=saved(resnet_state), **RESNET).eval()
    with torch.no_grad():
        features = backbone.encoder(make_noise(2, 3, 64, 64, seed=7))
    torch.testing.assert_close(features, torch.tensor(RESNET_FEATURES), atol=1e-4, rtol=1e-4)


def test_vit_features_equal_those_of_open_clip(vit_state, saved, make_noise):
    backbone = create_backbone("clip-vit-b32", num_classes=3, checkpoint=saved(vit_state), **VIT).eval()
    with torch.no_grad():
        features = backbone.encoder(make_noise(2, 3, 16, 16, seed=7))
    torch.testing.assert_close(features, torch.tensor(VIT_FEATURES), atol=1e-4, rtol=1e-4)


def test_text_features_equal_those_of_open_clip(vit_state):
    tower = load_text_tower(text_to_transformers(vit_state))
    tokens = torch.tensor([[98, 5, 7, 99, 99, 99, 99, 99], [98, 5, 7, 8, 9, 10, 11, 99]])
    with torch.no_grad():
        features = tower(input_ids=tokens).text_embeds
    torch.testing.assert_close(features, torch.tensor(TEXT_FEATURES), atol=1e-4, rtol=1e-4)


def test_half_precision_checkpoint_trains_in_float32(resnet_state, saved):
    halves = {key: value.half() if value.is_floating_point() else value for key, value in resnet_state.items()}
    backbone = create_backbone("clip-resnet50", num_classes=3, checkpoint=saved(halves), **RESNET)
    assert all(parameter.dtype == torch.float32 for parameter in backbone.parameters())


class Archived(nn.Module):
    """Holds tensors under dotted names, as the module in OpenAI's TorchScript archive does."""

    def __init__(self, state):
        super().__init__()
        children = {}
        for key, value in state.items():
            first, _, rest = key.partition(".")
            if rest:
                children.setdefault(first, {})[rest] = value
            else:
                self.register_buffer(first, value)
        for name, part in children.items():
            self.add_module(name, Archived(part))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images


def test_openai_archive_loads_directly(resnet_state, tmp_path, make_noise):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; the published files are not going to change
        archive = torch.jit.script(Archived(resnet_state | {"input_resolution": torch.tensor(64)}))
        archive.save(str(tmp_path / "RN50.pt"))
    backbone = create_backbone("clip-resnet50", num_classes=3, checkpoint=tmp_path / "RN50.pt", **RESNET).eval()
    with torch.no_grad():
        features = backbone.encoder(make_noise(2, 3, 64, 64, seed=7))
    torch.testing.assert_close(features, torch.tensor(RESNET_FEATURES), atol=1e-4, rtol=1e-4)


def test_hub_folder_of_the_vit_equals_openai_names(vit_state, saved, tmp_path):
    import transformers

    towers = vision_to_transformers(vit_state) | text_to_transformers(vit_state)
    config = transformers.CLIPConfig(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,
            "image_size": 16,
            "patch_size": 8,
        },
        text_config={
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 1,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 12,
        },
        projection_dim=6,
    )
    model = transformers.CLIPModel(config)
    model.load_state_dict(towers | {"logit_scale": vit_state["logit_scale"]})
    model.save_pretrained(tmp_path / "hub")
    hub = create_backbone("clip-vit-b32", num_classes=3, checkpoint=tmp_path / "hub", **VIT)
    openai = create_backbone("clip-vit-b32", num_classes=3, checkpoint=saved(vit_state), **VIT)
    for key, value in openai.encoder.state_dict().items():
        assert torch.equal(hub.encoder.state_dict()[key], value)


def gelu_hub_folder(state, folder):
    """Write the weights as a hub folder of a network that was trained with GELU, and return its model."""
    import transformers

    towers = vision_to_transformers(state) | text_to_transformers(state)
    shared = {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "hidden_act": "gelu",
    }
    words, positions = (
        towers[f"text_model.embeddings.{name}_embedding.weight"].shape[0] for name in ("token", "position")
    )
    ends = {"bos_token_id": words - 2, "eos_token_id": words - 1, "pad_token_id": words - 1}
    config = transformers.CLIPConfig(
        vision_config={**shared, "image_size": 16, "patch_size": 8},
        text_config={**shared, **ends, "vocab_size": words, "max_position_embeddings": positions},
        projection_dim=6,
    )
    model = transformers.CLIPModel(config).eval()
    model.load_state_dict(towers | {"logit_scale": state["logit_scale"]})
    model.save_pretrained(folder)
    return model


def test_activation_is_that_of_the_hub_folder(full_state, tmp_path, tokenizer_folder, make_noise):
    model = gelu_hub_folder(full_state, tmp_path / "hub")
    options = {"class_names": ["cat", "dog"], "tokenizer": tokenizer_folder, "prompt_templates": ["{}"], **VIT}
    backbone = create_backbone("clip-vit-b32", num_classes=2, checkpoint=tmp_path / "hub", **options).eval()
    images = make_noise(2, 3, 16, 16, seed=7)
    tokens = load_tokenizer(tokenizer_folder)(["cat", "dog"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        output = model(input_ids=tokens, pixel_values=images)
        torch.testing.assert_close(backbone.encode(images), output.image_embeds, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(backbone.head.weight.detach(), output.text_embeds, atol=1e-5, rtol=1e-5)
    assert backbone.encoder_options["activation"] == "gelu"  # hence in the fingerprint of kept features


@pytest.mark.parametrize(
    ("weights", "settings", "content", "expected"),
    [
        ("open_clip_model.safetensors", "open_clip_config.json", {"model_cfg": {"embed_dim": 6}}, "gelu"),
        (
            "open_clip_model.safetensors",
            "open_clip_config.json",
            {"model_cfg": {"quick_gelu": True}},
            "quick_gelu",
        ),
        (
            "model.safetensors",
            "config.json",
            {"model_type": "clip_vision_model", "hidden_act": "gelu"},
            "gelu",
        ),
        ("model.safetensors", "config.json", {"vision_config": {"hidden_size": 64}}, "quick_gelu"),
        ("ViT-B-32.pt", "config.json", {"vision_config": {"hidden_act": "gelu"}}, "quick_gelu"),
        ("model.safetensors", "none.json", {}, "quick_gelu"),
    ],
)
def test_activation_is_named_by_the_settings_of_the_weights(tmp_path, weights, settings, content, expected):
    (tmp_path / weights).touch()
    (tmp_path / settings).write_text(json.dumps(content))
    assert clip_activation(None, tmp_path / weights, "vision") == expected
    assert clip_activation("gelu", tmp_path / weights, "vision") == "gelu"


@pytest.mark.parametrize("content", ["{", "[]", '{"vision_config": 3}', '{"vision_config": {"hidden_act": "relu"}}'])
def test_activations_that_no_clip_has_are_refused(tmp_path, content):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json cannot be read|activation must be one of"):
        clip_activation(None, tmp_path, "vision")


def test_clip_features_have_length_one_and_the_head_takes_the_scale(full_state, saved, make_noise):
    backbone = create_backbone("clip-vit-b32", num_classes=3, checkpoint=saved(full_state), **VIT)
    torch.testing.assert_close(backbone(make_noise(2, 3, 16, 16)).features.norm(dim=1), torch.ones(2))
    assert backbone.head.log_scale.item() == pytest.approx(4.0)


def test_given_scale_wins_over_the_checkpoint(full_state, saved):
    options = {"checkpoint": saved(full_state), "head_options": {"scale": 30.0}}
    backbone = create_backbone("clip-vit-b32", num_classes=3, **options, **VIT)
    assert backbone.head.scale.item() == pytest.approx(30.0)


def test_head_starts_from_class_name_prompts(full_state, saved, tokenizer_folder):
    templates = ("a {}.", "the {}!")
    backbone = create_backbone(
        "clip-vit-b32",
        num_classes=2,
        checkpoint=saved(full_state),
        class_names=["cat", "big_dog"],
        prompt_templates=templates,
        tokenizer=tokenizer_folder,
        **VIT,
    )
    tower = load_text_tower(text_to_transformers(full_state))
    tokenizer = load_tokenizer(tokenizer_folder)
    for row, name in zip(backbone.head.weight, ("cat", "big dog")):
        mean = torch.zeros(6)
        for template in templates:
            tokens = torch.tensor([tokenizer(template.format(name))["input_ids"]])
            embedding = tower(input_ids=tokens).text_embeds[0].detach()
            mean += embedding / embedding.norm() / 2
        torch.testing.assert_close(row.detach(), mean / mean.norm(), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(backbone.head.weight[0], backbone.head.weight[1])


def test_tokenizer_in_the_folder_of_the_checkpoint_is_found(full_state, tmp_path, tokenizer_folder):
    save_file({key: value.contiguous() for key, value in full_state.items()}, tmp_path / "model.safetensors")
    shutil.copytree(tokenizer_folder, tmp_path, dirs_exist_ok=True)
    options = {"class_names": ["cat", "dog"], "checkpoint": tmp_path}
    backbone = create_backbone("clip-vit-b32", num_classes=2, **options, **VIT)
    torch.testing.assert_close(backbone.head.weight.norm(dim=1), torch.ones(2))


def test_tokenizer_marks_start_and_end_and_pads_with_the_end(tokenizer_folder):
    tokens = load_tokenizer(tokenizer_folder)(["Cat dog", "cat"], padding=True, return_tensors="pt")["input_ids"]
    assert tokens.tolist() == [[516, 513, 515, 517], [516, 513, 517, 517]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_names": ["n01440764", "cat"]}, "must be words that a sentence can hold, got 'n01440764'"),
        ({"class_names": ["flower 1", "flower 2"]}, "must be words that a sentence can hold, got 'flower 1'"),
        ({"class_names": None, "head_start": "prompts"}, "head_start='prompts' needs class_names"),
        ({"class_names": ["cat"]}, "class_names must name all 2 classes, got 1"),
        ({"head": "linear"}, "class_names start a head of kind 'cosine'; this one is a LinearHead"),
        ({"tokenizer": None}, "class_names need tokenizer="),
        ({"checkpoint": None}, "class_names need the text tower"),
        ({"prompt_templates": ["a photo"]}, "prompt_templates must hold {}"),
    ],
)
def test_prompts_that_cannot_work_are_refused(full_state, saved, tokenizer_folder, tmp_path, change, message):
    options = {"checkpoint": saved(full_state), "class_names": ["cat", "dog"], "tokenizer": tokenizer_folder}
    with pytest.raises(ValueError, match=message):
        create_backbone("clip-vit-b32", num_classes=2, **options | change, **VIT)


def test_checkpoint_of_the_visual_tower_alone_has_no_prompts(resnet_state, saved, tokenizer_folder):
    options = {"checkpoint": saved(resnet_state), "class_names": ["cat", "dog"], "tokenizer": tokenizer_folder}
    with pytest.raises(ValueError, match="text tower of CLIP, which the checkpoint does not hold"):
        create_backbone("clip-resnet50", num_classes=2, **options, **RESNET)


def test_names_and_templates_may_come_from_files(full_state, saved, tokenizer_folder, tmp_path):
    (tmp_path / "names.txt").write_text("cat\n\nbig dog\n")
    (tmp_path / "templates.txt").write_text("a {}.\nthe {}!\n")
    options = {"checkpoint": saved(full_state), "tokenizer": tokenizer_folder, "num_classes": 2, **VIT}
    given = {"class_names": ["cat", "big dog"], "prompt_templates": ["a {}.", "the {}!"]}
    files = {"class_names": tmp_path / "names.txt", "prompt_templates": str(tmp_path / "templates.txt")}
    first, second = (create_backbone("clip-vit-b32", **options, **more) for more in (given, files))
    assert torch.equal(first.head.weight, second.head.weight)
    seven = {"class_names": given["class_names"], "prompt_templates": "ensemble", "head_start": "prompts"}
    third = create_backbone("clip-vit-b32", **options, **seven)
    fourth = create_backbone("clip-vit-b32", **options, **seven | {"prompt_templates": ENSEMBLE})
    assert len(ENSEMBLE) == 7
    assert torch.equal(third.head.weight, fourth.head.weight)
    assert not torch.allclose(third.head.weight, first.head.weight)


def test_network_says_where_its_head_starts(full_state, saved, tokenizer_folder, tmp_path):
    options = {"checkpoint": saved(full_state), "num_classes": 2, **VIT}
    random = create_backbone("clip-vit-b32", **options)
    prompted = create_backbone("clip-vit-b32", class_names=["cat", "dog"], tokenizer=tokenizer_folder, **options)
    save_file(prompted.state_dict(), tmp_path / "run.safetensors")
    trained = create_backbone("clip-vit-b32", **options | {"checkpoint": tmp_path / "run.safetensors"})
    assert [b.head_start for b in (random, prompted, trained)] == ["random", "prompts", "checkpoint"]


def test_trained_clip_network_keeps_its_head_when_class_names_are_given(full_state, saved, tmp_path):
    first = create_backbone("clip-vit-b32", num_classes=2, checkpoint=saved(full_state), **VIT)
    save_file(first.state_dict(), tmp_path / "run.safetensors")
    options = {"checkpoint": tmp_path / "run.safetensors", "class_names": ["cat", "dog"]}
    second = create_backbone("clip-vit-b32", num_classes=2, **options, **VIT)
    assert torch.equal(first.head.weight, second.head.weight)


def test_missing_tokenizer_is_named(full_state, saved, tmp_path):
    options = {"checkpoint": saved(full_state), "class_names": ["cat", "dog"], "tokenizer": tmp_path / "none"}
    with pytest.raises(FileNotFoundError, match=r"tokenizer .*none must be the folder"):
        create_backbone("clip-vit-b32", num_classes=2, **options, **VIT)


def test_text_tower_of_the_resnet_starts_its_head_too(resnet_state, full_state, saved, tokenizer_folder):
    text = {key: value for key, value in full_state.items() if not key.startswith("visual.")}
    options = {
        "checkpoint": saved(resnet_state | text),
        "class_names": ["cat", "dog"],
        "tokenizer": tokenizer_folder,
    }
    backbone = create_backbone("clip-resnet50", num_classes=2, **options, **RESNET)
    torch.testing.assert_close(backbone.head.weight.norm(dim=1), torch.ones(2))
    assert backbone.head.log_scale.item() == pytest.approx(4.0)


@pytest.mark.parametrize(("name", "sizes", "factor"), [("clip-resnet50", RESNET, 2), ("clip-vit-b32", VIT, 2)])
def test_positions_are_interpolated_for_larger_images(resnet_state, vit_state, saved, name, sizes, factor):
    state = resnet_state if name == "clip-resnet50" else vit_state
    larger = sizes | {"input_size": sizes["input_size"] * factor}
    backbone = create_backbone(name, num_classes=3, checkpoint=saved(state), **larger)
    images = torch.zeros(1, 3, larger["input_size"], larger["input_size"])
    assert backbone(images).logits.shape == (1, 3)


def test_grey_images_are_seen_as_grey_colour_images(resnet_state, saved):
    path = saved(resnet_state)
    grey = create_backbone("clip-resnet50", num_classes=3, in_channels=1, checkpoint=path, **RESNET).eval()
    colour = create_backbone("clip-resnet50", num_classes=3, checkpoint=path, **RESNET).eval()
    pixels = torch.rand(2, 1, 64, 64)
    normalized_grey = (pixels - grey.input_mean[0]) / grey.input_std[0]
    mean, std = torch.tensor(CLIP_MEAN).view(1, 3, 1, 1), torch.tensor(CLIP_STD).view(1, 3, 1, 1)
    torch.testing.assert_close(grey.encode(normalized_grey), colour.encode((pixels - mean) / std), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "sizes"), [("clip-resnet50", RESNET), ("clip-vit-b32", VIT)])
def test_other_channels_are_refused(name, sizes):
    with pytest.raises(ValueError, match=r"in_channels of .* must be 1 or 3, got 4"):
        create_backbone(name, num_classes=3, in_channels=4, **sizes)


def test_vit_needs_square_images():
    with pytest.raises(ValueError, match="must be square"):
        create_backbone("clip-vit-b32", num_classes=3, **VIT | {"input_size": (16, 32)})


def test_vit_layers_learn_slower_towards_the_input():
    backbone = create_backbone("clip-vit-b32", num_classes=3, **VIT)
    scales = {round(group["lr_scale"], 6) for group in backbone.parameter_groups(0.1, layer_decay=0.5)}
    assert scales == {1.0, 0.5, 0.25, 0.125}


def test_supervised_file_is_refused_as_clip(saved):
    with pytest.raises(ValueError, match=r"does not fit the encoder of clip-resnet50: \d+ missing \(conv1.weight"):
        create_backbone("clip-resnet50", num_classes=3, checkpoint=saved({"fc.weight": torch.zeros(2)}), **RESNET)
