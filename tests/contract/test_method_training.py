"""Every registered method trains, and a cut training goes on as if nothing had been."""

import pytest
import torch
from tiny_loop import COMBINATIONS, NAMES, TinyRun, tensors_of


@pytest.mark.parametrize("name", NAMES + COMBINATIONS)
def test_trains_on_tiny_data_and_beats_chance(name):
    run = TinyRun(name, epochs=12, batch_size=8).run()
    assert run.accuracy() > 0.5  # chance is 0.25
    assert all(torch.isfinite(t).all() for t in tensors_of(run.state()).values() if t.is_floating_point())


@pytest.mark.parametrize("name", NAMES + COMBINATIONS)
def test_interrupted_and_resumed_equals_uninterrupted(name):
    whole = TinyRun(name, epochs=4).run()
    steps = whole.at.global_step
    # in the middle of the first epoch, and of the last one (the last stage, if there are several)
    for cut in (1, steps - 2):
        saved = TinyRun(name, epochs=4).run(until=cut).save()
        torch.manual_seed(12345)
        resumed = TinyRun(name, epochs=4).load(saved).run()
        expected, got = tensors_of(whole.state()), tensors_of(resumed.state())
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[path], got[path]) for path in expected)
