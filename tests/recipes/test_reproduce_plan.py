"""From recipes to runs: published protocols, changes of the user, what is told before anything is trained."""

from __future__ import annotations

import pytest

from classmargin.methods import method_info
from classmargin.recipes.gpu_hours import estimate
from classmargin.recipes.recipe import SCALES, find_recipe, list_recipes
from classmargin.recipes.recipe_plan import Changes, missing_data, needs_weights, plan_recipe
from classmargin.recipes.run_options import gather_config

from .reproduce_tools import plan_runs

ALL = list_recipes()


FOLDERS = ("imagenet", "mnist", "stanford-cars", "oxford-pets", "flowers-102", "food-101", "fgvc-aircraft")


def _fill(folder):
    """Make a folder that is not empty."""
    folder.mkdir()
    (folder / "something").touch()


@pytest.fixture
def data_root(tmp_path, monkeypatch):
    """A folder in which every data set seems to be."""
    for name in ("cifar10.npz", "cifar100.npz"):
        (tmp_path / name).touch()
    for name in FOLDERS:
        _fill(tmp_path / name)
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "weights.pth"
    file.touch()
    return dict.fromkeys(("clip-resnet50", "clip-vit-b32", "mae-vit-b16", "moco-resnet50"), str(file))


def configs(recipe, scale, folder, changes=None, seeds=1):
    plan = plan_recipe(recipe, scale, seeds=seeds, folder=folder, changes=changes)
    return {(b.key, row.key): row.runs[0].config for b in plan.blocks for row in b.rows}


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_of_every_recipe_is_a_valid_plan(recipe, scale, tmp_path, data_root, weights):
    plan = plan_recipe(recipe, scale, seeds=2, folder=tmp_path, changes=Changes(checkpoints=weights))
    runs = plan.runs
    assert len({run.folder.path for run in runs}) == len(runs)
    assert len({run.title for run in runs}) == len(runs)
    assert len(plan.blocks) + len(plan.left_out) == len(recipe.blocks)
    assert recipe.scales[scale].note


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_printed_values_belong_to_rows_of_the_grid(recipe):
    rows = {block.key: {row.key for row in block.rows} for block in recipe.blocks}
    for block, printed in recipe.printed.items():
        assert set(printed) - {"c=0"} <= rows[block], recipe.name


def test_the_paper_scale_is_the_published_protocol(tmp_path, data_root, weights):
    found = configs(find_recipe("table3-components"), "paper", tmp_path)
    cifar = found["cifar100", "mr2"]
    assert (cifar.backbone.name, cifar.loop.epochs, cifar.loop.batch_size) == ("resnet32", 300, 128)
    assert (cifar.optimizer.learning_rate, cifar.optimizer.weight_decay) == (0.1, 5e-4)
    assert (cifar.data.fraction, cifar.data.validation) == (1.0, 0.0)
    assert (cifar.method.options["mean_margin"], cifar.method.options["representation_weight"]) == (2.0, 0.5)
    changes = Changes(checkpoints=weights)
    found = configs(find_recipe("table2-imagenet"), "paper", tmp_path, changes)
    assert {key for key, _ in found} == {"resnet50", "moco-resnet50", "clip-vit-b32", "mae-vit-b16"}
    clip = found["clip-vit-b32", "mr2"]
    assert (clip.optimizer.name, clip.loop.epochs, clip.schedule.warmup_steps) == ("adamw", 10, 500)
    assert (clip.method.options["norm_order"], clip.backbone.head) == (3.0, "cosine")
    moco = found["moco-resnet50", "mr2"]
    assert (moco.backbone.mode, moco.method.options["representation_weight"]) == ("probe", 0.0)
    assert found["mae-vit-b16", "erm"].loop.batch_size == 1024


def test_a_published_probe_sees_crops_and_flips_and_the_cache_is_a_shortcut_that_is_asked_for(tmp_path):
    for more, cached in ((Changes(), False), (Changes(settings={"backbone": {"cache": True}}), True)):
        plan = plan_recipe(
            find_recipe("table2-imagenet"), "paper", seeds=1, folder=tmp_path, changes=more, must_run=False
        )
        (probe,) = (block for block in plan.blocks if block.key == "moco-resnet50")
        assert probe.rows[0].runs[0].config.backbone.cache is cached


