"""Where classmates come from: batch, memory of recent features, closed form through the moments."""

import mr2_naive as naive
import pytest
import torch
from mr2_batches import gradients, history, random_batch, random_batches, same_state, state

from classmargin.mr2 import MR2Loss


def naive_constants(batches, num_classes):
    statistics = naive.moments_statistics(history(batches), num_classes)
    return statistics, naive.mean_spread(statistics), naive.peak_variance(history(batches))


def class_means(batches, num_classes, decay=0.9):
    """Return the moving mean vector of each class, from the whole history."""
    out = {}
    for k in range(num_classes):
        total, weight, age = 0.0, 0.0, 0
        for features, labels in reversed(history(batches)):
            mine = features[labels == k].double()
            total, weight = total + decay**age * mine.sum(0), weight + decay**age * len(mine)
            age += bool(len(mine))
        if weight:
            out[k] = total / weight
    return out


@pytest.mark.parametrize("memory_size", [1, 3])
@pytest.mark.parametrize(("size", "num_classes"), [(24, 4), (10, 30)])
def test_memory_equals_a_ring_of_queues(size, num_classes, memory_size):
    """With 24 rows of 4 classes a batch holds more rows of a class than the ring has places."""
    loss = MR2Loss(num_classes, positives="memory", memory_size=memory_size)
    ring, batches = naive.Ring(memory_size), random_batches(6, size, num_classes, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        _, spread, temperature = naive_constants(batches[:step], num_classes)
        losses = naive.representation_margin_losses(
            batch.features, batch.labels, spread, temperature, ring.queues
        )
        torch.testing.assert_close(terms.representation_margin, losses.mean())
        ours = torch.autograd.grad(terms.representation_margin, batch.features)
        torch.testing.assert_close(ours, torch.autograd.grad(losses.mean(), batch.features))
        ring.store(batch.features, batch.labels)


def test_memory_holds_the_most_recent_features_of_each_class():
    loss = MR2Loss(4, positives="memory", memory_size=3)
    ring = naive.Ring(3)
    for batch in random_batches(7, 10, 4, 2):
        loss(*batch)
        ring.store(batch.features, batch.labels)
    for k in range(4):
        stored = loss.memory.ring[k, : loss.memory.filled[k]].tolist()
        assert sorted(stored) == sorted(row.tolist() for row in ring.queues.get(k, []))


def test_first_batch_with_memory_is_the_batch_form():
    batch = random_batch(24, 4, 3)
    terms = [MR2Loss(4, positives=positives).terms(*batch) for positives in ("batch", "memory")]
    torch.testing.assert_close(terms[0].total, terms[1].total)


def test_memory_gives_positives_to_samples_that_have_none_in_the_batch():
    in_batch, with_memory = MR2Loss(60, positives="batch"), MR2Loss(60, positives="memory")
    for batch in random_batches(30, 16, 60, 3):
        pulled = [
            (torch.autograd.grad(loss(*batch), batch.features)[0].abs().sum(1) > 0).double().mean()
            for loss in (in_batch, with_memory)
        ]
    assert pulled[0] < 0.6
    assert pulled[1] > 0.9


def test_stored_features_carry_no_gradient():
    loss = MR2Loss(4, positives="memory")
    first, second = random_batches(2, 24, 4, 3)
    loss(*first)
    total = loss(*second)
    assert torch.autograd.grad(total, first.features, allow_unused=True)[0] is None


def test_memory_is_a_buffer_of_the_module():
    loss = MR2Loss(4, positives="memory", memory_size=2)
    loss(*random_batch(24, 4, 3))
    assert any(value.shape == (4, 2, 3) for value in loss.state_dict().values())


def test_memory_is_not_touched_without_update():
    loss = MR2Loss(4, positives="memory")
    loss(*random_batch(24, 4, 3))
    before = state(loss)
    loss(*random_batch(24, 4, 3, seed=1), update_statistics=False)
    assert same_state(before, state(loss))


def test_ignored_rows_are_not_remembered():
    plain, ignoring = (MR2Loss(4, positives="memory") for _ in range(2))
    batch = random_batch(24, 4, 3)
    keep = torch.arange(24) % 3 > 0
    plain(batch.logits[keep], batch.labels[keep], batch.features[keep])
    ignoring(batch.logits, batch.labels.masked_fill(~keep, -100), batch.features)
    for name, value in state(plain).items():
        torch.testing.assert_close(state(ignoring)[name], value)


@pytest.mark.parametrize(("size", "num_classes"), [(24, 4), (10, 30)])
def test_moments_equal_the_closed_form(size, num_classes):
    loss = MR2Loss(num_classes, positives="moments")
    batches = random_batches(5, size, num_classes, 3)
    for step, batch in enumerate(batches, 1):
        terms = loss.terms(*batch)
        statistics, spread, temperature = naive_constants(batches[:step], num_classes)
        losses = naive.moment_losses(
            batch.features,
            batch.labels,
            class_means(batches[:step], num_classes),
            {k: entry["spread"] for k, entry in statistics.items()},
            spread,
            temperature,
        )
        torch.testing.assert_close(terms.representation_margin, losses.mean())
        torch.testing.assert_close(
            torch.autograd.grad(terms.representation_margin, batch.features),
            torch.autograd.grad(losses.mean(), batch.features),
        )


def test_moments_use_the_expected_distance_to_a_classmate():
    points = random_batch(12, 1, 3).features
    distances = torch.cdist(points, points).square().mean(1)
    mean = points.mean(0)
    spread = (points - mean).square().sum(1).mean()
    torch.testing.assert_close(distances, (points - mean).square().sum(1) + spread)


@pytest.mark.parametrize("seed", range(5))
def test_moments_lie_below_the_mean_over_single_positives_and_below_the_pair_form(seed):
    """Jensen: ln(1 + e^x) is convex, and the closed form puts the mean distance in."""
    batch = random_batch(30, 4, 3, seed)
    closed = MR2Loss(4, positives="moments", temperature=1.0)
    closed_term = closed.terms(*batch).representation_margin
    exponents = torch.cdist(batch.features, batch.features).square() - 2 * closed.mean_spread
    same = (batch.labels[:, None] == batch.labels).double()
    single = (same * torch.log1p(exponents.exp())).sum(1) / same.sum(1)
    pairs = MR2Loss(4, temperature=1.0).terms(*batch).representation_margin
    assert closed_term < single.mean()
    assert closed_term < pairs


def test_moments_pull_every_sample_with_no_classmate_in_the_batch():
    loss = MR2Loss(20, positives="moments")
    for batch in random_batches(20, 32, 20, 3):
        loss(*batch)
    alone = random_batch(20, 20, 3)._replace(labels=torch.arange(20))
    of_features = gradients(loss(*alone, update_statistics=False), alone)[1]
    assert (of_features.abs().sum(1) > 0).all()


def test_all_three_agree_that_compact_classes_cost_less():
    for positives in ("batch", "memory", "moments"):
        loss = MR2Loss(4, positives=positives)
        batches = random_batches(4, 40, 4, 3)
        for batch in batches:
            loss(*batch)
        last = batches[-1]
        centre = torch.stack([last.features[last.labels == k].mean(0) for k in range(4)])[last.labels]
        compact = last._replace(features=centre + 0.5 * (last.features - centre))
        values = [loss.terms(*b, update_statistics=False).representation_margin for b in (last, compact)]
        assert values[1] < values[0], positives
