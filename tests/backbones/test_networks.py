import pytest
import torch
from torch import nn

from classmargin.backbones import count_parameters, create_backbone, list_backbones
from classmargin.backbones.resnet import CifarResNet, PreActResNet, WideResNet

# What the papers print, in millions, with the number of classes; None: the encoder alone is counted.
PUBLISHED = {
    "resnet20": (0.27, 10),
    "resnet32": (0.46, 10),
    "resnet44": (0.66, 10),
    "resnet56": (0.85, 10),
    "wide-resnet-16-4": (2.7, 10),
    "wide-resnet-22-10": (26.8, 10),
    "wide-resnet-28-10": (36.5, 10),
    "resnet18": (11.7, 1000),
    "resnet50": (25.6, 1000),
    "moco-resnet50": (25.6, 1000),
    "mae-vit-b16": (86.6, 1000),
    "clip-resnet50": (38.3, None),
    "clip-vit-b32": (87.8, None),
    "efficientnet-lite0": (4.65, 1000),
}
IMAGE_NETWORKS = ("small-cnn", "resnet20", "preact-resnet20", "wide-resnet-16-4", "resnet18")


def on_meta(name, num_classes):
    with torch.device("meta"):
        return create_backbone(name, num_classes=num_classes, head="linear")


def digits(number):
    return len(str(number).replace(".", "").lstrip("0"))


@pytest.mark.parametrize("info", [i for i in list_backbones() if i.parameters], ids=lambda info: info.name)
def test_parameter_count_is_the_one_in_the_record(info):
    backbone = on_meta(info.name, info.parameters_for or 10)
    assert count_parameters(backbone if info.parameters_for else backbone.encoder) == info.parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_rounds_to_the_published_one(name):
    millions, num_classes = PUBLISHED[name]
    backbone = on_meta(name, num_classes or 10)
    count = count_parameters(backbone if num_classes else backbone.encoder)
    assert float(f"{count / 1e6:.{digits(millions)}g}") == pytest.approx(millions)


@pytest.mark.parametrize("depth", [20, 32])
def test_preact_resnet_has_the_convolutions_of_its_sibling_and_norms_before_them(depth):
    blocks = (depth - 2) // 6
    convolutions = 27 * 16 + 9 * sum(
        (first * width + (2 * blocks - 1) * width * width) for first, width in ((16, 16), (16, 32), (32, 64))
    )
    norms = 2 * sum(first + (2 * blocks - 1) * width for first, width in ((16, 16), (16, 32), (32, 64))) + 2 * 64
    assert count_parameters(on_meta(f"preact-resnet{depth}", 10)) == convolutions + norms + 650


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_output_has_the_declared_shape(name):
    backbone = create_backbone(name, num_classes=7).eval()
    output = backbone(torch.randn(2, 3, 32, 32))
    assert output.features.shape == (2, backbone.feature_dim)
    assert output.logits.shape == (2, 7)


@pytest.mark.parametrize("name", ["small-cnn", "resnet20", "preact-resnet20", "wide-resnet-16-4"])
def test_grey_images_of_28_pixels_are_taken(name):
    backbone = create_backbone(name, num_classes=7, in_channels=1).eval()
    assert backbone(torch.randn(2, 1, 28, 28)).logits.shape == (2, 7)


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_every_parameter_receives_a_gradient(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, num_classes=7)
    loss = nn.functional.cross_entropy(backbone(torch.randn(4, 3, 32, 32)).logits, torch.arange(4))
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in backbone.parameters())
    assert sum(bool(p.grad.abs().sum() > 0) for p in backbone.parameters()) == len(list(backbone.parameters()))


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_memory_format_changes_nothing_but_the_layout(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, num_classes=7).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = backbone(images).logits
    backbone.to(memory_format=torch.channels_last)
    actual = backbone(images.to(memory_format=torch.channels_last)).logits
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


SLOW_TO_TRACE = [pytest.param(name, marks=pytest.mark.slow) for name in ("preact-resnet20", "wide-resnet-16-4")]


