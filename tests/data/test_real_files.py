"""Checks on real files, where somebody has them (CLASSMARGIN_DATA); everything else runs without."""

import os
from pathlib import Path

import pytest
import torch

from classmargin.data import load_data

ROOT = os.environ.get("CLASSMARGIN_DATA")


def need(name):
    if ROOT is None or not (Path(ROOT) / name).exists():
        pytest.skip(f"{name} is not in $CLASSMARGIN_DATA")
    return Path(ROOT)


def test_cifar100_has_the_channel_statistics_of_the_catalogue_and_the_published_long_tail():
    root = need("cifar100.npz")
    bundle = load_data("cifar100", root=root, validation=0.0)
    assert bundle.train.class_counts.tolist() == [500] * 100
    for channel in range(3):
        values = bundle.train.inputs[:, channel].double() / 255
        assert float(values.mean()) == pytest.approx(bundle.mean[channel], abs=1e-3)
        assert float(values.std()) == pytest.approx(bundle.std[channel], abs=1e-3)
    tail = load_data("cifar100", root=root, validation=0.0, imbalance=100.0)
    assert len(tail.train) == 10847


@pytest.mark.parametrize(
    ("name", "classes", "width"),
    [
        ("clinc150_minilm", 150, 384),
        ("banking77_minilm", 77, 384),
        ("oxford_pets_efflite0", 37, 1280),
    ],
)
def test_feature_files_are_found_by_their_bare_name(name, classes, width):
    bundle = load_data(name, root=need(f"{name}.npz"))
    assert bundle.kind == "features"
    assert bundle.num_classes == classes
    assert bundle.input_shape == (width,)
    assert bundle.train.inputs.dtype == torch.float32
