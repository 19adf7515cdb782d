"""What every registered method promises for single batches, in each of its stages.

The methods are warm: trained for a few epochs, so that their state is not the initial one.
"""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from tiny_loop import CLASSES, COMBINATIONS, NAMES, SIZE, TinyRun

ALL = NAMES + COMBINATIONS


@cache
def trained(name, dtype=torch.float32):
    return TinyRun(name, epochs=4, plain=True, dtype=dtype).run()


def warm(name, dtype=torch.float32):
    """A trained run, positioned in its last epoch so that late switches are on."""
    run = copy.deepcopy(trained(name, dtype))
    run.at.epoch = run.epochs - 1
    run.method.train()
    for parameter in run.model.parameters():
        parameter.requires_grad_()
    return run


def batch_of(run, rows, stage, *, scale=1.0, dtype=None):
    """A step whose features and logits are leaves of the graph, so that gradients can be looked at."""
    views = run.needs.views if run.stages[stage].views is None else run.stages[stage].views
    rows = torch.as_tensor(rows)
    inputs = run.augmented(rows, views)
    with torch.no_grad():
        features = run.model.encoder(inputs) * scale
        logits = run.model.head(features)
    cast = dtype or run.dtype
    return replace(
        run.forward(inputs, rows.repeat(views), views),
        features=features.to(cast).requires_grad_(),
        logits=logits.to(cast).requires_grad_(),
        stage=stage,
    )


def gradients(method, step, update_state=True):
    """Loss and gradients with respect to logits and features (zeros where there is no dependence)."""
    loss = method.loss(step, update_state)
    found = torch.autograd.grad(loss.total, [step.logits, step.features], allow_unused=True)
    return loss, [
        torch.zeros_like(x) if g is None else g for g, x in zip(found, (step.logits, step.features), strict=True)
    ]


def assert_finite(method, step):
    loss, slopes = gradients(method, step)
    assert loss.total.dim() == 0
    assert torch.isfinite(loss.total)
    assert all(torch.isfinite(slope).all() for slope in slopes)
    assert all(torch.isfinite(part).all() and not part.requires_grad for part in loss.parts.values())


def stages_of(run):
    return range(len(run.stages))


MIXED = list(range(12))
ONE_CLASS = [0, 4, 8, 12, 16]
TWO_CLASSES = [0, 1, 4, 5, 8]
NO_PAIRS = [0, 1, 2, 3]


@pytest.mark.parametrize("name", ALL)
def test_without_update_the_state_stays_bit_identical(name):
    run = warm(name)
    before = {key: value.clone() for key, value in run.method.state_dict().items()}
    for stage in stages_of(run):
        run.method.loss(batch_of(run, MIXED, stage), False).total.backward()
    run.method.eval()
    with torch.no_grad():
        run.method.predict(run.model(run.inputs))
        run.method.loss(batch_of(run, MIXED, 0), False)
    after = run.method.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ALL)
def test_order_of_the_batch_does_not_matter(name):
    order = torch.randperm(len(MIXED), generator=torch.Generator().manual_seed(3))
    for stage in stages_of(trained(name, torch.float64)):
        straight, shuffled = warm(name, torch.float64), warm(name, torch.float64)
        step = batch_of(straight, MIXED, stage)
        rows = torch.cat([order + view * len(MIXED) for view in range(step.views)])
        moved = {key: getattr(step, key)[rows] for key in ("labels", "index", "inputs")}
        leaves = {key: getattr(step, key).detach()[rows].requires_grad_() for key in ("logits", "features")}
        loss, slopes = gradients(straight.method, step)
        other, other_slopes = gradients(shuffled.method, replace(step, **moved, **leaves))
        torch.testing.assert_close(other.total, loss.total)
        for slope, other_slope in zip(slopes, other_slopes, strict=True):
            torch.testing.assert_close(other_slope, slope[rows])


@pytest.mark.parametrize(
    "rows", [ONE_CLASS, TWO_CLASSES, NO_PAIRS, [7]], ids=["one class", "absent", "no pairs", "B=1"]
)
@pytest.mark.parametrize("name", ALL)
def test_unusual_batches_give_finite_losses_and_gradients(name, rows):
    for stage in stages_of(trained(name)):
        run = warm(name)
        step = batch_of(run, rows, stage)
        assert_finite(run.method, step)
        with torch.no_grad():
            run.method.on_step_end(replace(step, logits=step.logits.detach(), features=step.features.detach()))
        assert all(torch.isfinite(v).all() for v in run.method.state_dict().values() if v.is_floating_point())


@pytest.mark.parametrize("rows", [ONE_CLASS, [7]], ids=["one class", "B=1"])
@pytest.mark.parametrize("name", ALL)
def test_the_very_first_batch_may_be_unusual(name, rows):
    run = TinyRun(name, epochs=4, plain=True)
    for stage in stages_of(run):
        assert_finite(run.method, batch_of(run, rows, stage))


@pytest.mark.parametrize("name", ALL)
def test_half_precision_inputs_give_nearly_the_float32_loss(name):
    for stage in stages_of(trained(name)):
        whole, half = warm(name), warm(name)
        expected = whole.method.loss(batch_of(whole, MIXED, stage), True).total
        step = batch_of(half, MIXED, stage, dtype=torch.float16)
        loss, slopes = gradients(half.method, step)
        assert loss.total.dtype == torch.float32
        assert loss.total.item() == pytest.approx(expected.item(), rel=0.02, abs=0.02)
        assert all(torch.isfinite(slope).all() for slope in slopes)
        with torch.no_grad():
            half.method.on_step_end(replace(step, logits=step.logits.detach(), features=step.features.detach()))


@pytest.mark.parametrize("name", ALL)
def test_under_autocast_the_loss_is_nearly_the_same(name):
    for stage in stages_of(trained(name)):
        whole, cast = warm(name), warm(name)
        expected = whole.method.loss(batch_of(whole, MIXED, stage), True).total
        step = batch_of(cast, MIXED, stage)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = cast.method.loss(step, True).total
        assert total.dtype == torch.float32
        assert total.item() == pytest.approx(expected.item(), rel=0.05, abs=0.05)


@pytest.mark.parametrize("name", ALL)
def test_features_a_hundred_times_larger_stay_finite(name):
    for stage in stages_of(trained(name)):
        run = warm(name)
        for _ in range(3):
            assert_finite(run.method, batch_of(run, MIXED, stage, scale=100.0))


@pytest.mark.parametrize("name", ALL)
def test_loss_has_a_part_for_the_log_and_predictions_have_one_score_per_class(name):
    run = warm(name)
    assert run.method.loss(batch_of(run, MIXED, 0), True).parts
    with torch.no_grad():
        assert run.method.predict(run.model(run.inputs)).shape == (SIZE, CLASSES)
