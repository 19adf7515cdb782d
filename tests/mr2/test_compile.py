"""torch.compile(fullgraph=True): no graph breaks, few graphs, equal values, gradients and statistics.

``fullgraph=True`` makes every graph break an error. Tracing is what can break, so the default suite only traces ("eager",
or "aot_eager" with the backward pass); the slow suite goes through the real compiler.
"""

import pytest
import torch
from mr2_batches import gradients, random_batch, state
from torch._dynamo.utils import counters

from classmargin.mr2 import MR2Loss, margin_cross_entropy, representation_margin

CONFIGURATIONS = {
    "recommended": {},
    "paper": {
        "representation": "pairs",
        "margin_source": "sqnorm",
        "mean_margin": 2.0,
        "label_smoothing": 0.0,
    },
    "release": {"representation": "released", "margin_source": "sqnorm", "norm_order": 5.0},
    "spread, order three": {"margin_source": "spread", "norm_order": 3.0},
    "weight and prior": {"weight": torch.linspace(0.5, 1.5, 5), "log_prior": torch.linspace(-2.0, -1.0, 5)},
    "accumulating": {"accumulate": 2, "margin_source": "spread"},
    "no pull": {"representation_weight": 0.0},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
# The compiler imports parts of torch that use deprecated parts of torch.
from_the_compiler_itself = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def batch_of(size, seed, ignored=0, soft=False):
    batch = random_batch(size, 5, 3, seed, dtype=torch.float32)
    batch.labels[:ignored] = -100
    return batch._replace(labels=torch.softmax(batch.logits.detach(), 1)) if soft else batch


def compare(options, backend, batches, **how):
    """Train eagerly and compiled; values, gradients and state must agree. Return the compiled loss."""
    plain, traced = (MR2Loss.build(5, feature_dim=3, **options) for _ in range(2))
    compiled = torch.compile(traced, fullgraph=True, backend=backend, **how)
    for batch in batches:
        ours, expected = compiled(*batch), plain(*batch)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients(ours, batch), gradients(expected, batch), rtol=1e-4, atol=1e-5)
    for name, value in state(plain).items():
        torch.testing.assert_close(state(traced)[name], value, rtol=1e-5, atol=1e-5)
    return traced


@every_configuration
def test_tracing_the_whole_graph_gives_equal_steps(options):
    """All batches but the first hold ignored rows, which must count nowhere."""
    compare(options, "eager", [batch_of(12, seed, ignored=3 * seed) for seed in range(4)])


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_tracing_with_the_backward_pass_gives_equal_steps(name):
    compare(CONFIGURATIONS[name], "aot_eager", [batch_of(12, seed, ignored=3 * seed) for seed in range(3)])


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_a_smaller_last_batch_makes_at_most_two_graphs(name):
    sizes = [12, 12, 12, 7] * 2 + [5, 9]
    compare(CONFIGURATIONS[name], "eager", [batch_of(size, seed) for seed, size in enumerate(sizes)])
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_any_batch_size_needs_one_graph_when_sizes_are_declared_dynamic():
    with torch._dynamo.config.patch(error_on_recompile=True):
        traced = compare({}, "eager", [batch_of(size, size) for size in (12, 7, 20)], dynamic=True)
    assert traced.statistics.updates.item() == 3
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_soft_labels_are_traced(name):
    compare(CONFIGURATIONS[name], "eager", [batch_of(12, seed, soft=True) for seed in range(2)])


@pytest.mark.parametrize("name", ["recommended", "paper"])
def test_the_feature_size_may_be_met_under_the_compiler(name):
    plain, traced = (MR2Loss.preset(name, 5) for _ in range(2))
    compiled = torch.compile(traced, fullgraph=True, backend="eager")
    for seed in range(3):
        torch.testing.assert_close(compiled(*batch_of(12, seed)), plain(*batch_of(12, seed)), rtol=1e-5, atol=1e-5)
    assert traced.statistics.feature_dim == 3


def test_training_that_began_eagerly_goes_on_compiled():
    plain, moved = MR2Loss(5), MR2Loss(5)
    for seed in range(3):
        assert plain(*batch_of(12, seed)).item() == moved(*batch_of(12, seed)).item()
    compiled = torch.compile(moved, fullgraph=True, backend="eager")
    for seed in range(3, 6):
        torch.testing.assert_close(compiled(*batch_of(12, seed)), plain(*batch_of(12, seed)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved.health.peak_variance, plain.health.peak_variance)


def test_evaluation_is_traced_too_and_leaves_the_state_alone():
    loss = MR2Loss(5, feature_dim=3)
    loss(*batch_of(12, 0))
    loss.eval()
    before = state(loss)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*batch_of(12, 1)), loss(*batch_of(12, 1)), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in state(loss).items())


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
    features = encoder(batch.features.detach())
    expected = MR2Loss(5, feature_dim=4)(head(features), batch.labels, features)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@from_the_compiler_itself
@every_configuration
def test_real_compiler_gives_equal_steps(options):
    compare(options, "inductor", [batch_of(12, seed, ignored=3 * seed) for seed in range(4)])


@pytest.mark.slow
@from_the_compiler_itself
def test_real_compiler_takes_changing_batch_sizes():
    compare({}, "inductor", [batch_of(size, size) for size in (12, 7, 20)], dynamic=True)
