"""The image towers of open_clip as backbones, where open_clip is installed (``make test-timm``)."""

import pytest
import torch

from classmargin.backbones import create_backbone

pytestmark = pytest.mark.slow


@pytest.fixture
def open_clip():
    from classmargin.backbones.library_families import load_open_clip

    try:
        return load_open_clip()
    except ImportError:
        pytest.skip("open_clip is not installed here; make test-timm runs this")


def test_image_tower_gives_the_embeddings_of_the_whole_model(open_clip, tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    whole = open_clip.create_model("RN50").eval()
    state = {name: value.contiguous() for name, value in whole.state_dict().items()}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    backbone = create_backbone(
        "open_clip:RN50", num_classes=4, checkpoint=tmp_path / "open_clip_model.safetensors"
    ).eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = whole.encode_image(images, normalize=True)
        output = backbone(images)
    torch.testing.assert_close(output.features, expected, rtol=1e-4, atol=1e-5)
    assert output.logits.shape == (2, 4)
    assert backbone.input_mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))


def test_vision_transformer_of_another_size(open_clip):
    backbone = create_backbone("open_clip:ViT-B-32", num_classes=4, in_channels=1, input_size=64)
    assert backbone(torch.randn(2, 1, 64, 64)).features.shape == (2, 512)


def test_model_of_another_name_is_answered_with_the_nearest(open_clip):
    with pytest.raises(ValueError, match=r"open_clip has no model 'ViT-B-33' .did you mean 'ViT-B-32'"):
        create_backbone("open_clip:ViT-B-33", num_classes=3)
    with pytest.raises(ValueError, match="nothing is downloaded"):
        create_backbone("open_clip:ViT-B-32", num_classes=3, pretrained=True)
