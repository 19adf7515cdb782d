import subprocess
import sys

import pytest
import torch
from torch import nn

from classmargin.backbones import (
    backbone_info,
    create_backbone,
    list_backbones,
    register_backbone,
    register_family,
    registry,
)
from classmargin.backbones.registry import BackboneInfo


@pytest.fixture
def empty_place(monkeypatch):
    monkeypatch.setattr(registry, "_BACKBONES", dict(registry._BACKBONES))
    monkeypatch.setattr(registry, "_FAMILIES", {})


class Flat(nn.Flatten):
    feature_dim = 12


def test_all_networks_of_the_tables_are_listed():
    names = {info.name for info in list_backbones()}
    assert names >= {
        *("small-cnn", "resnet20", "resnet32", "resnet44", "resnet56", "preact-resnet20", "preact-resnet32"),
        *(
            "wide-resnet-16-4",
            "wide-resnet-22-10",
            "wide-resnet-28-10",
            "resnet18",
            "resnet50",
            "linear",
            "mlp",
        ),
        *("clip-resnet50", "clip-vit-b32", "mae-vit-b16", "moco-resnet50", "efficientnet-lite0", "minilm"),
    }


def test_every_record_says_what_a_reader_needs():
    for info in list_backbones():
        assert info.title
        assert info.kind in ("image", "features", "text")
        assert info.parameters is None or info.parameters > 0
        if info.bundled is not None:
            assert info.weights
            assert info.extra


def test_unknown_name_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"unknown backbone 'resnet-32' \(did you mean 'resnet32'"):
        create_backbone("resnet-32", num_classes=10)


def test_unknown_option_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"'wide-resnet-16-4' has no option 'dropuot' \(did you mean 'dropout'"):
        create_backbone("wide-resnet-16-4", num_classes=10, dropuot=0.3)


@pytest.mark.parametrize("bad", [{"num_classes": 0}, {"num_classes": 2, "in_channels": 0}])
def test_counts_must_be_positive(bad):
    with pytest.raises(ValueError, match="at least 1"):
        create_backbone("small-cnn", **bad)


def test_pretrained_without_weights_says_where_to_get_them_and_which_argument_takes_them():
    with pytest.raises(
        ValueError,
        match=r"nothing is downloaded. Get mae_pretrain_vit_base.pth .* pass .* checkpoint= .--set backbone.checkpoint=PATH",
    ):
        create_backbone("mae-vit-b16", num_classes=10, pretrained=True)


def test_pretrained_small_network_says_that_no_weights_are_known():
    with pytest.raises(ValueError, match="No pretrained weights are known"):
        create_backbone("small-cnn", num_classes=10, pretrained=True)


def test_missing_checkpoint_names_the_path_and_the_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.pth of 'moco-resnet50' does not exist. Get moco_v2_800ep"):
        create_backbone("moco-resnet50", num_classes=10, checkpoint=tmp_path / "none.pth")


def test_one_registration_makes_a_network_known(empty_place):
    @register_backbone("flat", title="Flat", kind="image", input_size=(2, 2))
    def build(*, in_channels, note="x"):
        return Flat()

    backbone = create_backbone("flat", num_classes=3, note="y")
    assert backbone(torch.zeros(2, 3, 2, 2)).logits.shape == (2, 3)
    assert backbone.name == "flat"
    assert backbone.input_size == (2, 2)
    assert "note" in backbone_info("flat").options


def test_a_name_is_registered_once(empty_place):
    with pytest.raises(ValueError, match="'small-cnn' is registered already"):
        register_backbone("small-cnn", title="Other", kind="image")(Flat)


def test_a_family_answers_for_every_name_after_its_prefix(empty_place):
    register_family("lib", lambda name: BackboneInfo(name=f"lib:{name}", title=name, kind="image", build=Flat))
    assert create_backbone("lib:anything", num_classes=3).name == "lib:anything"
    with pytest.raises(ValueError, match="unknown backbone 'other:x'"):
        create_backbone("other:x", num_classes=3)


def test_a_family_is_registered_once(empty_place):
    register_family("lib", lambda name: backbone_info("small-cnn"))
    with pytest.raises(ValueError, match="'lib' is registered already"):
        register_family("lib", lambda name: backbone_info("small-cnn"))


def test_one_number_means_square_images():
    backbone = create_backbone("mae-vit-b16", num_classes=2, input_size=32, width=8, depth=1, heads=1)
    assert backbone.input_size == (32, 32)


@pytest.mark.parametrize(("name", "size"), [("resnet20", (1, 2, 3)), ("linear", (4, 4))])
def test_input_size_must_fit_the_kind_of_network(name, size):
    with pytest.raises(ValueError, match="input_size of"):
        create_backbone(name, num_classes=2, input_size=size)


def test_usual_head_of_clip_is_cosine_and_can_be_chosen_otherwise():
    sizes = {"num_classes": 3, "input_size": 32, "width": 2, "depths": (1, 1, 1, 1), "output_dim": 4}
    assert type(create_backbone("clip-resnet50", **sizes).head).__name__ == "CosineHead"
    assert type(create_backbone("clip-resnet50", head="linear", **sizes).head).__name__ == "LinearHead"


def test_head_options_reach_the_head():
    backbone = create_backbone("small-cnn", num_classes=3, head="cosine", head_options={"scale": 30.0})
    assert backbone.head.scale.item() == pytest.approx(30.0)


def test_statistics_of_colour_images_are_not_declared_for_other_channels():
    assert create_backbone("resnet18", num_classes=3, width=4, in_channels=4).input_mean is None
    assert len(create_backbone("resnet18", num_classes=3, width=4, in_channels=1).input_mean) == 1


def test_network_from_scratch_takes_the_statistics_of_the_data():
    assert create_backbone("resnet20", num_classes=3).input_mean is None


def test_importing_the_networks_imports_no_optional_library():
    code = (
        "import sys, classmargin.backbones; "
        "heavy = {'transformers', 'tokenizers', 'efficientnet_lite_pytorch', 'sklearn', 'pandas', 'lightning'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "package"),
    [("clip-vit-b32", "transformers"), ("minilm", "transformers"), ("hf-image", "transformers")],
)
def test_missing_library_is_answered_with_the_extra(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"needs the package 'transformers'.*classmargin\[pretrained\]"):
        create_backbone(name, num_classes=3)
