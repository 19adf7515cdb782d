"""Learning rates by hand."""

from __future__ import annotations

import math

import pytest

from classmargin.training.config import ScheduleConfig
from classmargin.training.weights import make_schedule


def rates(config: ScheduleConfig, epochs: int = 10, steps: int = 4, peak: float = 2.0) -> list[float]:
    schedule = make_schedule(config, peak=peak, epochs=epochs, steps_per_epoch=steps)
    return [schedule(step) for step in range(epochs * steps)]


def test_cosine_starts_at_the_peak_and_falls_to_the_minimum():
    values = rates(ScheduleConfig("cosine", minimum=0.5))
    assert values[0] == 2.0
    assert values[20] == pytest.approx(0.5 + 1.5 * 0.5)
    assert values[10] == pytest.approx(0.5 + 1.5 * (1 + math.cos(math.pi / 4)) / 2)
    assert values == sorted(values, reverse=True)
    assert 0.5 < values[-1] < 0.52


def test_warm_up_rises_linearly_and_then_the_cosine_spans_the_rest():
    values = rates(ScheduleConfig("cosine", warmup_epochs=2.0, warmup_start=0.0))
    assert values[:8] == pytest.approx([2.0 * (step + 1) / 8 for step in range(8)])
    assert values[8] == 2.0
    assert values[24] == pytest.approx(1.0)


def test_warm_up_in_steps_is_the_same_rule():
    assert rates(ScheduleConfig("cosine", warmup_steps=8)) == rates(ScheduleConfig("cosine", warmup_epochs=2.0))


def test_step_decay_multiplies_at_each_milestone():
    values = rates(ScheduleConfig("step", milestones=(6, 8), factor=0.1))
    assert values[23] == 2.0
    assert values[24] == pytest.approx(0.2)
    assert values[31] == pytest.approx(0.2)
    assert values[32] == pytest.approx(0.02)


def test_constant_stays():
    assert set(rates(ScheduleConfig("constant"))) == {2.0}


def test_a_warm_up_longer_than_the_stage_still_reaches_the_peak():
    values = rates(ScheduleConfig("cosine", warmup_steps=500), epochs=2)
    assert max(values) == 2.0
