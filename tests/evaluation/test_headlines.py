import numpy as np
import pytest

from classmargin.evaluation.class_metrics import tier_codes
from classmargin.evaluation.headlines import (
    HEADLINES,
    SPLITS,
    TierRule,
    even_run_weights,
    observed_headlines,
    outcome_table,
    random_run_weights,
    resampled_headlines,
)


def table_of(accuracy_by_run, n=100):
    """Exact accuracies: the first samples of a class are right."""
    accuracy = np.asarray(accuracy_by_run, dtype=float)  # [K, M]
    labels = np.repeat(np.arange(len(accuracy)), n)
    place = np.tile(np.arange(n), len(accuracy))
    return outcome_table(labels, place[:, None] < accuracy[labels] * n, len(accuracy))


def values_of(table, rule, runs=(1,), seed=0):
    return observed_headlines(table, runs, rule, np.random.default_rng(seed))


ONE = [[0.9], [0.3], [0.6], [0.8], [0.5], [0.2]]


def test_hand_values_of_own_ranking():
    values = dict(zip(HEADLINES, values_of(table_of(ONE), TierRule("own"))[0], strict=True))
    assert values == pytest.approx(
        {"overall": 0.55, "easy": 0.85, "medium": 0.55, "hard": 0.25, "worst": 0.2, "gap": 0.6}
    )


def test_reference_ranking_measures_the_given_classes():
    codes = tier_codes(np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]))
    easy, medium, hard = values_of(table_of(ONE), TierRule("reference", codes))[0, 1:4]
    assert (easy, medium, hard) == pytest.approx((0.35, 0.7, 0.6))


def test_overall_weighs_by_samples_and_thirds_by_classes():
    labels = np.array([0] * 90 + [1] * 5 + [2] * 5)
    correct = np.array([True] * 90 + [False] * 10)[:, None]
    values = values_of(outcome_table(labels, correct, 3), TierRule("own"))[0]
    assert values[0] == pytest.approx(0.9)
    assert values[1:4].tolist() == [1.0, 0.0, 0.0]


def test_crossfit_equals_own_where_noise_cannot_change_the_ranking():
    separate = [[1.0], [0.0], [0.5], [1.0], [0.5], [0.0]]
    own = values_of(table_of(separate, n=600), TierRule("own"))[0]
    crossfit = values_of(table_of(separate, n=600), TierRule("crossfit"))[0]
    np.testing.assert_allclose(crossfit, own, atol=0.003)


def test_crossfit_uses_every_sample_equally():
    # Thirds of ten splits in both directions: easy + medium + hard weigh every class the same, so their mean is the mean accuracy.
    table = table_of(ONE, n=60)
    thirds = values_of(table, TierRule("crossfit"))[0, 1:4]
    assert thirds.mean() == pytest.approx(0.55, abs=1e-9)
    assert SPLITS == 10


def test_crossfit_leaves_out_classes_with_too_few_samples():
    labels = np.concatenate([np.repeat([0, 1, 2], 42), [3, 3, 3]])
    correct = np.concatenate([np.tile([True, False], 63), [False] * 3])[:, None]
    thirds = values_of(outcome_table(labels, correct, 4), TierRule("crossfit"))[0, 1:4]
    assert thirds.mean() == pytest.approx(0.5, abs=1e-9)


TWO = [[0.9, 0.5], [0.3, 0.8], [0.6, 0.7]]


def test_two_sides_share_classes_unless_each_ranks_by_itself():
    table = table_of(TWO)
    own = values_of(table, TierRule("own"), (1, 1))
    assert own[:, 3].tolist() == pytest.approx([0.3, 0.5])  # class 1 for the first, class 0 for the second
    baseline = values_of(table, TierRule("baseline"), (1, 1))
    assert baseline[:, 3].tolist() == pytest.approx([0.3, 0.8])  # class 1 for both
    pooled = values_of(table, TierRule("pooled"), (1, 1))
    assert pooled[:, 3].tolist() == pytest.approx([0.3, 0.8])  # means 0.7, 0.55, 0.65


def test_runs_of_a_side_are_averaged():
    several = values_of(table_of([[0.9, 0.7, 0.5], [0.3, 0.5, 0.8]]), TierRule("own"), (2, 1))
    assert several[0, 0] == pytest.approx(0.6)
    assert several[1, 0] == pytest.approx(0.65)


def test_copies_centre_on_the_observed_overall_accuracy():
    copies = resampled_headlines(
        table_of(ONE), (1,), TierRule("own"), 3000, np.random.default_rng(0), resample_runs=False
    )
    assert copies.shape == (3000, 1, 6)
    assert copies[:, 0, 0].mean() == pytest.approx(0.55, abs=0.002)


def test_copies_equal_a_loop_over_samples():
    # The vectorised bootstrap against resampling the samples themselves, class by class (no settling: accuracies far apart).
    table = table_of(ONE, n=200)
    fast = resampled_headlines(table, (1,), TierRule("own"), 4000, np.random.default_rng(0), resample_runs=False)[:, 0]
    rng = np.random.default_rng(1)
    right = [np.arange(200) < accuracy[0] * 200 for accuracy in ONE]
    slow = []
    for _ in range(1500):
        drawn = np.sort([rng.choice(row, 200).mean() for row in right])[::-1]
        slow.append([drawn.mean(), drawn[:2].mean(), drawn[2:4].mean(), drawn[4:].mean(), drawn[-1]])
    np.testing.assert_allclose(fast[:, :5].std(axis=0), np.std(slow, axis=0), rtol=0.1)
    np.testing.assert_allclose(fast[:, :5].mean(axis=0), np.mean(slow, axis=0), atol=0.004)


def test_run_weights_sum_to_one_and_have_the_variance_of_a_mean():
    np.testing.assert_allclose(even_run_weights((2, 3)).sum(axis=1), 1)
    weights = random_run_weights((4, 1), 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_array_equal(weights[:, 4, 1], 1)
    values = np.array([1.0, 2.0, 4.0, 9.0])
    assert (weights[:, :4, 0] @ values).var() == pytest.approx(values.var(ddof=1) / 4, rel=0.05)


def test_kept_samples_vary_with_the_runs_only():
    table = table_of([[0.9, 0.7, 0.5], [0.3, 0.5, 0.8], [0.5, 0.5, 0.5]])
    copies = resampled_headlines(
        table,
        (2, 1),
        TierRule("own"),
        50,
        np.random.default_rng(0),
        resample_runs=True,
        resample_samples=False,
    )
    assert copies[:, 0, 0].std() > 0
    assert copies[:, 1, 0].std() == pytest.approx(0, abs=1e-15)
