"""Signs of trouble: collapse warns once and early, NaN is named, healthy runs are silent, and nothing is read too often."""

import copy
import math
import warnings

import mr2_naive as naive
import pytest
import torch
from mr2_batches import random_batch, same_state, state
from sklearn.datasets import load_digits
from torch import nn

from classmargin.mr2 import FeatureCollapseWarning, MR2Loss
from classmargin.mr2.health import COLLAPSE_FRACTION, READ_EVERY, Health


def feed(loss, scales, seed=0):
    batch = random_batch(40, 4, 3, seed, dtype=torch.float32)
    for scale in scales:
        loss(batch.logits, batch.labels, (scale * batch.features).detach().requires_grad_())
    return loss


def shrinking(steps=60, rate=0.8):
    return [rate**step for step in range(steps)]


# --- collapse -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paper", "release", "recommended"])
def test_shrinking_features_warn_once(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        feed(MR2Loss.preset(name, 4), shrinking())
    assert [warning.category for warning in caught] == [FeatureCollapseWarning]


def test_the_warning_names_the_numbers_what_to_change_and_the_line_of_the_user():
    with pytest.warns(FeatureCollapseWarning) as caught:
        feed(MR2Loss.preset("paper", 4), shrinking())
    text = str(caught[0].message)
    for words in (
        "total variance is 0.0",
        "of its peak",
        "representation_weight (now 0.5)",
        "recommended settings",
    ):
        assert words in text
    assert caught[0].filename == __file__


def test_the_warning_comes_as_soon_as_the_averaged_variance_is_a_tenth_of_its_peak():
    loss, variance, peak = MR2Loss.preset("paper", 4), 0.0, 0.0
    batch = random_batch(40, 4, 3, dtype=torch.float32)
    base = naive.total_variance(batch.features.detach())
    for scale in [1.0] * 20 + shrinking():
        variance = 0.9 * variance + 0.1 * base * scale**2
        peak = max(peak, variance)
        if variance / peak < COLLAPSE_FRACTION:
            break
        feed(loss, [scale])  # any warning would be an error here
    with pytest.warns(FeatureCollapseWarning):
        feed(loss, [scale])


@pytest.mark.parametrize("name", ["paper", "recommended"])
@pytest.mark.parametrize(
    "scales",
    [[1.0] * 100, [1.1**step for step in range(60)], [1.0, 3.0, 0.5] * 30, [1.0] * 5 + [0.01] + [1.0] * 20],
    ids=["steady", "growing", "changing", "one small batch"],
)
def test_healthy_runs_are_silent(name, scales):
    feed(MR2Loss.preset(name, 4), scales)


def test_compact_classes_far_apart_are_healthy():
    """Neural collapse, spread within to zero and distance between kept, is wanted."""
    loss = MR2Loss.preset("paper", 4)
    batch = random_batch(40, 4, 3, dtype=torch.float32)
    centres = 5 * torch.eye(4, 3)[batch.labels]
    for scale in shrinking(100):
        loss(batch.logits, batch.labels, centres + scale * batch.features)
    assert loss.mean_spread < 1e-3
    assert loss.collapse_ratio > 0.5


def test_without_a_pull_nobody_is_warned_of_it():
    feed(MR2Loss(4, representation_weight=0.0), shrinking())


def test_collapse_ratio_follows_the_averaged_variance_over_its_peak():
    loss = MR2Loss(4)
    assert loss.collapse_ratio.item() == 1.0
    feed(loss, [2.0])
    assert loss.collapse_ratio.item() == pytest.approx(1.0)
    base = naive.total_variance(random_batch(40, 4, 3).features.detach())
    assert loss.health.latest.item() == pytest.approx(4 * base, rel=1e-5)
    assert loss.health.variance.item() == pytest.approx(0.4 * base, rel=1e-5)
    feed(loss, [0.0])
    assert loss.collapse_ratio.item() == pytest.approx(0.9, rel=1e-5)


def test_the_peak_is_part_of_the_saved_state():
    loss = feed(MR2Loss(4), [1.0] * 5 + [0.0] * 5)
    twin = MR2Loss(4)
    twin.load_state_dict(state(loss))
    assert twin.collapse_ratio.item() == loss.collapse_ratio.item() < 0.7


def train(loss, steps, *, lr, scale=1.0):
    """Train a small network on four overlapping clouds, full batch; return its last accuracy."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = torch.arange(128) % 4
    inputs = scale * (torch.eye(4, 16)[labels] + 0.5 * torch.randn(128, 16, generator=generator))
    encoder, head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=lr, momentum=0.9)
    for _ in range(steps):
        features = encoder(inputs)
        optimizer.zero_grad()
        loss(head(features), labels, features).backward()
        optimizer.step()
    return (head(features).argmax(1) == labels).float().mean().item()


@pytest.mark.parametrize(("weight", "lr", "accuracy"), [(1.0, 0.03, 0.95), (50.0, 6e-3, 0.7)])
def test_the_recommended_loss_does_not_collapse_even_at_a_weight_far_too_large(weight, lr, accuracy):
    loss = MR2Loss(4, representation_weight=weight)
    assert train(loss, 250, lr=lr) > accuracy
    assert loss.collapse_ratio > 0.5


def test_the_printed_loss_at_a_weight_far_too_large_collapses_and_says_so():
    loss = MR2Loss.preset("paper", 4, representation_weight=50.0)
    with pytest.warns(FeatureCollapseWarning):
        accuracy = train(loss, 100, lr=1e-3, scale=3.0)
    assert accuracy < 0.5
    assert loss.collapse_ratio < 1e-2


def train_on_digits(loss, *, scale, lr, epochs=10, size=64):
    """Train a small network without normalisation on raw pixels; return its accuracy and the step of the first warning."""
    digits = load_digits()
    inputs, labels = torch.tensor(scale * digits.data[:1000]).float(), torch.tensor(digits.target[:1000])
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    head, warned, steps = nn.Linear(32, 10), None, epochs * (1000 // size)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=lr, momentum=0.9)
    for step in range(steps):
        rows = torch.randint(1000, (size,))
        features = encoder(inputs[rows])
        optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss(head(features), labels[rows], features).backward()
        warned = step if caught and warned is None else warned
        optimizer.step()
    accuracy = (head(encoder(inputs)).argmax(1) == labels).float().mean().item()
    return accuracy, None if warned is None else warned / steps


@pytest.mark.parametrize(("scale", "lr"), [(1.0, 0.01), (0.5, 0.02)])
def test_a_run_that_the_printed_loss_ruins_is_warned_of_in_its_first_quarter(scale, lr):
    """Raw pixels, no normalisation, pairs in raw features: what ruins a model, and what the recommended loss survives."""
    accuracy, warned = train_on_digits(MR2Loss.preset("paper", 10), scale=scale, lr=lr)
    assert accuracy < 0.2
    assert warned <= 0.25
    accuracy, warned = train_on_digits(MR2Loss(10), scale=scale, lr=lr)
    assert accuracy > 0.95
    assert warned is None


# --- NaN and targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recommended", "paper", "release"])
def test_nan_raises_at_once_on_the_cpu_and_training_can_go_on(name):
    loss, batch = MR2Loss.preset(name, 4), random_batch(20, 4, 3, dtype=torch.float32)
    loss(*batch)
    broken = batch.features.detach().clone()
    broken[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"features must be finite.*class statistics have not taken them in"):
        loss(batch.logits, batch.labels, broken)
    assert loss.health.variance.isfinite()
    assert loss(*batch).isfinite()


def test_nan_in_the_last_batch_before_a_reading_is_told_on_an_accelerator(monkeypatch):
    """Between readings nothing is said, and nothing of it has entered the statistics."""
    loss, batch = MR2Loss(4), random_batch(20, 4, 3, dtype=torch.float32)
    loss(*batch)
    before = state(loss.statistics)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Health, "tick", lambda self, weight: None)  # no reading is due
        total = loss(batch.logits, batch.labels, batch.features * math.nan)
    assert total.isnan()
    assert same_state({**state(loss.statistics), "updates": before["updates"]}, before)
    with pytest.raises(ValueError, match="features must be finite"):
        loss.health.read(1.0)


def test_bad_targets_are_told_where_values_cannot_be_checked_before():
    health = Health()
    health.bad_targets.fill_(True)
    with pytest.raises(ValueError, match="labels given as probabilities must be rows >= 0 that sum to 1"):
        health.read(1.0)


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch):
    """Count the readings of the signs."""
    times = []
    monkeypatch.setattr(Health, "read", lambda self, weight: times.append(weight))
    return times


def test_the_cpu_reads_at_every_step(reads):
    feed(MR2Loss(4), [1.0] * 3)
    assert reads == [1.0] * 3


class Elsewhere:
    """Stands for a buffer on an accelerator."""

    device = torch.device("cuda")


def test_an_accelerator_reads_every_so_many_steps(reads, monkeypatch):
    health = Health()
    del health._buffers["variance"]
    health.__dict__["variance"] = Elsewhere()
    for _ in range(3 * READ_EVERY):
        health.tick(0.5)
    assert reads == [0.5] * 3


def test_the_meta_device_and_evaluation_read_nothing(reads):
    loss = MR2Loss(4, feature_dim=3).to("meta")
    loss(*(part.to("meta") for part in random_batch(20, 4, 3, dtype=torch.float32)))
    MR2Loss(4).eval()(*random_batch(20, 4, 3))
    assert reads == []


def test_nothing_is_read_while_compiling_and_reading_between_steps_finds_the_signs():
    torch._dynamo.reset()
    loss = MR2Loss.preset("paper", 4, 3)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    feed(compiled, shrinking(40))  # neither a warning nor a graph break
    assert loss.collapse_ratio < COLLAPSE_FRACTION
    with pytest.warns(FeatureCollapseWarning):
        copy.deepcopy(loss).health.read(0.5)
    batch = random_batch(40, 4, 3, dtype=torch.float32)
    compiled(batch.logits, batch.labels, (batch.features * math.nan).detach().requires_grad_())
    with pytest.raises(ValueError, match="features must be finite"):
        loss.health.read(0.5)
    torch._dynamo.reset()


def test_following_keeps_the_flag_on_the_device():
    health = Health()
    assert health.follow(torch.tensor(2.0)).item() is True
    for value in (math.nan, math.inf):
        assert health.follow(torch.tensor(value)).item() is False
        assert health.variance.item() == health.peak_variance.item() == pytest.approx(0.2)
