import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from classmargin._types import Batch
from classmargin.backbones import Backbone, cached_features, create_backbone, extract_features, probe_head
from classmargin.backbones.feature_cache import cache_file, encoder_fingerprint


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return create_backbone("resnet20", num_classes=3)


@pytest.fixture
def batches():
    torch.manual_seed(1)
    return [
        Batch(torch.randn(n, 3, 8, 8), torch.arange(n) % 3, torch.arange(start, start + n))
        for start, n in ((10, 4), (20, 3))
    ]


class Once:
    """Batches that may be read a given number of times."""

    def __init__(self, batches, times=1):
        self.batches, self.times = batches, times

    def __iter__(self):
        assert self.times > 0, "the cache should have answered"
        self.times -= 1
        return iter(self.batches)


def test_features_are_those_of_the_encoder_at_rest(backbone, batches):
    features, labels, index = extract_features(backbone.train(), batches)
    assert backbone.training
    backbone.eval()
    with torch.no_grad():
        expected = torch.cat([backbone.encode(batch.inputs) for batch in batches])
    torch.testing.assert_close(features, expected)  # another memory layout, another rounding
    assert labels.tolist() == [0, 1, 2, 0, 0, 1, 2]
    assert index.tolist() == [10, 11, 12, 13, 20, 21, 22]


def test_extraction_leaves_the_encoder_as_it_was(backbone, batches):
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    extract_features(backbone.train(), batches)
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())


def test_features_can_be_trained_on(backbone, batches):
    features, labels, _ = extract_features(backbone, batches)
    nn.functional.cross_entropy(probe_head(backbone)(features).logits, labels).backward()
    assert backbone.head.weight.grad.abs().sum() > 0


def test_pairs_without_index_are_numbered(backbone):
    pairs = [(torch.randn(2, 3, 8, 8), torch.tensor([0, 1])), (torch.randn(1, 3, 8, 8), torch.tensor([2]))]
    assert extract_features(backbone, pairs).index.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("bad", "message"),
    [([], "at least one batch"), ([(torch.zeros(1),)], "a batch must be")],
    ids=["none", "short"],
)
def test_batches_must_hold_inputs_and_labels(backbone, bad, message):
    with pytest.raises(ValueError, match=message):
        extract_features(backbone, bad)


def test_features_that_were_just_computed_are_mapped_from_their_file_too(backbone, batches, tmp_path):
    """Several workers that begin together then share the memory of one copy."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    found = cached_features(backbone, batches, cache_dir=tmp_path, data_key="train")
    assert cache_file(backbone, cache_dir=tmp_path, data_key="train").name in maps.read_text()
    assert all(map(torch.equal, found, extract_features(backbone, batches)))


def test_training_mode_is_restored_after_an_error(backbone):
    with pytest.raises(RuntimeError):
        extract_features(backbone.train(), [(torch.zeros(2, 5), torch.zeros(2))])
    assert backbone.training


def test_second_call_reads_the_cache(backbone, batches, tmp_path):
    once = Once(batches)
    first = cached_features(backbone, once, cache_dir=tmp_path, data_key="cifar10 train 32")
    second = cached_features(backbone, once, cache_dir=tmp_path, data_key="cifar10 train 32")
    assert once.times == 0
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_other_data_weights_or_size_make_another_file(backbone, tmp_path):
    path = lambda key="a": cache_file(backbone, cache_dir=tmp_path, data_key=key)
    paths = [path(), path("b")]
    backbone.input_size = (64, 64)
    paths.append(path())
    with torch.no_grad():
        backbone.encoder.stem.weight[0, 0, 0, 0] += 1e-6
    paths.append(path())
    backbone.encoder.stem_norm.running_mean += 1.0
    paths.append(path())
    assert len(set(paths)) == len(paths)


def test_options_that_change_no_weight_change_the_fingerprint():
    sizes = {"num_classes": 2, "input_size": 16, "width": 8, "depth": 1}
    one, two = (create_backbone("mae-vit-b16", heads=heads, **sizes) for heads in (1, 2))
    two.load_state_dict(one.state_dict())
    assert encoder_fingerprint(one) != encoder_fingerprint(two)


def test_equal_networks_have_equal_fingerprints(backbone):
    twin = create_backbone("resnet20", num_classes=3)
    assert encoder_fingerprint(twin) != encoder_fingerprint(backbone)
    twin.load_state_dict(backbone.state_dict())
    assert encoder_fingerprint(twin) == encoder_fingerprint(backbone)


def test_head_does_not_change_the_fingerprint(backbone):
    before = encoder_fingerprint(backbone)
    with torch.no_grad():
        backbone.head.weight.add_(1.0)
    assert encoder_fingerprint(backbone) == before


def test_damaged_cache_is_computed_again_and_said_so(backbone, batches, tmp_path, caplog):
    first = cached_features(backbone, batches, cache_dir=tmp_path, data_key="a")
    file = cache_file(backbone, cache_dir=tmp_path, data_key="a")
    damaged = file.read_bytes()[:100]
    file.unlink()  # the first features are mapped from it
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        second = cached_features(backbone, batches, cache_dir=tmp_path, data_key="a")
    assert "damaged" in caplog.text
    assert torch.equal(first.features, second.features)


def test_interrupted_extraction_leaves_no_file(backbone, batches, tmp_path):
    def broken():
        yield batches[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_features(backbone, broken(), cache_dir=tmp_path, data_key="a")
    assert list(tmp_path.iterdir()) == []


def test_probe_trains_the_head_of_the_whole_network(backbone, batches):
    backbone.freeze_encoder()
    features, labels, _ = extract_features(backbone, batches)
    probe = probe_head(backbone)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(probe(features).logits, labels).backward()
        optimizer.step()
    backbone.eval()
    whole = torch.cat([backbone(batch.inputs).logits for batch in batches])
    torch.testing.assert_close(whole, probe(features).logits)


def test_extracting_leaves_every_module_in_its_mode():
    encoder = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(0.5))
    backbone = Backbone(encoder, feature_dim=4, num_classes=2).train()
    encoder[1].eval()
    extract_features(backbone, [(torch.randn(3, 2, 2), torch.tensor([0, 1, 0]))])
    assert [backbone.training, encoder.training, encoder[1].training, encoder[2].training] == [
        True,
        True,
        False,
        True,
    ]
