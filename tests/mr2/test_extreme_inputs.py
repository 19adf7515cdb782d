"""Singletons, empty batches, zeros, huge and broken values: finite, and a zero that keeps the graph."""

import math

import numpy as np
import pytest
import torch
from mr2_batches import MR2Batch, gradients, random_batch, random_batches, same_state, state

from classmargin.mr2 import MR2Loss

pytestmark = pytest.mark.usefixtures("either_table")

CONFIGURATIONS = {
    "default": {},
    "paper": {"estimator": "batch", "temperature": 1.0, "representation_weight": 0.5, "mean_margin": 2.0},
    "memory": {"positives": "memory"},
    "moments": {"positives": "moments"},
    "spread": {"margin_source": "spread"},
    "order five": {"norm_order": 5.0},
    "max norm": {"norm_order": math.inf},
    "warm-up": {"warmup_steps": 2},
    "weighted": {"weight": torch.linspace(0.5, 1.5, 4)},
}
every_configuration = pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)


def batch_of(labels, features=None, dim=3, dtype=torch.float32) -> MR2Batch:
    labels = torch.tensor(labels, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    if features is None:
        features = torch.randn(len(labels), dim, generator=generator)
    logits = torch.randn(len(labels), 4, generator=generator)
    return MR2Batch(logits.to(dtype).requires_grad_(), labels, features.to(dtype).requires_grad_())


def step(loss, batch, **options):
    """Return the terms after checking that loss, gradient, state and margins are finite."""
    terms = loss.terms(*batch, **options)
    assert terms.total.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients(terms.total, batch))
    assert all(buffer.isfinite().all() for buffer in loss.buffers())
    assert loss.class_margins.isfinite().all()
    assert loss.class_margins.min() > 0
    return terms


SITUATIONS = {
    "one sample": batch_of([2]),
    "all different": batch_of([0, 1, 2, 3]),
    "all of one class": batch_of([1] * 8),
    "zero features": batch_of([0, 1, 1, 3], torch.zeros(4, 3)),
    "equal features": batch_of([0, 1, 1, 3], torch.full((4, 3), 7.0)),
    "features of one class zero": batch_of([0, 0, 1, 1], torch.tensor([[0.0], [0.0], [1.0], [2.0]])),
    "one feature": batch_of([0, 0, 1, 1], dim=1),
    "tiny features": batch_of([0, 0, 1, 2], 1e-18 * torch.rand(4, 3)),
    "huge features": batch_of([0, 0, 1, 2], 1e9 * torch.rand(4, 3)),
    "one enormous row": batch_of([0, 0, 1, 1], torch.tensor([[1e9], [0.0], [1e-9], [0.0]])),
    "one enormous class": batch_of(
        [0, 0, 1, 1, 2, 3], torch.tensor([[1e8], [-1e8], [1.0], [2.0], [1.0], [2.0]])
    ),
}


@every_configuration
@pytest.mark.parametrize("situation", SITUATIONS)
def test_first_and_later_steps_are_finite(situation, options):
    loss = MR2Loss(4, collapse_check_interval=0, **options)
    for _ in range(3):
        step(loss, SITUATIONS[situation])


@every_configuration
@pytest.mark.parametrize("situation", SITUATIONS)
def test_steps_after_ordinary_training_are_finite(situation, options):
    batch = SITUATIONS[situation]
    loss = MR2Loss(4, collapse_check_interval=0, **options)
    for ordinary in random_batches(2, 16, 4, batch.features.shape[1], dtype=torch.float32):
        step(loss, ordinary)
    step(loss, batch)
    step(loss, random_batch(16, 4, batch.features.shape[1], seed=9, dtype=torch.float32))


@every_configuration
def test_margins_stay_within_their_limits_in_every_situation(options):
    for situation in SITUATIONS.values():
        loss = MR2Loss(4, margin_limits=(0.5, 1.6), collapse_check_interval=0, **options)
        loss(*situation)
        ratio = loss.class_margins / loss.mean_margin
        assert ratio.min() >= 0.5 - 1e-5
        assert ratio.max() <= 1.6 + 1e-5
        assert ratio.mean().item() == pytest.approx(1.0, abs=1e-4)


def test_sample_without_classmate_adds_zero_to_the_representation_term():
    terms = step(MR2Loss(4), batch_of([0, 1, 2, 3]))
    assert terms.representation_margin.item() == 0.0
    assert terms.total.item() == terms.logit_margin.item()


