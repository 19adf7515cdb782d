"""Every registered method in the real loop: it trains, and a killed run goes on bit-identically."""

import pytest
import torch
from real_loop import BUNDLE, make_loop
from tiny_loop import COMBINATIONS, NAMES, tensors_of


class Killed(Exception):
    """Stands for the end of a process: nothing after it runs."""


def state_of(loop):
    return tensors_of(
        {
            "network": dict(loop.network.state_dict()),
            "method": dict(loop.method.state_dict()),
            "optimizer": loop.optimizer.state_dict(),
        }
    )


def kill_after(loop, calls):
    """Let the method raise at its so-many-th loss."""
    plain, left = loop.method.loss, [calls]

    def loss(step, update_state):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return plain(step, update_state)

    loop.method.loss = loss


def accuracy(network, method):
    network.eval()
    with torch.no_grad():
        scores = method.predict(network(BUNDLE.test.inputs))
    return (scores.argmax(dim=1) == BUNDLE.test.labels).double().mean().item()


@pytest.mark.parametrize("name", NAMES + COMBINATIONS)
def test_trains_and_goes_on_after_being_killed(name, tmp_path):
    whole = make_loop(name, tmp_path / "whole")
    network = whole.run()
    assert accuracy(network, whole.method) > 0.4  # chance is 0.25, one standard error 0.05
    killed = make_loop(name, tmp_path / "killed")
    kill_after(killed, 2 * whole.position.global_step // 3)
    with pytest.raises(Killed):
        killed.run()
    resumed = make_loop(name, tmp_path / "killed")
    resumed.run()
    expected, got = state_of(whole), state_of(resumed)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[path], got[path]) for path in expected)
