from __future__ import annotations

import json

import pytest


@pytest.fixture
def models(predictions):
    return predictions("good", noise=0.4), predictions("bad", noise=4.0)


def test_a_better_model_passes_with_code_zero(run, models):
    good, bad = models
    outcome = run("gate", good, "--baseline", bad, "--allow-blind")
    assert outcome.code == 0
    assert outcome.out.startswith("PASS")


def test_a_worse_model_fails_with_code_one_and_says_why(run, models):
    good, bad = models
    outcome = run("gate", bad, "--baseline", good)
    assert outcome.code == 1
    assert outcome.out.startswith("FAIL: ")
    assert "Classes that failed" in outcome.out


def test_the_gate_prints_its_own_power(run, models):
    outcome = run("gate", models[0], "--baseline", models[0])
    assert "would be caught with probability" in outcome.out


def test_a_model_does_not_fail_against_itself(run, models):
    assert [run("gate", model, "--baseline", model, "--allow-blind").code for model in models] == [0, 0]


def test_too_few_samples_to_see_a_drop_are_code_three(run, models):
    outcome = run("gate", models[1], "--baseline", models[1])
    assert outcome.code == 3
    assert outcome.out.startswith("CANNOT TELL: a drop of 12 points")
    shown = run("gate", models[1], "--baseline", models[1], "--no-drop-beyond", 0.001)
    assert shown.code == 3
    assert "not excluded for" in shown.out


def test_github_gets_annotations_and_a_summary(run, models, tmp_path, monkeypatch):
    page = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    outcome = run("gate", models[1], "--baseline", models[0], "--format", "github")
    assert outcome.code == 1
    assert outcome.out.startswith("::error title=classmargin gate::overall accuracy fell from")
    assert "96.0 %25" in outcome.out or "%25 to" in outcome.out
    assert page.read_text(encoding="utf-8").startswith("### Gate: failed")


def test_min_worst_is_a_floor_for_every_class(run, models):
    bad = models[1]
    assert run("gate", bad, "--baseline", bad, "--min-worst", 0.0, "--allow-blind").code == 0
    outcome = run("gate", bad, "--baseline", bad, "--min-worst", 0.95)
    assert outcome.code == 1


def test_classes_below_the_minimum_without_support_are_named(run, models):
    bad = models[1]
    outcome = run("gate", bad, "--baseline", bad, "--min-worst", 0.3, "--format", "json")
    data = json.loads(outcome.out)
    low = [row for row in data["by_class"] if row["candidate"] < 0.3 and not row["failed"]]
    assert low
    shown = run("gate", bad, "--baseline", bad, "--min-worst", 0.3).out
    assert all(f"{row['class_name']} {100 * row['candidate']:.1f} %" in shown for row in low)
    assert "Adjusted p, minimum" in shown


def test_a_tolerance_of_everything_passes_anything(run, models):
    good, bad = models
    assert run("gate", bad, "--baseline", good, "--max-drop", 0.99, "--allow-blind").code == 0


def test_json_holds_the_decision(run, models):
    good, bad = models
    outcome = run("gate", bad, "--baseline", good, "--format", "json")
    data = json.loads(outcome.out, parse_constant=pytest.fail)
    assert outcome.code == 1
    assert data["passed"] is False
    assert data["reasons"]
    assert len(data["by_class"]) == 5


def test_long_lists_of_reasons_are_cut_in_the_sentence_only():
    from classmargin.cli.gate import _in_short

    assert _in_short(["a", "b"]) == "a; b"
    assert _in_short(list("abcdefgh")) == "a; b; c; d; e; and 3 more"


def test_bad_input_is_code_two_not_one(run, models, tmp_path):
    assert run("gate", models[0], "--baseline", tmp_path / "missing.npz").code == 2
    assert run("gate", models[0], "--baseline", models[0], "--alpha", 2).code == 2
    assert run("gate", models[0], "--baseline", models[0], "--max-drop", "nan").code == 2
