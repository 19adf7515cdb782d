"""Small features with one hard class, and one whole search over them that the tests look at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.recipes.improve.improving import improve

SETTINGS = {"loop": {"epochs": 2, "batch_size": 60}, "machine": {"accelerator": "cpu"}}
ASKED = {
    "remedies": "mr2,label-smoothing,relabel,drop-doubted,ensemble,distillation,offsets",
    "budget": "18 runs",
    "settings": SETTINGS,
    "engine": "inline",
    "show": False,
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def features(tmp_path_factory):
    """A file of 6-d features of four classes, the last ones hard."""
    rng = np.random.default_rng(0)
    arrays = {"class_names": np.array(["ant", "bee", "cat", "dog"])}
    for part, count in (("train", 60), ("test", 30)):
        labels = np.repeat(np.arange(4), count)
        noise = np.array([0.3, 0.5, 0.9, 1.2])[labels, None] * rng.normal(size=(len(labels), 6))
        arrays[f"x_{part}"] = (np.eye(6)[labels] + noise).astype(np.float32)
        arrays[f"y_{part}"] = labels
    file = tmp_path_factory.mktemp("features") / "toy.npz"
    np.savez(file, **arrays)
    return file


@pytest.fixture(scope="session")
def searched(features, tmp_path_factory):
    """The outcome of a search, and its folder; nobody writes into it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("searched") / "out"
    return improve(str(features), out=folder, **ASKED), folder


@pytest.fixture
def asked():
    """What the whole search was asked for."""
    return dict(ASKED)
