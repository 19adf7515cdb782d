"""How many samples and seeds are needed."""

from __future__ import annotations

import json

from classmargin.evaluation.release_gate import plan


def test_plan_prints_samples_and_seeds(run):
    outcome = run("plan", "--classes", 10, "--accuracy", 0.8, "--see", 3)
    expected = plan(10, accuracy=0.8, see=0.03)
    assert outcome.code == 0
    assert f"{expected.gate_samples} samples per class, {expected.seeds} seeds" in outcome.out
    data = json.loads(run("plan", "--classes", 10, "--see", 3, "--format", "json").out)
    assert data["interval_samples"] == 683


def test_impossible_plans_are_bad_input(run):
    assert run("plan", "--classes", 10, "--see", 0).code == 2
    assert run("plan", "--classes", 10, "--see", 3, "--max-drop", 4).code == 2
