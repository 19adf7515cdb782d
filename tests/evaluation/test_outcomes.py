import numpy as np
import pytest

from classmargin.evaluation.headlines import (
    OutcomeTable,
    block_sizes,
    deal,
    outcome_table,
    resample,
    settled_shares,
)


def random_outcomes(runs, seed=0, num_classes=4, samples=300):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, samples)
    return labels, rng.random((samples, runs)) < 0.7


@pytest.mark.parametrize("runs", [1, 2, 3, 6])
def test_accuracies_of_the_table_are_those_of_the_samples(runs):
    labels, correct = random_outcomes(runs)
    table = outcome_table(labels, correct, 5)
    expected = np.array([correct[labels == k].mean(axis=0) for k in range(4)])
    np.testing.assert_allclose(table.class_accuracy()[:4], expected)
    assert np.isnan(table.class_accuracy()[4]).all()
    np.testing.assert_array_equal(table.n, np.bincount(labels, minlength=5))


@pytest.mark.parametrize("runs", [1, 2, 4])
def test_dealing_uses_every_sample_once(runs):
    rng = np.random.default_rng(0)
    table = outcome_table(*random_outcomes(runs), 5)
    sizes = block_sizes(table.n, 6, rng)
    np.testing.assert_array_equal(sizes.sum(axis=1), table.n)
    assert (sizes.max(axis=1) - sizes.min(axis=1) <= 1).all()
    dealt = deal(table, sizes, rng)
    np.testing.assert_array_equal(dealt.sum(axis=1), table.counts)
    np.testing.assert_array_equal(dealt.sum(axis=2), sizes)


def test_dealing_is_fair():
    table = OutcomeTable(np.array([[30, 10]]), np.array([[[0.0], [1.0]]]))
    rng = np.random.default_rng(0)
    dealt = np.stack([deal(table, np.array([[10, 30]]), rng)[0, 0, 1] for _ in range(4000)])
    assert dealt.mean() == pytest.approx(2.5, abs=0.08)
    # Hypergeometric, not binomial: the finite population correction (40 - 10) / (40 - 1).
    assert dealt.var() == pytest.approx(10 * 0.25 * 0.75 * 30 / 39, rel=0.1)


def test_resampling_keeps_class_sizes_and_has_the_binomial_variance():
    table = OutcomeTable(np.array([[40, 160]] * 3), np.broadcast_to([[0.0], [1.0]], (3, 2, 1)))
    rng = np.random.default_rng(0)
    copies = resample(table, block_sizes(table.n, 1, rng), 5000, rng)
    assert copies.shape == (5000, 3, 1, 2)
    np.testing.assert_array_equal(copies.sum(axis=(2, 3)), 200)
    right = copies[..., 0, 1]
    assert right.mean() == pytest.approx(160, abs=0.3)
    assert right.var() == pytest.approx(200 * 0.8 * 0.2, rel=0.05)


def test_paired_copies_keep_the_correlation_of_the_models():
    labels = np.zeros(1000, dtype=np.int64)
    correct = np.zeros((1000, 2), dtype=bool)
    correct[:700] = True  # both right or both wrong: the difference never varies
    table = outcome_table(labels, correct, 1)
    rng = np.random.default_rng(0)
    copies = resample(table, block_sizes(table.n, 1, rng), 200, rng)
    right = np.einsum("bkqc,kcm->bm", copies, table.patterns)
    np.testing.assert_array_equal(right[:, 0], right[:, 1])
    assert right[:, 0].std() > 0


def test_settled_shares_have_the_variance_of_true_accuracies():
    rng = np.random.default_rng(0)
    true = rng.normal(0.7, 0.05, 3000)
    n = np.full(3000, 30)  # noise of 8 points hides a spread of 5
    right = rng.binomial(n, np.clip(true, 0, 1))
    table = OutcomeTable(np.stack([n - right, right], axis=1), np.broadcast_to([[0.0], [1.0]], (3000, 2, 1)))
    assert (right / n).std() > 0.09
    assert settled_shares(table)[:, 1].std() == pytest.approx(0.05, abs=0.005)
    np.testing.assert_allclose(settled_shares(table).sum(axis=1), 1)


def test_settled_shares_of_large_classes_are_the_observed_ones():
    counts = np.array([[20_000, 80_000], [50_000, 50_000], [70_000, 30_000]])
    table = OutcomeTable(counts, np.broadcast_to([[0.0], [1.0]], (3, 2, 1)))
    np.testing.assert_allclose(settled_shares(table), counts / 100_000, atol=1e-4)


def test_settled_shares_are_shares_even_when_all_is_right_or_a_class_is_absent():
    counts = np.array([[0, 5], [0, 5], [0, 0]])
    table = OutcomeTable(counts, np.broadcast_to([[0.0], [1.0]], (3, 2, 1)))
    shares = settled_shares(table)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(shares[:2], [[0, 1], [0, 1]])
