"""Feature collapse: numbers to watch, and one warning when everything shrinks to a point."""

import warnings

import pytest
import torch
from mr2_batches import random_batch, state
from torch import nn

from classmargin.mr2 import FeatureCollapseWarning, MR2Loss


def feed(loss, scales, seed=0):
    batch = random_batch(40, 4, 3, seed, dtype=torch.float32)
    for scale in scales:
        loss(batch.logits, batch.labels, scale * batch.features)
    return loss


def shrinking(steps=100, rate=0.8):
    return [rate**step for step in range(steps)]


def test_shrinking_features_warn_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        feed(MR2Loss(4, collapse_check_interval=10), shrinking())
    assert [warning.category for warning in caught] == [FeatureCollapseWarning]


def test_warning_names_the_numbers_and_what_to_change():
    with pytest.warns(FeatureCollapseWarning) as caught:
        feed(MR2Loss(4, representation_weight=0.5, collapse_check_interval=10), shrinking())
    text = str(caught[0].message)
    for words in ("mean_spread=", "representation_weight (now 0.5)", "warmup_steps", "temperature"):
        assert words in text


def test_steady_features_do_not_warn():
    feed(MR2Loss(4, collapse_check_interval=5), [1.0] * 100)


def test_growing_features_do_not_warn():
    feed(MR2Loss(4, collapse_check_interval=5), [1.1**step for step in range(60)])


def test_compact_classes_far_apart_do_not_warn():
    """Neural collapse, spread within to zero and distance between kept, is wanted."""
    loss = MR2Loss(4, collapse_check_interval=5)
    batch = random_batch(40, 4, 3, dtype=torch.float32, gradients=False)
    centres = 5 * torch.eye(4, 3)[batch.labels]
    for scale in shrinking():
        loss(batch.logits.requires_grad_(), batch.labels, centres + scale * batch.features)
    assert loss.mean_spread < 1e-4
    assert loss.spread_ratio < 1e-4
    assert loss.collapse_ratio > 0.5


def test_interval_zero_never_looks():
    feed(MR2Loss(4, collapse_check_interval=0), shrinking())


def test_collapse_ratio_falls_from_one_with_the_variance():
    loss = MR2Loss(4, collapse_check_interval=0, ema_decay=0.0)
    assert loss.collapse_ratio.item() == 1.0
    assert feed(loss, [2.0]).collapse_ratio.item() == pytest.approx(1.0)
    assert feed(loss, [0.2]).collapse_ratio.item() == pytest.approx(0.01, rel=1e-3)
    assert feed(loss, [4.0]).collapse_ratio.item() == pytest.approx(1.0)


def test_all_features_at_one_point_have_ratio_zero():
    loss = MR2Loss(4, collapse_check_interval=0, ema_decay=0.0)
    assert feed(loss, [1.0, 0.0]).collapse_ratio.item() == pytest.approx(0.0, abs=1e-6)


def test_spread_ratio_is_free_of_scale_and_grows_when_classes_overlap():
    near, wide = MR2Loss(4), MR2Loss(4)
    batch = random_batch(400, 4, 3, dtype=torch.float32, gradients=False)
    centres = 5 * torch.eye(4, 3)[batch.labels]
    near(batch.logits, batch.labels, 7 * (centres + batch.features))
    wide(batch.logits, batch.labels, centres + 20 * batch.features)
    assert near.spread_ratio < 0.2 < 1.0 < wide.spread_ratio
    again = MR2Loss(4)
    again(batch.logits, batch.labels, centres + batch.features)
    torch.testing.assert_close(near.spread_ratio, again.spread_ratio, rtol=1e-4, atol=1e-6)


def test_peak_is_part_of_the_saved_state():
    loss = feed(MR2Loss(4, collapse_check_interval=0, ema_decay=0.0), [1.0, 0.2])
    copy = MR2Loss(4, ema_decay=0.0)
    copy.load_state_dict(state(loss))
    assert copy.collapse_ratio.item() == loss.collapse_ratio.item() < 0.05


def train(loss, steps, *, lr, scale=1.0, seed=0):
    """Train a small network on four overlapping clouds, full batch; return its last accuracy."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    labels = torch.arange(128) % 4
    inputs = scale * (torch.eye(4, 16)[labels] + 0.5 * torch.randn(128, 16, generator=generator))
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    head = nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=lr, momentum=0.9)
    for _ in range(steps):
        features = encoder(inputs)
        optimizer.zero_grad()
        loss(head(features), labels, features).backward()
        optimizer.step()
    return (head(features).argmax(1) == labels).float().mean().item()


def test_default_loss_learns_what_cross_entropy_learns():
    erm = MR2Loss(4, representation_weight=0.0, margin_source="uniform")
    assert train(erm, 250, lr=0.03) > 0.95
    loss = MR2Loss.preset("recommended", 4)
    assert train(loss, 250, lr=0.03) > 0.95
    assert loss.collapse_ratio > 0.01


def test_training_with_far_too_large_a_weight_collapses_and_says_so():
    loss = MR2Loss.preset("paper", 4, representation_weight=50.0, collapse_check_interval=10)
    with pytest.warns(FeatureCollapseWarning):
        accuracy = train(loss, 100, lr=1e-3, scale=3.0)
    assert accuracy < 0.5
    assert loss.collapse_ratio < 1e-3
