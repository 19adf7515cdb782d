"""Plans: samples and seeds that see a difference."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from classmargin.evaluation.release_gate import (
    catch_probability,
    plan,
    samples_for_drop,
    seeds_for_difference,
)


def test_the_interval_of_the_planned_samples_is_as_wide_as_asked():
    n = plan(10, accuracy=0.8, see=0.03).interval_samples
    assert 1.96 * np.sqrt(0.8 * 0.2 / n) == pytest.approx(0.03, rel=0.01)


def test_the_gate_catches_the_drop_with_the_planned_samples():
    options = {"churn": 0.1, "max_drop": 0.02, "level": 0.05 / 101}
    n = samples_for_drop(0.12, **options)
    assert catch_probability(0.12, n, **options) == pytest.approx(0.8, abs=0.05)
    assert catch_probability(0.12, n // 2, **options) < 0.6


def test_the_planned_seeds_see_the_difference_in_four_of_five_comparisons():
    runs = seeds_for_difference(0.02, 0.01)
    rng = np.random.default_rng(0)
    one, two = rng.normal(0, 0.01, (4000, runs)), rng.normal(0.02, 0.01, (4000, runs))
    found = (ttest_ind(one, two, axis=1).pvalue <= 0.05).mean()
    assert 0.78 < found < 0.95


def test_more_classes_take_more_samples():
    few, many = (plan(classes, see=0.05).gate_samples for classes in (10, 1000))
    assert few < many


@pytest.mark.parametrize(
    "options", [{"see": 0.0}, {"accuracy": 1.0}, {"run_deviation": 0.0}, {"max_drop": 0.5, "see": 0.1}]
)
def test_plans_out_of_range_are_refused_by_name(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        plan(10, **options)
