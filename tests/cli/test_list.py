from __future__ import annotations

import json

from classmargin._checks import did_you_mean


def test_costs_are_shown_with_two_digits_and_kept_whole_for_machines(run):
    shown = run("list", "methods").out
    assert " 1.3 " in shown
    assert "1.33" not in shown
    costs = {row["name"]: row["cost"] for row in json.loads(run("list", "methods", "--json").out)}
    assert costs["csr"] == 4 / 3


def test_other_kinds_are_listed_without_costs(run):
    outcome = run("list", "data")
    assert outcome.code == 0
    assert "Cost" not in outcome.out


def test_the_beginning_of_a_word_suggests_the_word(run):
    assert "did you mean 'backbones'" in run("list", "back").err
    assert did_you_mean("val", ["train", "validation", "test", "all"]) == " (did you mean 'validation'?)"
    assert did_you_mean("wide", ["wide-resnet-28", "wide-resnet"]) == " (did you mean 'wide-resnet'?)"
    assert did_you_mean("vall", ["train", "validation", "all"]) == " (did you mean 'all'?)"
    assert did_you_mean("x", ["xyz"]) == did_you_mean("", ["xyz"]) == ""