def test_small_data_sets_are_trained_for_a_sensible_number_of_steps(tmp_path):
    plan = plan_recipe(find_recipe("table-fine-grained"), "paper", seeds=1, folder=tmp_path, must_run=False)
    steps = {block.key: estimate(block.rows[0].runs[0].config).steps for block in plan.blocks}
    assert min(steps.values()) == steps["flowers-102"] == 50 * (2040 // 64)
    warm_up = plan.blocks[0].rows[0].runs[0].config.schedule.warmup_steps
    assert 3 * warm_up <= min(steps.values())
    assert any("is not printed" in doubt for doubt in plan.recipe.doubts)


def test_sweeps_and_norms_change_one_hyperparameter(tmp_path, data_root, weights):
    found = configs(find_recipe("sweep-mean-margin"), "paper", tmp_path)
    margins = [config.method.options["mean_margin"] for (_, row), config in found.items() if row != "erm"]
    assert margins == [0.5, 1.0, 2.0, 3.0, 5.0]
    found = configs(find_recipe("sweep-representation-weight"), "laptop", tmp_path)
    options = [config.method.options for (_, row), config in found.items() if row != "erm"]
    assert [o["representation_weight"] for o in options] == [0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9]
    assert len({o["mean_margin"] for o in options}) == 1
    found = configs(find_recipe("table-norms-imagenet"), "paper", tmp_path, Changes(checkpoints=weights))
    orders = [config.method.options["norm_order"] for (_, row), config in found.items() if row != "erm"]
    assert orders == [1.0, 3.0, 5.0, 7.0, 9.0]


def test_augmentations_differ_at_every_scale(tmp_path, data_root, weights):
    for scale in SCALES:
        found = configs(find_recipe("table-augmentation"), scale, tmp_path, Changes(checkpoints=weights))
        kinds = {block: config.data.augmentation for (block, _), config in found.items()}
        assert kinds == {name: name for name in ("standard", "randaugment", "autoaugment")}


def test_what_the_user_says_wins(tmp_path, data_root):
    changes = Changes(
        settings={"loop": {"epochs": 7}, "data": {"fraction": 0.5}},
        methods={"mr2": {"mean_margin": 1.5}},
        mr2_preset="release",
        rows=("mr2",),
    )
    found = configs(find_recipe("table3-components"), "laptop", tmp_path, changes)
    assert {row for _, row in found} == {"erm", "mr2"}
    assert all(config.loop.epochs == 7 for config in found.values())
    mr2 = found["cifar100", "mr2"]
    assert (mr2.method.preset, mr2.method.options["mean_margin"], mr2.data.fraction) == ("release", 1.5, 0.5)


def test_a_file_that_is_thinned_already_is_not_thinned_again(tmp_path, data_root):
    (data_root / "cifar10_10pct.npz").touch()
    recipe = find_recipe("table-per-class-cifar10")
    for name, fraction in (("cifar10", 0.1), (str(data_root / "cifar10_10pct.npz"), 1.0)):
        found = configs(recipe, "laptop", tmp_path, Changes(settings={"data": {"name": name}}))
        assert found["cifar10", "erm"].data.fraction == fraction
    given = Changes(settings={"data": {"name": "cifar10_10pct.npz", "fraction": 0.5}})
    assert configs(recipe, "laptop", tmp_path, given)["cifar10", "erm"].data.fraction == 0.5


def test_runs_are_those_of_compare_methods_with_the_same_settings(tmp_path, data_root):
    recipe = find_recipe("table3-components")
    (block,) = plan_recipe(recipe, "laptop", seeds=2, folder=tmp_path).blocks
    mine = {run.folder.path for row in block.rows for run in row.runs if row.key in ("erm", "mr2")}
    config = gather_config(
        preset="cifar",
        flags={"backbone": {"name": "resnet20"}, "loop": {"epochs": 20}, "data": {"fraction": 0.1}},
    )
    theirs = plan_runs(config, ["erm", "mr2"], 2, tmp_path)
    assert mine == {run.folder.path for runs in theirs.values() for run in runs}


def test_seeds_come_one_after_the_other_so_that_pairs_are_complete_early(tmp_path, data_root):
    plan = plan_recipe(find_recipe("table-long-tail"), "laptop", seeds=2, folder=tmp_path)
    assert [run.config.loop.seed for run in plan.runs] == [0, 0, 0, 1, 1, 1]


def test_missing_data_are_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("CLASSMARGIN_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="CIFAR-100"):
        plan_recipe(find_recipe("table3-components"), "laptop", seeds=1, folder=tmp_path)
    changes = Changes(settings={"data": {"name": "nowhere.npz"}})
    with pytest.raises(FileNotFoundError, match="nowhere"):
        plan_recipe(find_recipe("table3-components"), "laptop", seeds=1, folder=tmp_path, changes=changes)
    with pytest.raises(ValueError, match="nothing of table-fine-grained can be run"):
        plan_recipe(find_recipe("table-fine-grained"), "laptop", seeds=1, folder=tmp_path)
    _fill(tmp_path / "oxford-pets")
    plan = plan_recipe(find_recipe("table-fine-grained"), "laptop", seeds=1, folder=tmp_path)
    assert [block.key for block in plan.blocks] == ["oxford-pets"]
    assert len(plan.left_out) == 4
    assert missing_data({"name": "fashion-mnist-mini"}) is None


def test_missing_weights_leave_a_block_out_on_a_laptop_and_stop_the_paper_scale(tmp_path, data_root, weights):
    recipe = find_recipe("table2-imagenet")
    plan = plan_recipe(recipe, "laptop", seeds=1, folder=tmp_path)
    assert [block.key for block in plan.blocks] == ["resnet50", "efficientnet-lite0"]
    assert "--checkpoint clip-vit-b32=FILE" in " ".join(plan.left_out.values())
    with pytest.raises(ValueError, match="--checkpoint moco-resnet50=FILE"):
        plan_recipe(recipe, "paper", seeds=1, folder=tmp_path)
    given = Changes(checkpoints=weights)
    assert len(plan_recipe(recipe, "laptop", seeds=1, folder=tmp_path, changes=given).blocks) == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (Changes(rows=("mr3",)), "--rows must be one of"),
        (Changes(blocks=("cifar10",)), "--blocks must be one of"),
        (Changes(settings={"loop": {"epoch": 3}}), "unknown key loop.epoch"),
        (Changes(methods={"mr2": {"mean_margn": 2}}), "did you mean 'mean_margin'"),
        (Changes(mr2_preset="papr"), "preset of mr2"),
    ],
)
def test_bad_changes_are_refused_by_name(tmp_path, data_root, changes, words):
    with pytest.raises(ValueError, match=words):
        plan_recipe(find_recipe("table3-components"), "laptop", seeds=1, folder=tmp_path, changes=changes)


