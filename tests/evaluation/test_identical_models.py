"""An identical model, drawn again, must gain nothing; ranking on the noise that is measured makes it look better."""

import numpy as np
import pytest
from simulated_sets import predictions_with, table_of

from classmargin.evaluation import audit, compare
from classmargin.evaluation.class_metrics import tier_codes
from classmargin.evaluation.headlines import (
    OutcomeTable,
    TierRule,
    block_sizes,
    deal,
    even_run_weights,
    headline_values,
    observed_headlines,
)

CLASSES, SETS = 100, 400
# 225 samples a class at 71 %: the accuracy of a class is drawn with a noise of 3.0 points.
SAMPLES = np.full(CLASSES, 225)


def true_accuracies(rng):
    """Like a ResNet-32 on CIFAR-100: mean 71 %, standard deviation 12 points."""
    return np.clip(rng.normal(0.71, 0.12, CLASSES), 0.05, 0.98)


def hard_of(right, rule, rng):
    return observed_headlines(table_of(right, SAMPLES), (1,), rule, rng)[0, 3]


def test_own_ranking_gains_almost_a_point_for_the_second_model():
    rng = np.random.default_rng(0)
    gains = []
    for _ in range(SETS):
        accuracy = true_accuracies(rng)
        first, second = rng.binomial(SAMPLES, accuracy), rng.binomial(SAMPLES, accuracy)
        by_first = TierRule("reference", tier_codes(first / SAMPLES))
        gains.append(hard_of(second, by_first, rng) - hard_of(first, TierRule("own"), rng))
    assert 100 * np.mean(gains) == pytest.approx(0.8, abs=0.12)


def test_crossfit_thirds_are_unbiased():
    """Crossfit against the true accuracies of the classes that each half names."""
    rng = np.random.default_rng(1)
    bias = []
    for _ in range(SETS):
        accuracy = true_accuracies(rng)
        right = rng.binomial(SAMPLES, accuracy)
        bias.append(hard_of(right, TierRule("crossfit"), rng) - _true_crossfit(right, accuracy, rng))
    assert abs(100 * np.mean(bias)) < 0.1


def _true_crossfit(right, accuracy, rng, splits=10):
    """Mean true accuracy of the hard third that a random half of the samples names."""
    table, values = table_of(right, SAMPLES), []
    for _ in range(splits):
        half = deal(table, block_sizes(SAMPLES, 2, rng), rng)[:, 0]
        codes = tier_codes(half[:, 1] / half.sum(axis=1))
        values.append(accuracy[codes == 2].mean())
    return np.mean(values)


def test_crossfit_of_an_identical_model_gains_nothing():
    rng = np.random.default_rng(2)
    gains = []
    for _ in range(SETS):
        accuracy = true_accuracies(rng)
        first, second = (hard_of(rng.binomial(SAMPLES, accuracy), TierRule("crossfit"), rng) for _ in range(2))
        gains.append(second - first)
    assert abs(100 * np.mean(gains)) < 0.1


def pair_table(first, second):
    """Two models whose errors are independent: cells (both wrong, second right, first right, both right)."""
    both = first * second / SAMPLES
    cells = np.rint(np.stack([SAMPLES - first - second + both, second - both, first - both, both], axis=1)).astype(int)
    patterns = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    return OutcomeTable(cells, np.broadcast_to(patterns, (CLASSES, 4, 2)))


@pytest.mark.parametrize(("ranking", "gain"), [("baseline", 0.8), ("crossfit", 0.0), ("pooled", 0.0), ("own", 0.0)])
def test_comparisons_are_fair_to_both_models_unless_the_baseline_ranks(ranking, gain):
    """Noise of the seed (the class accuracies themselves differ by 3 points) instead of noise of the samples."""
    rng = np.random.default_rng(3)
    gains = []
    for _ in range(SETS):
        accuracy = true_accuracies(rng)
        first, second = (
            np.rint(SAMPLES * np.clip(accuracy + rng.normal(0, 0.03, CLASSES), 0, 1)).astype(int) for _ in range(2)
        )
        table = pair_table(first, second)
        rule = TierRule(ranking)
        counts = deal(table, block_sizes(table.n, rule.blocks, rng), rng)[None]
        values = headline_values(table, counts, even_run_weights((1, 1)), rule)[0]
        gains.append(values[1, 3] - values[0, 3])
    assert 100 * np.mean(gains) == pytest.approx(gain, abs=0.12 if gain else 0.1)


def test_the_public_functions_tell_the_same_story():
    rng = np.random.default_rng(4)
    fair, flattered = [], []
    for _ in range(60):
        accuracy = true_accuracies(rng)
        labels, first = predictions_with(accuracy, SAMPLES, rng)
        _, second = predictions_with(accuracy, SAMPLES, rng)
        one = audit(labels, predictions=first, num_classes=CLASSES, ranking="own", bootstrap=0)
        two = audit(labels, predictions=second, num_classes=CLASSES, bootstrap=0, ranking="reference", reference=one)
        flattered.append(two.hard - one.hard)
        fair.append(compare(one, two, bootstrap=1).delta("hard")[0])
    assert 100 * np.mean(flattered) > 0.5
    assert abs(100 * np.mean(fair)) < 0.2
