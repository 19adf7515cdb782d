"""torch.compile(fullgraph=True): no graph breaks, equal values, gradients and statistics.

``fullgraph=True`` makes every graph break an error. Tracing is what can break, so most cases only trace ("eager", or
"aot_eager" with the backward pass), which takes seconds; one small case goes through the real compiler, and in the
slow suite all of them do.
"""

import copy

import pytest
import torch
from mr2_batches import random_batch, state

from classmargin.mr2 import PRESETS, MR2Loss, margin_cross_entropy, representation_margin

CONFIGURATIONS = {
    "default": {},
    "paper": {"temperature": 1.0, "representation_weight": 0.5, "mean_margin": 2.0, "estimator": "batch"},
    "release": {
        "estimator": "batch",
        "norm_order": 5.0,
        "sqnorm_form": "mean_plus_deviation",
        "temperature": "dimension",
        "temperature_factor": 10.0,
        "representation_reduction": "classes",
        "dimension_scale": 0.1,
        "unseen": "zero",
    },
    "memory": {"positives": "memory", "memory_size": 2},
    "moments": {"positives": "moments"},
    "spread, order three, warm-up": {"margin_source": "spread", "norm_order": 3.0, "warmup_steps": 2},
    "relative spread": {"margin_source": "relative-spread"},
    "recommended": {**PRESETS["recommended"], "warmup_steps": 2},
    "weight, prior, smoothing": {
        "weight": torch.linspace(0.5, 1.5, 5),
        "log_prior": torch.linspace(-2.0, -1.0, 5),
        "label_smoothing": 0.1,
    },
    "no representation term": {"representation_weight": 0.0},
}
QUICK = ("recommended", "memory")
# The compiler imports parts of torch that use deprecated parts of torch.
from_the_compiler_itself = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def slow_unless(name, quick):
    return name if name in quick else pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batch_of(size, seed, ignored=0):
    batch = random_batch(size, 5, 3, seed, dtype=torch.float32)
    if ignored:
        batch.labels[:ignored] = -100
    return batch


def compare(options, backend, batches, dynamic=None):
    """Run both versions side by side and compare everything that comes out."""
    plain, traced = MR2Loss(5, feature_dim=3, **options), MR2Loss(5, feature_dim=3, **options)
    compiled = torch.compile(traced, fullgraph=True, backend=backend, dynamic=dynamic)
    for batch in batches:
        expected, ours = plain(*batch), compiled(*batch)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        wants = (batch.logits, batch.features)
        mine, theirs = (
            torch.autograd.grad(loss, wants, allow_unused=True, materialize_grads=True)
            for loss in (ours, expected)
        )
        assert theirs[0].abs().max() > 0
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    expected_state = state(plain)
    for name, value in state(traced).items():
        if "ring" in name:  # places of a ring may be filled in another order
            value, expected_state[name] = value.sort(1).values, expected_state[name].sort(1).values
        torch.testing.assert_close(value, expected_state[name], rtol=1e-4, atol=1e-5, msg=name)
    return traced


@pytest.mark.parametrize("name", [slow_unless(name, QUICK) for name in CONFIGURATIONS])
def test_tracing_the_whole_graph_gives_equal_steps(name):
    """All batches but the first hold ignored rows, which must count nowhere."""
    compare(CONFIGURATIONS[name], "aot_eager", [batch_of(12, seed, ignored=3 * seed) for seed in range(4)])


def test_batch_size_may_change_from_step_to_step():
    with torch._dynamo.config.patch(error_on_recompile=True):
        traced = compare({}, "eager", [batch_of(size, size) for size in (12, 7, 20)], dynamic=True)
    assert traced.statistics.updates.item() == 3


@pytest.mark.parametrize("positives", ["batch", "memory", "moments"])
def test_the_feature_size_may_be_met_under_the_compiler(positives):
    plain, traced = (MR2Loss(5, positives=positives) for _ in range(2))
    compiled = torch.compile(traced, fullgraph=True, backend="eager")
    for seed in range(3):
        torch.testing.assert_close(
            compiled(*batch_of(12, seed)), plain(*batch_of(12, seed)), rtol=1e-5, atol=1e-5
        )
    assert traced.statistics.feature_dim == 3


def test_evaluation_is_traced_too_and_leaves_the_state_alone():
    loss = MR2Loss(5, feature_dim=3)
    loss(*batch_of(12, 0))
    loss.eval()
    before = state(loss)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*batch_of(12, 1)), loss(*batch_of(12, 1)), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in state(loss).items())


def test_the_peak_follows_when_training_goes_on_compiled():
    eager = MR2Loss.preset("recommended", 5)
    for seed in range(15):  # after the first steps few look at the variance; the last of these does not
        eager(*batch_of(16, seed))
    moved = copy.deepcopy(eager)
    compiled = torch.compile(moved, backend="eager")
    for seed in range(15, 40):
        logits, labels, features = batch_of(16, seed)
        larger = (10.0 * features).detach().requires_grad_()
        for step in (eager, compiled):
            step(logits, labels, larger)
    assert float(moved.scale.peak_variance) == pytest.approx(float(eager.scale.peak_variance), rel=1e-5)
    assert float(moved.collapse_ratio) > 0.5


def test_soft_labels_are_traced():
    plain, traced = MR2Loss(5, feature_dim=3), MR2Loss(5, feature_dim=3)
    compiled = torch.compile(traced, fullgraph=True, backend="eager")
    for seed in range(2):
        batch = batch_of(12, seed)
        batch = batch._replace(labels=torch.softmax(batch_of(12, seed + 10).logits.detach(), 1))
        torch.testing.assert_close(compiled(*batch), plain(*batch), rtol=1e-5, atol=1e-5)


def test_pure_functions_are_traced():
    batch = batch_of(12, 0)

    def both(logits, labels, features):
        margins = torch.linspace(0.5, 1.5, 5)
        return margin_cross_entropy(logits, labels, margins) + representation_margin(features, labels, 0.1)

    compiled = torch.compile(both, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*batch), both(*batch), rtol=1e-5, atol=1e-5)


def test_loss_inside_a_compiled_training_step():
    torch.manual_seed(0)
    encoder, head, loss = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5), MR2Loss(5, feature_dim=4)

    def step(inputs, labels):
        features = encoder(inputs)
        return loss(head(features), labels, features)

    batch = batch_of(12, 0)
    total = torch.compile(step, fullgraph=True, backend="eager")(batch.features.detach(), batch.labels)
    total.backward()
    assert encoder.weight.grad.abs().max() > 0
    reference = MR2Loss(5, feature_dim=4)
    features = encoder(batch.features.detach())
    torch.testing.assert_close(total, reference(head(features), batch.labels, features), rtol=1e-5, atol=1e-5)


@from_the_compiler_itself
def test_real_compiler_gives_equal_steps():
    compare({}, "inductor", [batch_of(12, seed) for seed in range(2)])


@pytest.mark.slow
@from_the_compiler_itself
@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_real_compiler_gives_equal_steps_in_every_configuration(options):
    compare(options, "inductor", [batch_of(12, seed, ignored=3 * seed) for seed in range(4)])


@pytest.mark.slow
@from_the_compiler_itself
def test_real_compiler_takes_changing_batch_sizes():
    compare({}, "inductor", [batch_of(size, size) for size in (12, 7, 20, 1)], dynamic=True)