def test_unknown_names_suggest_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'table3-components'"):
        find_recipe("table3-component")
    with pytest.raises(ValueError, match="scale must be one of"):
        plan_recipe(find_recipe("table3-components"), "desktop", seeds=1, folder=tmp_path)


def test_the_smallest_scale_needs_neither_data_nor_weights(tmp_path):
    for recipe in ALL:
        for config in configs(recipe, "smoke", tmp_path).values():
            assert config.data.name.endswith(".npz")
            assert config.data.root == str(tmp_path / "sample-data")
            assert not needs_weights(vars(config.backbone))


# Training images a second on one core, measured (forward and backward, float32, channels last).
SPEED = {
    "small-cnn": 1690,
    "resnet20": 217,
    "resnet32": 130,
    "preact-resnet20": 200,
    "preact-resnet32": 118,
    "resnet50": 82,  # width 16, 3x3 stem
    "resnet18": 286,  # width 16, 3x3 stem
    "efficientnet-lite0": 84,  # at 64 pixels
}
TRAINING_IMAGES = {"cifar100": 45_000, "cifar10": 45_000, "fashion-mnist-mini": 4_500}
LONG_TAIL_IMAGES = 9_765  # CIFAR-100-IB-100 without the validation part


@pytest.mark.parametrize("recipe", [r for r in ALL if r.blocks], ids=lambda recipe: recipe.name)
def test_laptop_scale_fits_two_cores_in_about_an_hour(recipe, tmp_path, data_root):
    seconds = 0.0
    for run in plan_recipe(recipe, "laptop", seeds=3, folder=tmp_path).runs:
        config = run.config
        if config.backbone.mode == "probe":  # features are computed once, heads take seconds
            continue
        images = TRAINING_IMAGES[config.data.name] * config.data.fraction
        images = LONG_TAIL_IMAGES if config.data.imbalance > 1 else images
        cost = method_info(config.method.name).cost
        seconds += cost * images * config.loop.epochs / SPEED[config.backbone.name]
    assert seconds / 2 < 1.25 * 3600, f"{seconds / 7200:.2f} hours on two cores"
