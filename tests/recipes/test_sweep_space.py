"""The words of --search and --objective, and what is refused before anything runs."""

from __future__ import annotations

import math

import pytest

from classmargin.methods import list_methods
from classmargin.recipes.sweep_space import (
    Parameter,
    check_method,
    default_parameters,
    easy_violation,
    grid,
    grid_size,
    parse_objective,
    parse_search,
    settings_of,
)
from classmargin.training.config import LoopConfig, MethodConfig, RunConfig

MR2 = RunConfig(method=MethodConfig("mr2"))


def only(word, config=MR2):
    (parameter,) = parse_search([word], config)
    return parameter


def test_listed_values_are_choices_of_the_method():
    parameter = only("mean_margin=1,2.5,3")
    assert (parameter.key, parameter.name, parameter.choices) == (
        "method.mean_margin",
        "mean_margin",
        (1, 2.5, 3),
    )


@pytest.mark.parametrize(
    ("word", "low", "high", "step", "log", "whole"),
    [
        ("representation_weight=0.1:0.9", 0.1, 0.9, None, False, False),
        ("representation_weight=0.001:1:log", 0.001, 1.0, None, True, False),
        ("mean_margin=1:3:0.5", 1.0, 3.0, 0.5, False, False),
        ("mean_margin=1:3", 1.0, 3.0, None, False, False),
        ("loop.batch_size=32:128:32", 32, 128, 32, False, True),
        ("optimizer.weight_decay=1e-5:1e-2:log", 1e-5, 1e-2, None, True, False),
    ],
)
def test_ranges_know_their_ends_scale_and_kind(word, low, high, step, log, whole):
    found = only(word)
    assert (found.low, found.high, found.step, found.log, found.whole) == (low, high, step, log, whole)


def test_words_lists_and_truth_values_can_be_choices():
    assert only("optimizer.name=sgd,adamw").choices == ("sgd", "adamw")
    assert only("optimizer.nesterov=true,false").choices == (True, False)
    betas = only("optimizer.betas=[0.9,0.99],[0.8,0.9]")
    assert betas.labels == ("[0.9, 0.99]", "[0.8, 0.9]"), "a data base holds no lists"
    assert settings_of([betas], {"optimizer.betas": "[0.8, 0.9]"}) == {"optimizer": {"betas": [0.8, 0.9]}}


def test_repeated_choices_count_once():
    assert only("mean_margin=1,2,1").choices == (1, 2)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("mean_margim=1,2", "did you mean 'mean_margin'"),
        ("optimiser.weight_decay=1:2", "did you mean 'optimizer'"),
        ("optimizer.weight_deca=0.1,0.2", "did you mean 'weight_decay'"),
        ("mean_margin", "wants KEY="),
        ("mean_margin=", "wants KEY="),
        ("=1,2", "wants KEY="),
        ("mean_margin=1,,2", "empty value"),
        ("mean_margin=3:1", "LOW below HIGH"),
        ("mean_margin=1:1", "LOW below HIGH"),
        ("mean_margin=a:b", "a range is LOW:HIGH"),
        ("mean_margin=1:2:3:4", "got 4 parts"),
        ("mean_margin=1:inf", "finite"),
        ("mean_margin=0:1:log", "begins above 0"),
        ("mean_margin=1:2:-1", "STEP above 0"),
        ("mean_margin=1:2:5", "STEP above 0"),
        ("loop.batch_size=1.5:8", "whole numbers"),
        ("mean_margin=-1,2", "mean_margin"),
        ("mean_margin=abc,2", "mean_margin"),
        ("loop.epochs=0,2", "at least 1"),
        ("optimizer.momentum=0.5:1.5", "momentum"),
        ("loop.seed=0,1,2", "luck"),
        ("method.name=erm,mr2", "one method"),
        ("data.fraction=0.5,1.0", "same samples"),
        ("data.augmentatio=none", "did you mean 'augmentation'"),
        ("machine.threads=1,2", "machine"),
    ],
)
def test_bad_words_are_refused_with_what_to_write(word, message):
    with pytest.raises(ValueError, match=message):
        parse_search([word], MR2)


def test_a_parameter_may_be_named_once():
    with pytest.raises(ValueError, match="more than once"):
        parse_search(["mean_margin=1,2", "method.mean_margin=3,4"], MR2)


def test_without_words_the_method_brings_its_own_ranges():
    assert [p.name for p in parse_search([], MR2)] == [
        "mean_margin",
        "representation_weight",
        "label_smoothing",
    ]
    (step_size, adjustment) = default_parameters("group-dro")
    assert (step_size.log, step_size.low, step_size.high) == (True, 1e-3, 1e-1)
    assert adjustment.choices == (0.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="no search ranges"):
        default_parameters("balanced-softmax")


@pytest.mark.parametrize("name", [info.name for info in list_methods()])
def test_every_method_can_be_checked_and_accepts_its_own_ranges(name):
    config = RunConfig(method=MethodConfig(name), loop=LoopConfig(epochs=6))
    check_method(config)
    if next(info for info in list_methods() if info.name == name).search:
        assert parse_search([], config)


def test_grids_are_counted_and_listed():
    choices = [Parameter("a.b", choices=(1, 2)), Parameter("a.c", choices=("x", [1]))]
    assert grid_size(choices) == 4
    assert list(grid(choices))[1] == {"a.b": 1, "a.c": "[1]"}
    assert grid_size([*choices, Parameter("a.d", low=0.0, high=1.0)]) is None


def test_mixes_are_weighted_means():
    mix = parse_objective("hard:0.7,overall:0.3")
    assert mix.value({"hard": 0.5, "overall": 0.8, "worst": 0.0}) == pytest.approx(0.7 * 0.5 + 0.3 * 0.8)
    assert parse_objective("hard").value({"hard": 0.25}) == 0.25
    assert math.isnan(mix.value({"hard": 0.5, "overall": None}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hart", "did you mean 'hard'"),
        ("", "must be one of"),
        ("hard:0", "above 0"),
        ("hard:-1", "above 0"),
        ("hard:x", "above 0"),
        ("hard:nan", "above 0"),
        ("hard:1,hard:2", "more than once"),
        ("hard,", "must be one of"),
    ],
)
def test_bad_objectives_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_objective(text)


def test_thirds_need_three_classes():
    parse_objective("overall").check_classes(2)
    with pytest.raises(ValueError, match="at least 3 classes"):
        parse_objective("hard").check_classes(2)


def test_easy_may_fall_by_the_slack_and_no_more():
    assert easy_violation({"easy": 0.90}, 0.91, 0.0) == pytest.approx(0.01)
    assert easy_violation({"easy": 0.90}, 0.91, 0.02) == pytest.approx(-0.01)
    assert easy_violation({}, 0.9, 0.0) == math.inf
