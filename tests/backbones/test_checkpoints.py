import json
import pickle
import warnings
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from classmargin.backbones import create_backbone
from classmargin.backbones.checkpoints import (
    _TensorUnpickler,
    is_torchscript,
    read_state_dict,
    read_torchscript,
)

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def assert_same(read, expected):
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[key], expected[key]) for key in expected)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.embedding = nn.Parameter(torch.randn(3, 2).half())
        self.register_buffer("resolution", torch.tensor(224))

    def forward(self, images):
        return self.visual(images) * self.scale


@pytest.fixture
def archive(tmp_path):
    module = Small()
    # TorchScript is deprecated, but it is the format in which OpenAI published CLIP.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(str(tmp_path / "RN50.pt"))
    return tmp_path / "RN50.pt", module.state_dict()


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3, "arch": "resnet50"},
        {"model": STATE},
        {"model": {"state_dict": STATE}},
        {"state_dict": {f"module.{key}": value for key, value in STATE.items()}},
        {"state_dict": STATE, "queue": torch.zeros(3)},
    ],
    ids=["bare", "state_dict", "model", "nested", "data-parallel", "with other tensors"],
)
def test_wrappers_around_the_weights_are_taken_off(saved, content):
    assert_same(read_state_dict(saved(content)), STATE)


def test_safetensors_are_read(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    assert_same(read_state_dict(tmp_path / "model.safetensors"), STATE)


def test_folder_of_the_hub_is_read(tmp_path):
    save_file(STATE, tmp_path / "model.safetensors")
    assert_same(read_state_dict(tmp_path), STATE)


def test_sharded_folder_is_read(tmp_path):
    for number, key in enumerate(STATE):
        save_file({key: STATE[key]}, tmp_path / f"part{number}.safetensors")
    index = {"weight_map": {key: f"part{number}.safetensors" for number, key in enumerate(STATE)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(read_state_dict(tmp_path), STATE)


def test_torchscript_archive_is_read_without_running_it(archive):
    path, expected = archive
    assert is_torchscript(path)
    assert_same(read_torchscript(path), expected)
    assert_same(read_state_dict(path), expected)


def test_torch_file_is_not_taken_for_torchscript(saved):
    assert not is_torchscript(saved(STATE))


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (self.target, "w"))


def test_code_in_a_torch_file_is_not_run(saved, tmp_path):
    target = tmp_path / "ran"
    path = saved({"state_dict": STATE, "bomb": Bomb(str(target))})
    with pytest.raises(ValueError, match=r"cannot be read as plain weights .* save the weights alone as safetensors"):
        read_state_dict(path)
    assert not target.exists()


def test_code_in_a_torchscript_archive_is_not_run(archive, tmp_path):
    path, _ = archive
    target = tmp_path / "ran"
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as bad, zipfile.ZipFile(path) as good:
        for name in good.namelist():
            evil = name.endswith("/data.pkl")
            bad.writestr(name, pickle.dumps(Bomb(str(target)), protocol=2) if evil else good.read(name))
    with pytest.raises(ValueError, match="not a TorchScript archive of plain tensors: it asks for"):
        read_state_dict(tmp_path / "bad.pt")
    assert not target.exists()


def test_a_storage_in_place_of_a_list_is_not_made_into_objects(archive):
    """Each of its bytes would become a tensor of some hundred bytes."""
    path, _ = archive
    with zipfile.ZipFile(path) as content:
        root = next(name for name in content.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
        build = _TensorUnpickler(content, root).find_class("torch.jit._pickle", "build_intlist")
    storage = torch.zeros(8, dtype=torch.int8)
    assert build(storage) is storage


def test_a_storage_that_is_named_again_takes_no_memory_again(archive):
    path, _ = archive
    with zipfile.ZipFile(path) as content:
        root = next(name for name in content.namelist() if name.endswith("/data.pkl"))[: -len("data.pkl")]
        reader = _TensorUnpickler(content, root)
        rebuild = reader.find_class("torch._utils", "_rebuild_tensor_v2")
        storages = [reader.persistent_load(("storage", torch.float32, "0", "cpu", 1)) for _ in range(2)]
    tensors = [rebuild(storage, 0, (1,), (1,)) for storage in storages]
    assert len({tensor.data_ptr() for tensor in (*storages, *tensors)}) == 1


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_file_that_is_no_checkpoint_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"not a checkpoint at all")
    with pytest.raises(ValueError, match=name):
        read_state_dict(tmp_path / name)


@pytest.mark.parametrize("content", [{"epoch": 3}, [1, 2], {"state_dict": {"epoch": 3}}])
def test_file_without_weights_is_refused(saved, content):
    with pytest.raises(ValueError, match="holds no weights"):
        read_state_dict(saved(content))


def test_missing_file_and_empty_folder_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.pth does not exist"):
        read_state_dict(tmp_path / "nothing.pth")
    with pytest.raises(FileNotFoundError, match=r"holds none of model.safetensors"):
        read_state_dict(tmp_path)


def test_saved_backbone_loads_as_a_whole(tmp_path):
    first = create_backbone("small-cnn", num_classes=4)
    save_file(first.state_dict(), tmp_path / "run.safetensors")
    second = create_backbone("small-cnn", num_classes=4, checkpoint=tmp_path / "run.safetensors")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(first(images).logits, second(images).logits)


def test_head_for_other_classes_stays_fresh_and_the_encoder_loads(tmp_path):
    first = create_backbone("small-cnn", num_classes=4)
    save_file(first.state_dict(), tmp_path / "run.safetensors")
    second = create_backbone("small-cnn", num_classes=9, checkpoint=tmp_path / "run.safetensors")
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(first.encode(images), second.encode(images))
    assert second(images).logits.shape == (2, 9)


def test_wrong_checkpoint_lists_the_first_keys_and_counts_the_rest(tmp_path):
    save_file(create_backbone("resnet20", num_classes=4).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError) as caught:
        create_backbone("small-cnn", num_classes=4, checkpoint=tmp_path / "other.safetensors")
    message = str(caught.value)
    assert "other.safetensors does not fit the encoder of small-cnn" in message
    assert "9 missing (layers.0.weight, layers.1.weight, layers.1.bias, layers.4.weight, …)" in message
    assert "95 unexpected (" in message


def test_other_width_lists_both_shapes(tmp_path):
    save_file(create_backbone("resnet18", num_classes=4, width=4).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(
        ValueError, match=r"of another shape \(conv1.weight: file \(4, 3, 7, 7\), network \(8, 3, 7, 7\)"
    ):
        create_backbone("resnet18", num_classes=4, width=8, checkpoint=tmp_path / "w.safetensors")


def test_failed_loading_leaves_the_network_untouched(tmp_path):
    from classmargin.backbones.checkpoints import Weights, load_weights

    backbone = create_backbone("small-cnn", num_classes=4)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    state = {key: value + 1 for key, value in backbone.encoder.state_dict().items()}
    state.pop("layers.0.weight")
    with pytest.raises(ValueError, match="1 missing"):
        load_weights(backbone, Weights(state, {}), source="file")
    assert_same(backbone.state_dict(), before)
