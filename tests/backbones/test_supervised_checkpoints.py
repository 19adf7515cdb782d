"""ResNet checkpoints in the formats people publish: supervised, and MoCo v2."""

import pytest
import torch

from classmargin.backbones import create_backbone

WIDTH = 4


def resnet_shapes(expansion, depths, num_outputs):
    """Names and shapes of a published ResNet file, written down independently of the network."""
    shapes = {"conv1.weight": (WIDTH, 3, 7, 7)}

    def norm(name, size):
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (size,)
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", WIDTH)
    channels = WIDTH
    for stage, depth in enumerate(depths, start=1):
        width = WIDTH * 2 ** (stage - 1)
        for block in range(depth):
            prefix = f"layer{stage}.{block}"
            kernels = [(width, channels, 3), (width, width, 3)]
            if expansion == 4:
                kernels = [(width, channels, 1), (width, width, 3), (4 * width, width, 1)]
            for number, (out, into, size) in enumerate(kernels, start=1):
                shapes[f"{prefix}.conv{number}.weight"] = (out, into, size, size)
                norm(f"{prefix}.bn{number}", out)
            if block == 0 and (stage > 1 or channels != width * expansion):
                shapes[f"{prefix}.downsample.0.weight"] = (width * expansion, channels, 1, 1)
                norm(f"{prefix}.downsample.1", width * expansion)
            channels = width * expansion
    shapes["fc.weight"] = (num_outputs, channels)
    shapes["fc.bias"] = (num_outputs,)
    return shapes


@pytest.fixture(scope="module")
def resnet50_state(make_state):
    return make_state(resnet_shapes(4, (3, 4, 6, 3), 5))


def test_supervised_resnet50_loads_with_its_head(resnet50_state, saved):
    backbone = create_backbone("resnet50", num_classes=5, width=WIDTH, checkpoint=saved(resnet50_state))
    assert torch.equal(backbone.head.weight, resnet50_state["fc.weight"])
    assert torch.equal(backbone.encoder.layer3[5].bn3.running_var, resnet50_state["layer3.5.bn3.running_var"])


def test_supervised_resnet18_loads_for_other_classes(make_state, saved):
    state = make_state(resnet_shapes(1, (2, 2, 2, 2), 1000))
    backbone = create_backbone("resnet18", num_classes=5, width=WIDTH, checkpoint=saved(state))
    assert torch.equal(backbone.encoder.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])
    assert backbone.head.weight.shape == (5, 8 * WIDTH)


def test_supervised_weights_bring_their_input_statistics(resnet50_state, saved):
    backbone = create_backbone("resnet50", num_classes=5, width=WIDTH, checkpoint=saved(resnet50_state))
    assert backbone.input_mean == (0.485, 0.456, 0.406)
    assert backbone.input_std == (0.229, 0.224, 0.225)


@pytest.fixture
def moco_file(resnet50_state, saved):
    """The published layout: query and key encoder behind data-parallel prefixes, a queue, fc as projection head."""
    state = {}
    for key, value in resnet50_state.items():
        key = {"fc.weight": "fc.0.weight", "fc.bias": "fc.0.bias"}.get(key, key)
        state[f"module.encoder_q.{key}"] = value
        state[f"module.encoder_k.{key}"] = torch.zeros_like(value)
    state |= {"module.encoder_q.fc.2.weight": torch.zeros(8, 8), "module.queue": torch.zeros(8, 16)}
    state["module.queue_ptr"] = torch.zeros(1, dtype=torch.long)
    return saved({"epoch": 800, "arch": "resnet50", "state_dict": state}, "moco_v2_800ep_pretrain.pth.tar")


def test_moco_checkpoint_loads_the_query_encoder(moco_file, resnet50_state):
    backbone = create_backbone("moco-resnet50", num_classes=5, width=WIDTH, checkpoint=moco_file).eval()
    supervised = create_backbone("resnet50", num_classes=5, width=WIDTH).eval()
    supervised.encoder.load_state_dict({k: v for k, v in resnet50_state.items() if not k.startswith("fc.")})
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(backbone.encode(images), supervised.encode(images))


def test_moco_probe_trains_the_head_alone(moco_file):
    backbone = create_backbone("moco-resnet50", num_classes=5, width=WIDTH, checkpoint=moco_file)
    backbone.freeze_encoder()
    names = [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    assert names == ["head.weight", "head.bias"]


def test_supervised_file_is_refused_as_moco(resnet50_state, saved):
    with pytest.raises(ValueError, match=r"not a MoCo checkpoint: no keys 'module.encoder_q"):
        create_backbone("moco-resnet50", num_classes=5, width=WIDTH, checkpoint=saved(resnet50_state))
