"""Typed configuration: merging, refusing, writing and reading back."""

from __future__ import annotations

import hashlib
import json

import pytest

from classmargin.training.config import (
    DataConfig,
    LoopConfig,
    MachineConfig,
    MethodConfig,
    RunConfig,
    identity,
)
from classmargin.training.config_reader import (
    build,
    differences,
    merge,
    parse_overrides,
    read_toml,
    to_toml,
    with_values,
)


def test_defaults_need_no_input():
    assert build({}) == RunConfig()


def test_later_sources_win_key_by_key():
    merged = merge({"loop": {"epochs": 3, "seed": 1}}, {"loop": {"epochs": 5}})
    assert merged == {"loop": {"epochs": 5, "seed": 1}}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"loop": {"epoch": 3}}, r"unknown key loop\.epoch.*did you mean 'epochs'"),
        ({"lop": {"epochs": 3}}, r"unknown table 'lop'.*did you mean 'loop'"),
        ({"optimizer": {"name": "sdg"}}, r"optimizer\.name must be one of sgd, adamw.*did you mean 'sgd'"),
        ({"schedule": {"name": "cosin"}}, r"schedule\.name.*did you mean 'cosine'"),
        ({"loop": {"epochs": 0}}, r"loop\.epochs must be at least 1, got 0"),
        ({"data": {"fraction": 0.0}}, r"data\.fraction must be > 0"),
        ({"data": {"imbalance": 0.5}}, r"data\.imbalance must be >= 1"),
        ({"optimizer": {"betas": [0.9]}}, r"optimizer\.betas must have 2 entries, got 1"),
        ({"schedule": {"warmup_epochs": 1.0, "warmup_steps": 5}}, "not both"),
        ({"machine": {"loggers": ["tensorbord"]}}, "did you mean 'tensorboard'"),
    ],
)
def test_wrong_keys_and_values_are_refused_with_the_nearest_right_one(tables, words):
    with pytest.raises(ValueError, match=words):
        build(tables)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"loop": {"epochs": 2.5}}, r"loop\.epochs must be a whole number, got float"),
        ({"loop": {"epochs": True}}, r"loop\.epochs must be a whole number, got bool"),
        ({"loop": {"compile": 1}}, r"loop\.compile must be true or false, got int"),
        ({"optimizer": {"learning_rate": "fast"}}, r"optimizer\.learning_rate must be a number, got str"),
        ({"loop": 3}, "loop must be a table"),
    ],
)
def test_wrong_types_are_refused(tables, words):
    with pytest.raises(TypeError, match=words):
        build(merge(tables))


def test_whole_numbers_pass_as_numbers_and_lists_as_tuples():
    config = build({"optimizer": {"learning_rate": 1, "betas": [0.8, 0.9]}, "schedule": {"milestones": [3]}})
    assert config.optimizer.learning_rate == 1.0
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.schedule.milestones == (3,)


def test_keys_that_are_not_the_methods_own_become_hyperparameters():
    config = build({"method": {"name": "mr2", "preset": "paper", "mean_margin": 2}})
    assert config.method == MethodConfig("mr2", "paper", {"mean_margin": 2})


def test_overrides_are_toml_values_or_text():
    words = [
        "loop.epochs=5",
        "method.norm_order=3.0",
        "loop.compile=true",
        "method.margin_source=sqnorm",
    ]
    assert parse_overrides(words) == {
        "loop": {"epochs": 5, "compile": True},
        "method": {"norm_order": 3.0, "margin_source": "sqnorm"},
    }


@pytest.mark.parametrize("word", ["epochs=5", "loop.epochs", "loop.=5", ".a=1", "loop.a.b=1"])
def test_malformed_overrides_are_refused(word):
    with pytest.raises(ValueError, match=r"PART\.KEY=VALUE"):
        parse_overrides([word])


def test_none_switches_an_optional_setting_off_and_stays_text_elsewhere():
    config = build(parse_overrides(["optimizer.clip_norm=none", "data.augmentation=none"]))
    assert config.optimizer.clip_norm is None
    assert config.data.augmentation == "none"


def test_a_written_configuration_reads_back_equal(tmp_path):
    config = build(
        {
            "data": {"name": 'odd "name"\\ with\ttab', "fraction": 0.1},
            "method": {"name": "mr2", "limits": (0.1, 10.0), "margin_source": "spread", "tau": 1e-30},
            "backbone": {"head_options": {"scale": 30.0}},
            "schedule": {"milestones": (1, 2)},
            "optimizer": {"clip_norm": 1.0},
        }
    )
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    again = build(read_toml(file))
    assert differences(config, again) == []
    assert again.method.options["tau"] == 1e-30
    assert again.data.name == config.data.name


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text("[loop\nepochs = 3")
    with pytest.raises(ValueError, match=r"bad\.toml is not valid TOML: .*line 1"):
        read_toml(file)


def test_identity_depends_on_what_is_computed_and_not_on_where():
    config = RunConfig()
    assert identity(config) == identity(RunConfig(machine=MachineConfig(report=False, workers=3)))
    assert identity(config) != identity(RunConfig(loop=LoopConfig(batch_size=64)))
    assert identity(config) != identity(RunConfig(method=MethodConfig("mr2")))


def test_settings_that_came_later_change_the_name_of_a_run_only_where_they_are_used():
    numerics = {"threads": 0, "memory_format": "auto", "processes": 1}
    parts = {**RunConfig().to_dict(), "machine": numerics}
    for name, value in (("spared_classes", ("a",)), ("left_out", "doubted.csv"), ("fold", (0, 3))):
        parts["data"].pop(name)
        assert identity(RunConfig(data=DataConfig(**{name: value}))) != identity(RunConfig())
    text = json.dumps(parts, sort_keys=True, default=list)
    assert identity(RunConfig()) == hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize("fold", [(3, 3), (0, 1), (-1, 2), (1,)])
def test_a_fold_is_one_of_several(fold):
    with pytest.raises(ValueError, match=r"data.fold must be \(k, n\)"):
        DataConfig(fold=fold)


@pytest.mark.parametrize(
    "rounds_otherwise",
    [{"threads": 2}, {"memory_format": "contiguous"}, {"devices": 2}, {"nodes": 2}],
    ids=str,
)
def test_what_rounds_otherwise_is_another_run(rounds_otherwise):
    assert identity(RunConfig()) != identity(RunConfig(machine=MachineConfig(**rounds_otherwise)))


def test_differences_name_what_changed_and_leave_the_place_out():
    old = RunConfig()
    new = with_values(old, {"loop": {"epochs": 31}, "machine": {"devices": 2, "report": False}})
    assert differences(old, new) == ["loop.epochs: 30 -> 31"]
    new = with_values(old, {"machine": {"threads": 2, "memory_format": "contiguous"}})
    assert differences(old, new) == [
        "machine.threads: 0 -> 2",
        "machine.memory_format: 'auto' -> 'contiguous'",
    ]


def test_learning_rate_scales_with_the_batch_where_asked_for():
    config = build({"optimizer": {"learning_rate": 1e-3, "scale_batch": 256}, "loop": {"batch_size": 1024}})
    assert config.learning_rate == pytest.approx(4e-3)
    assert RunConfig().learning_rate == 0.1
