"""The registry of remedies: what is tried, for whom, and what it lays over the baseline."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from classmargin.data import load_data
from classmargin.recipes.improve.remedies import (
    REMEDIES,
    find_remedies,
    lay,
    tuning_steps,
)
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.training_samples import fold_numbers


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 30)
    file = tmp_path_factory.mktemp("features") / "toy.npz"
    np.savez(file, inputs=rng.normal(size=(90, 5)).astype(np.float32), labels=labels)
    return gather_config(flags={"data": {"name": str(file)}, "backbone": {"name": "mlp"}}), load_data(str(file))


@pytest.fixture(scope="module")
def images():
    return gather_config(flags={"backbone": {"name": "small-cnn"}}), load_data("fashion-mnist-mini", fraction=0.1)


def test_every_remedy_says_what_it_changes_and_risks():
    assert all(remedy.changes and remedy.risk and remedy.cost >= 0 for remedy in REMEDIES.values())


def test_names_keep_the_order_of_the_ladder_and_unknown_ones_suggest_the_nearest():
    assert [one.name for one in find_remedies("offsets, mr2")] == ["mr2", "offsets"]
    assert "group-dro" not in {one.name for one in find_remedies("default")}
    assert len(find_remedies("all")) == len(REMEDIES)
    with pytest.raises(ValueError, match="did you mean 'mixup'"):
        find_remedies("mixupp")


@pytest.mark.parametrize("name", [name for name, one in REMEDIES.items() if one.kind == "settings"])
def test_settings_of_every_remedy_that_suits_build_a_configuration(name, features, images):
    for config, bundle in (features, images):
        remedy = REMEDIES[name]
        if not remedy.unfit(config, bundle):
            laid = lay(config, remedy.settings(config, bundle))
            assert laid != config
            assert laid.data.name == config.data.name


def test_pictures_are_pasted_into_pictures_alone(features, images):
    assert REMEDIES["cutmix"].unfit(*features) == "for images that a network is trained on"
    assert REMEDIES["cutmix"].unfit(*images) == ""
    assert REMEDIES["logit-adjustment"].unfit(*images) == "for unbalanced classes"
    assert REMEDIES["pretrained"].unfit(*images) == "no weights of small-cnn at hand"


def test_mixing_is_left_out_where_the_method_needs_one_class_per_sample(features):
    config, bundle = features
    group = lay(config, {"method": {"name": "group-dro"}})
    assert "needs one class per sample" in REMEDIES["mixup"].unfit(group, bundle)


def test_hyperparameters_of_another_method_do_not_carry_over(features):
    config = lay(features[0], {"method": {"name": "mr2", "representation_weight": 3.0}})
    assert lay(config, {"method": {"name": "erm", "label_smoothing": 0.1}}).method.options == {"label_smoothing": 0.1}
    assert lay(config, {"loop": {"epochs": 2}}).method.options == {"representation_weight": 3.0}


def test_tuning_varies_rate_then_decay_and_length(features):
    config = lay(features[0], {"optimizer": {"learning_rate": 0.3, "weight_decay": 0.01}, "loop": {"epochs": 4}})
    rates, others = tuning_steps(config)
    found = [tables["optimizer"]["learning_rate"] for _, tables in rates]
    assert found == pytest.approx([0.9, 0.1, 3.0])
    assert [tables for _, tables in others] == [
        {"optimizer": {"weight_decay": 0.001}},
        {"optimizer": {"weight_decay": 0.1}},
        {"loop": {"epochs": 8}},
    ]


def test_the_moving_average_reaches_over_a_share_of_the_steps(images):
    config, bundle = images
    steps = config.loop.epochs * len(bundle.train) / config.loop.batch_size
    decay = REMEDIES["ema"].settings(config, bundle)["loop"]["ema_decay"]
    assert decay == pytest.approx(1 - 20 / steps, abs=1e-4)


def test_folds_spread_every_class_and_cover_all_samples():
    labels = torch.tensor([0] * 9 + [1] * 6).numpy()
    folds = fold_numbers(labels, 3)
    assert [np.bincount(folds[labels == label]).tolist() for label in (0, 1)] == [[3, 3, 3], [2, 2, 2]]
