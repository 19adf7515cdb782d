"""One row, one class, equal, empty, ignored, huge, tiny and half-precision batches: finite, and a zero that keeps the graph."""

import math

import pytest
import torch
from mr2_batches import MR2Batch, gradients, random_batch, random_batches, same_state, state

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.filterwarnings("ignore::classmargin.mr2.FeatureCollapseWarning")

CONFIGURATIONS = {
    "recommended": {},
    "spread": {"margin_source": "spread"},
    "r²": {"margin_source": "sqnorm", "margin_power": 1.0},
    "order five": {"margin_source": "sqnorm", "norm_order": 5.0},
    "max norm": {"margin_source": "sqnorm", "norm_order": math.inf},
    "weighted": {"weight": torch.linspace(0.5, 1.5, 4)},
    "paper": {"representation": "pairs", "margin_source": "sqnorm", "mean_margin": 2.0},
    "release": {"representation": "released", "margin_source": "sqnorm", "norm_order": 5.0},
    "no pull": {"representation_weight": 0.0, "margin_source": "sqnorm"},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
HALVES = [torch.float16, torch.bfloat16]


def batch_of(labels, features=None, dim=3) -> MR2Batch:
    labels = torch.tensor(labels, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(len(labels), dim, generator=generator)
    features = noise if features is None else torch.as_tensor(features).clone()
    logits = torch.randn(len(labels), 4, generator=generator)
    return MR2Batch(logits.requires_grad_(), labels, features.requires_grad_())


def step(loss, batch, **options):
    """Return the terms after checking that loss, gradient, state and margins are finite."""
    terms = loss.terms(*batch, **options)
    assert terms.total.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(terms.total, batch))
    assert all(buffer.isfinite().all() for buffer in loss.buffers())
    assert loss.class_margins.isfinite().all()
    assert loss.class_margins.min() >= 0
    return terms


NOISE = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
SITUATIONS = {
    "one sample": batch_of([2]),
    "all different": batch_of([0, 1, 2, 3]),
    "all of one class": batch_of([1] * 8),
    "zero features": batch_of([0, 1, 1, 3], torch.zeros(4, 3)),
    "equal features": batch_of([0, 1, 1, 3], torch.full((4, 3), 7.3)),
    "many equal features": batch_of([0, 1, 2, 3] * 300, torch.full((1200, 3), 7.3)),
    "equal but for one unit": batch_of([0, 1, 1, 3], torch.tensor([[7.3]] * 3 + [[7.3000007]])),
    "features of one class zero": batch_of([0, 0, 1, 1], torch.tensor([[0.0], [0.0], [1.0], [2.0]])),
    "one feature": batch_of([0, 0, 1, 1], dim=1),
    "tiny features": batch_of([0, 0, 1, 2], 1e-18 * NOISE),
    "smallest features": batch_of([0, 0, 1, 2], 1e-44 * NOISE),
    "huge features": batch_of([0, 0, 1, 2], 1e9 * NOISE),
    "one enormous row": batch_of([0, 0, 1, 1], torch.tensor([[1e9], [0.0], [1e-9], [0.0]])),
    "one enormous class": batch_of([0, 0, 1, 1, 2, 3], torch.tensor([[1e8], [-1e8], [1.0], [2.0], [1.0], [2.0]])),
    "far from the origin": batch_of([0, 0, 1, 2], 1e6 + NOISE),
}
every_situation = pytest.mark.parametrize("situation", SITUATIONS)


@every_configuration
@every_situation
def test_first_and_later_steps_are_finite(situation, options):
    loss = MR2Loss.build(4, **options)
    for _ in range(3):
        step(loss, SITUATIONS[situation])


@every_configuration
@every_situation
def test_steps_after_ordinary_training_are_finite(situation, options):
    batch = SITUATIONS[situation]
    loss = MR2Loss.build(4, **options)
    for ordinary in random_batches(2, 16, 4, batch.features.shape[1], dtype=torch.float32):
        step(loss, ordinary)
    step(loss, batch)
    step(loss, random_batch(16, 4, batch.features.shape[1], seed=9, dtype=torch.float32))


@every_situation
def test_situations_in_evaluation_mode_are_finite(situation):
    batch = SITUATIONS[situation]
    loss = MR2Loss(4).eval()
    assert loss(*batch).isfinite()
    assert all(term.isfinite() for term in loss.terms(*batch))


@pytest.mark.parametrize("situation", ["one sample", "zero features", "equal features", "tiny features"])
def test_features_without_variance_get_no_gradient(situation):
    batch = SITUATIONS[situation]
    if situation == "tiny features":
        batch = batch_of([0, 0, 1, 2], 1e-14 * NOISE)
    _, of_features = gradients(MR2Loss(4)(*batch), batch)
    assert of_features.abs().max() == 0.0


def test_margins_stay_above_a_tenth_of_their_mean():
    """A class of one sample has spread 0, and a margin of 0 would divide by it."""
    loss = MR2Loss(4, margin_source="spread", mean_margin=2.0)
    step(loss, SITUATIONS["one enormous class"])
    assert loss.class_margins.min().item() == pytest.approx(0.2)


def test_sample_without_classmate_adds_zero_to_the_pairs():
    terms = step(MR2Loss(4, representation="pairs"), batch_of([0, 1, 2, 3]))
    assert terms.representation_margin.item() == 0.0
    assert terms.total.item() == terms.logit_margin.item()


# --- nothing that counts ------------------------------------------------------------------------------------------


@every_configuration
@pytest.mark.parametrize("labels", [[], [-100] * 5], ids=["empty", "all ignored"])
def test_nothing_that_counts_gives_a_zero_that_keeps_the_graph_and_the_averages(options, labels):
    loss = MR2Loss.build(4, feature_dim=3, **options)
    loss(*batch_of([0, 0, 1, 2]))
    before, batch = loss.statistics.averages.clone(), batch_of(labels)
    terms = step(loss, batch)
    assert terms.total.item() == terms.logit_margin.item() == terms.representation_margin.item() == 0.0
    assert all(gradient.abs().sum() == 0 for gradient in gradients(loss(*batch), batch))
    assert torch.equal(loss.statistics.averages, before)


@every_configuration
def test_an_empty_first_batch_is_harmless(options):
    loss, reference = MR2Loss.build(4, **options), MR2Loss.build(4, **options)
    step(loss, batch_of([]))
    assert not loss.statistics.seen.any()
    batch = batch_of([0, 0, 1, 2, 2])
    torch.testing.assert_close(step(loss, batch).total, step(reference, batch).total)


@every_configuration
def test_a_class_absent_for_long_keeps_its_statistics(options):
    loss = MR2Loss.build(4, **options)
    loss(*batch_of([0, 0, 1, 1, 2, 2, 3, 3]))
    others, before = batch_of([0, 0, 1, 1, 2]), loss.statistics.averages[3].clone()
    for _ in range(300):
        loss(*others)
    assert torch.equal(loss.statistics.averages[3], before)
    step(loss, batch_of([3, 3, 0]))


# --- broken values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e25])
@every_configuration
def test_broken_features_are_named_and_leave_the_statistics_alone(options, value):
    """1e25 is finite in float32, its square is not."""
    loss = MR2Loss.build(4, **options)
    loss(*batch_of([0, 0, 1, 2]))
    before = state(loss.statistics)
    broken = batch_of([0, 1, 1, 3]).features.detach().clone()
    broken[2, 1] = value
    with pytest.raises(ValueError, match="features must be finite, got NaN or inf in the last batch"):
        loss(*batch_of([0, 1, 1, 3], broken))
    assert same_state(state(loss.statistics), before)
    step(loss, batch_of([0, 0, 1, 1, 2, 3]))


# --- half precision -----------------------------------------------------------------------------------------------


@every_configuration
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_features_of_norm_ten_thousand_give_finite_losses(options, dtype):
    loss = MR2Loss.build(4, **options)
    for batch in random_batches(3, 24, 4, 8):
        features = batch.features.detach() * (1e4 / batch.features.detach().norm(dim=1).mean())
        half = batch._replace(
            logits=batch.logits.detach().to(dtype).requires_grad_(),
            features=features.to(dtype).requires_grad_(),
        )
        step(loss, half)


@pytest.mark.parametrize("dtype", HALVES)
@every_situation
def test_half_precision_in_every_situation_is_finite(situation, dtype):
    batch = SITUATIONS[situation]
    features = batch.features.detach().clamp(-6e4, 6e4).to(dtype).requires_grad_()
    half = batch._replace(logits=batch.logits.detach().to(dtype).requires_grad_(), features=features)
    loss = MR2Loss(4, margin_source="spread")
    for _ in range(2):
        step(loss, half)


def test_large_half_precision_logits_do_not_overflow():
    batch = random_batch(24, 5, 3, dtype=torch.float32)
    logits = (batch.logits.detach() * 1e4).clamp(-6e4, 6e4).half().requires_grad_()
    total = MR2Loss(5, mean_margin=0.05)(logits, batch.labels, batch.features.half())
    assert total.isfinite()
    assert torch.autograd.grad(total, logits)[0].isfinite().all()
