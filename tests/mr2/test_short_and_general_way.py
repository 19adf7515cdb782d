"""The short step of the CPU against the general way: values, gradients, second passes and second derivatives."""

import pytest
import torch
from mr2_batches import random_batches, state

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

OPTIONS = {
    "pairs": {},
    "pairs, weighed": {"margin_source": "spread", "weigh_by_margin": True},
    "moments": {"positives": "moments", "representation_weight": 2.0},
    "moments by confidence": {"positives": "moments", "weigh_by_confidence": True, "mean_margin": 2.0},
    "recommended": {
        "positives": "moments",
        "representation_weight": 3.0,
        "margin_source": "relative-spread",
        "weigh_by_margin": True,
        "weigh_by_confidence": True,
        "warmup_steps": 2,
    },
    "prior": {
        "positives": "moments",
        "weigh_by_confidence": True,
        "log_prior": torch.linspace(-4.0, -1.0, 5, dtype=torch.float64),
    },
    "no slack": {"positives": "moments", "spread_slack": 0.0, "weigh_by_confidence": True},
    "no pull": {"representation_weight": 0.0, "positives": "moments", "weigh_by_confidence": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.fixture
def losses(monkeypatch):
    """Make a loss that goes the short way, and one that never does; count the short steps."""

    def make(options):
        short, general = MR2Loss(5, **options), MR2Loss(5, **options)
        monkeypatch.setattr(general, "_is_common_step", lambda *_: False)
        common, steps = short._common_step, []
        monkeypatch.setattr(short, "_common_step", lambda *a: steps.append(1) or common(*a))
        return short, general, steps

    return make


@every_option
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_gradients_and_state_over_steps(losses, options, dtype):
    short, general, steps = losses(options)
    for batch in random_batches(5, 20, 5, 3, dtype=dtype):
        one, other = short.terms(*batch), general.terms(*batch)
        torch.testing.assert_close(one, other)
        inputs = (batch.logits, batch.features)
        for part, same in zip(one, other, strict=True):
            torch.testing.assert_close(
                torch.autograd.grad(
                    part, inputs, retain_graph=True, allow_unused=True, materialize_grads=True
                ),
                torch.autograd.grad(
                    same, inputs, retain_graph=True, allow_unused=True, materialize_grads=True
                ),
            )
    assert len(steps) == 5
    torch.testing.assert_close(state(short), state(general))


@every_option
def test_a_second_backward_pass_gives_the_same_though_statistics_moved_on(losses, options):
    short, _, _ = losses(options)
    first, second = random_batches(2, 20, 5, 3)
    total = short(*first)
    inputs = (first.logits, first.features)
    once = torch.autograd.grad(total, inputs, retain_graph=True)
    short(*second)
    torch.testing.assert_close(torch.autograd.grad(total, inputs), once)


@every_option
def test_second_derivatives(losses, options):
    short, general, _ = losses(options)
    before, batch = random_batches(2, 20, 5, 3)
    found = []
    for loss in (short, general):
        loss(*before)
        inputs = (batch.logits, batch.features)
        grads = torch.autograd.grad(
            loss(*batch), inputs, create_graph=True, allow_unused=True, materialize_grads=True
        )
        curvature = sum(part.square().sum() for part in grads)
        found.append(torch.autograd.grad(curvature, inputs, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(found[0], found[1])


@every_option
def test_extreme_logits_and_features(losses, options):
    short, general, _ = losses(options)
    batch = random_batches(1, 20, 5, 3)[0]
    for scale in (1e-6, 1e3, 1e5):
        wide = batch._replace(
            logits=(batch.logits.detach() * scale).requires_grad_(),
            features=(batch.features.detach() * scale).requires_grad_(),
        )
        one, other = short(*wide), general(*wide)
        torch.testing.assert_close(one, other)
        inputs = (wide.logits, wide.features)
        grads = [
            torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
            for total in (one, other)
        ]
        assert all(torch.isfinite(part).all() for part in grads[0])
        torch.testing.assert_close(grads[0], grads[1])
