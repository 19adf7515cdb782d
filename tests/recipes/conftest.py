"""Short real runs on a few images of the embedded data, shared by the tests that only look at them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.data import load_data
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.sweep_space import parse_objective, parse_search
from classmargin.recipes.sweep_study import SweepPlan, study_name
from classmargin.recipes.train_run import train

SMALL = {
    "loop": {"epochs": 2, "batch_size": 64},
    "optimizer": {"learning_rate": 0.05},
    "machine": {"accelerator": "cpu", "report": False},
}


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory):
    """A file with 40 training and 10 test images of each class of the embedded data."""
    bundle = load_data("fashion-mnist-mini")
    file = tmp_path_factory.mktemp("data") / "tiny.npz"
    arrays = {"class_names": np.array(bundle.class_names)}
    for name, split, count in (("train", bundle.train, 40), ("test", bundle.test, 10)):
        rows = torch.cat([torch.nonzero(split.labels == label)[:count, 0] for label in range(10)])
        arrays[f"x_{name}"] = split.inputs[rows, 0].numpy()
        arrays[f"y_{name}"] = split.labels[rows].numpy()
    np.savez(file, **arrays)
    return file


@pytest.fixture(scope="session")
def small(tiny_images):
    """Return a function that makes the configuration of a short run."""

    def config(*overrides: str, method: str = "erm"):
        flags = {**SMALL, "data": {"name": str(tiny_images)}, "method": {"name": method}}
        return gather_config(flags=flags, overrides=overrides)

    return config


@pytest.fixture(autouse=True)
def one_thread(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("CLASSMARGIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, small):
    """A finished MR² run; nobody writes into it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(small(method="mr2"), folder, show=False)
    return folder


@pytest.fixture(scope="session")
def toy_features(tmp_path_factory):
    """A file of 8-d features of four classes, one of them hard."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("features") / "toy.npz"
    arrays = {}
    for part, count in (("train", 30), ("test", 10)):
        labels = np.repeat(np.arange(4), count)
        noise = np.array([0.4, 0.6, 0.8, 1.5])[labels, None] * rng.normal(size=(len(labels), 8))
        arrays[f"x_{part}"] = (np.eye(8)[labels] + noise).astype(np.float32)
        arrays[f"y_{part}"] = labels
    np.savez(file, **arrays)
    return file


@pytest.fixture
def make_plan(toy_features, tmp_path):
    def make(*search, method="mr2", objective="hard", trials=4, epochs=2, settings=(), **more):
        flags = {
            "data": {"name": str(toy_features), "validation": 0.3},
            "backbone": {"name": "linear"},
            "method": {"name": method},
            "loop": {"epochs": epochs, "batch_size": 40},
            "machine": {"accelerator": "cpu"},
        }
        config = gather_config(flags=flags, overrides=settings)
        parameters, wanted = parse_search(search, config), parse_objective(objective)
        given = {"storage": f"sqlite:///{tmp_path / 'out' / 'study.db'}", **more}
        name = given.pop("study", study_name(config, parameters, wanted))
        return SweepPlan(config, parameters, wanted, trials, name, **given)

    return make