@every_configuration
def test_empty_batch_gives_a_zero_that_keeps_the_graph_and_the_averages(options):
    loss = MR2Loss(4, feature_dim=3, collapse_check_interval=0, **options)
    loss(*batch_of([0, 0, 1, 2]))
    before = {name: value for name, value in state(loss).items() if "updates" not in name}
    terms = step(loss, batch_of([]))
    assert terms.total.item() == terms.logit_margin.item() == terms.representation_margin.item() == 0.0
    assert same_state({name: value for name, value in state(loss).items() if "updates" not in name}, before)


@every_configuration
def test_empty_first_batch_is_harmless(options):
    loss, reference = (MR2Loss(4, collapse_check_interval=0, **options) for _ in range(2))
    step(loss, batch_of([]))
    assert not loss.statistics.seen.any()
    batch = batch_of([0, 0, 1, 2, 2])
    if "warmup_steps" not in options:
        torch.testing.assert_close(step(loss, batch).total, step(reference, batch).total)


@pytest.mark.parametrize(
    ("name", "steps"), [(name, 1000 if name == "default" else 40) for name in CONFIGURATIONS]
)
def test_class_absent_for_long_keeps_its_statistics(name, steps):
    loss = MR2Loss(4, collapse_check_interval=0, **CONFIGURATIONS[name])
    loss(*batch_of([0, 0, 1, 1, 2, 2, 3, 3]))
    others = batch_of([0, 0, 1, 1, 2])
    last = loss.statistics.class_sqnorm[3].item()
    for _ in range(steps):
        loss(*others)
    assert loss.statistics.class_sqnorm[3].item() == last
    step(loss, batch_of([3, 3, 0]))
    assert loss.class_margins.mean().item() == pytest.approx(loss.mean_margin, rel=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@every_configuration
def test_broken_features_raise_an_error_that_names_them_and_leave_the_state_alone(options, value):
    loss = MR2Loss(4, **options)
    loss(*batch_of([0, 0, 1, 2]))
    before = state(loss)
    features = batch_of([0, 1, 1, 3]).features.detach().clone()
    features[2, 1] = value
    with pytest.raises(ValueError, match=r"features must be finite, got NaN or inf in 1 of 4 rows"):
        loss(*batch_of([0, 1, 1, 3], features))
    assert same_state(state(loss), before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@every_configuration
def test_without_checks_broken_features_never_poison_the_state(options, value):
    loss = MR2Loss(4, checks=False, collapse_check_interval=0, **options)
    loss(*batch_of([0, 0, 1, 2]))
    features = batch_of([0, 1, 1, 3]).features.detach().clone()
    features[2, 1] = value
    with np.errstate(all="ignore"):
        loss(*batch_of([0, 1, 1, 3], features))  # this loss may be anything
    assert all(buffer.isfinite().all() for buffer in loss.buffers())
    step(loss, batch_of([0, 0, 1, 1, 2, 3]))


def test_without_checks_the_other_rows_of_a_broken_batch_still_count():
    loss, reference = MR2Loss(4, checks=False), MR2Loss(4)
    batch = batch_of([0, 1, 1, 3])
    features = batch.features.detach().clone()
    features[2, 1] = math.nan
    with np.errstate(all="ignore"):
        loss(batch.logits, batch.labels, features)
    keep = torch.tensor([True, True, False, True])
    reference(batch.logits[keep], batch.labels[keep], features[keep])
    for name, value in state(reference.statistics).items():
        torch.testing.assert_close(state(loss.statistics)[name], value)


def test_broken_features_of_ignored_rows_are_ignored():
    features = batch_of([0, 1, 1, 3]).features.detach().clone()
    features[2, 1] = math.nan
    step(MR2Loss(4), batch_of([0, 1, -100, 3], features))


@pytest.mark.parametrize("checks", [True, False])
@every_configuration
def test_finite_features_whose_square_overflows_never_poison_the_state(options, checks):
    """1e25 is finite in float32, its square is not."""
    loss = MR2Loss(4, checks=checks, collapse_check_interval=0, **options)
    loss(*batch_of([0, 0, 1, 2]))
    batch = batch_of([0, 1, 1, 3], torch.tensor([[1.0, 2.0, 3.0]] * 3 + [[1e25, 0.0, 0.0]]))
    loss(*batch)  # this loss may be infinite
    assert all(buffer.isfinite().all() for buffer in loss.buffers())
    step(loss, batch_of([0, 0, 1, 1, 2, 3]))