@pytest.mark.parametrize("name", ["small-cnn", "resnet20", *SLOW_TO_TRACE])
def test_network_is_one_graph_for_the_compiler(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, num_classes=7).train()
    images = torch.randn(2, 3, 32, 32)
    compiled = torch.compile(backbone, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images).logits, backbone(images).logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet32", "preact-resnet20", "wide-resnet-16-4"])
def test_compiled_gradients_equal_eager_ones(name):
    torch.manual_seed(0)
    backbone = create_backbone(name, num_classes=7).train()
    images = torch.randn(4, 3, 32, 32)
    gradients = []
    for network in (backbone, torch.compile(backbone, fullgraph=True, backend="aot_eager")):
        backbone.zero_grad()
        network(images).logits.square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in backbone.parameters()])
    for eager, compiled in zip(*gradients):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-3)


def test_every_stage_of_a_cifar_resnet_halves_the_image_and_doubles_the_channels():
    encoder = create_backbone("resnet20", num_classes=7).encoder
    maps, shapes = torch.randn(1, 16, 32, 32), []
    for block in encoder.blocks:
        maps = block(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def test_padded_shortcut_keeps_every_second_pixel_and_pads_with_zeros():
    block = create_backbone("resnet20", num_classes=7).encoder.blocks[3]
    maps = torch.randn(2, 16, 6, 6)
    shortcut = block.downsample(maps)
    assert torch.equal(shortcut[:, 8:24], maps[:, :, ::2, ::2])
    assert shortcut[:, :8].abs().sum() == 0
    assert shortcut[:, 24:].abs().sum() == 0


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "preact-resnet20", "wide-resnet-16-4"])
def test_residual_block_with_silent_convolutions_is_its_shortcut(name):
    torch.manual_seed(0)
    encoder = create_backbone(name, num_classes=7).encoder.eval()
    block = encoder.layer1[1] if name == "resnet18" else encoder.blocks[1]
    nn.init.zeros_(block.conv2.weight)
    maps = torch.rand(2, block.conv1.in_channels, 8, 8)
    torch.testing.assert_close(block(maps), maps)


def test_resnet_with_cifar_stem_keeps_small_images_large():
    encoder = create_backbone("resnet18", num_classes=7, stem="cifar").encoder
    assert encoder.maxpool(encoder.conv1(torch.zeros(1, 3, 32, 32))).shape[2:] == (32, 32)
    with pytest.raises(ValueError, match="stem must be one of imagenet, cifar"):
        create_backbone("resnet18", num_classes=7, stem="small")


def test_dropout_of_a_wide_resnet_acts_in_training_only():
    torch.manual_seed(0)
    backbone = create_backbone("wide-resnet-16-4", num_classes=7, dropout=0.5).eval()
    images = torch.randn(1, 3, 16, 16)
    assert torch.equal(backbone(images).logits, backbone(images).logits)
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(backbone(images).logits, backbone(images).logits)
    with pytest.raises(ValueError, match="dropout must be"):
        create_backbone("wide-resnet-16-4", num_classes=7, dropout=1.0)


def test_small_cnn_treats_each_sample_by_itself():
    torch.manual_seed(0)
    backbone = create_backbone("small-cnn", num_classes=7, in_channels=1).train()
    images = torch.randn(6, 1, 28, 28)
    together = backbone(images).logits
    apart = torch.cat([backbone(part).logits for part in images.split(2)])
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=1e-6)


def test_small_cnn_learns_classes_that_differ_in_a_texture():
    torch.manual_seed(0)
    labels = torch.arange(96) % 3
    waves = torch.stack([torch.sin(torch.arange(28) * f).expand(28, 28) for f in (0.4, 1.1, 2.3)])
    images = waves[labels][:, None] + 0.5 * torch.randn(96, 1, 28, 28)
    backbone = create_backbone("small-cnn", num_classes=3, in_channels=1)
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1, momentum=0.9)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(backbone(images).logits, labels).backward()
        optimizer.step()
    accuracy = (backbone(images).logits.argmax(1) == labels).float().mean()
    assert accuracy > 0.9


@pytest.mark.parametrize("network", [CifarResNet, PreActResNet])
def test_impossible_depth_is_refused(network):
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 2"):
        network(21)


def test_impossible_depth_of_a_wide_resnet_is_refused():
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 4"):
        WideResNet(20, 4)
