import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from classmargin.evaluation.class_metrics import ranked_tier_means, tier_codes, tier_means, tier_sizes


@given(st.integers(0, 5000))
def test_sizes_add_up_and_the_remainder_goes_to_easy_then_medium(count):
    easy, medium, hard = tier_sizes(count)
    assert easy + medium + hard == count
    assert hard <= medium <= easy <= hard + 1


def test_sizes_of_a_hundred_and_a_thousand_classes():
    assert tier_sizes(100) == (34, 33, 33)
    assert tier_sizes(1000) == (334, 333, 333)
    assert tier_sizes(101) == (34, 34, 33)
    assert tier_sizes(1) == (1, 0, 0)


def test_ties_are_broken_by_class_index():
    np.testing.assert_array_equal(tier_codes(np.full(7, 0.5)), [0, 0, 0, 1, 1, 2, 2])


def test_absent_classes_belong_to_no_tier():
    codes = tier_codes(np.array([np.nan, 0.9, 0.1, np.nan, 0.5]))
    np.testing.assert_array_equal(codes, [-1, 0, 2, -1, 1])


def test_relabelling_classes_relabels_their_tiers():
    rng = np.random.default_rng(0)
    accuracy = rng.permutation(np.linspace(0, 1, 20))
    order = rng.permutation(20)
    np.testing.assert_array_equal(tier_codes(accuracy[order]), tier_codes(accuracy)[order])


def test_means_by_code_and_by_rank_agree():
    rng = np.random.default_rng(1)
    accuracy = rng.integers(0, 8, (50, 11)) / 8  # many ties
    ranking = rng.integers(0, 5, (50, 11)) / 5
    expected = [tier_means(row, tier_codes(by)) for row, by in zip(accuracy, ranking, strict=True)]
    np.testing.assert_allclose(ranked_tier_means(accuracy, ranking), expected)


def test_means_of_own_ranking_are_those_of_sorted_thirds():
    accuracy = np.array([0.1, 0.9, 0.4, 0.6, 0.2, 0.8])
    assert ranked_tier_means(accuracy, accuracy).tolist() == pytest.approx([0.85, 0.5, 0.15])


def test_an_empty_tier_has_no_mean():
    np.testing.assert_array_equal(ranked_tier_means(np.array([0.5, 0.7]), np.array([0.5, 0.7])), [0.7, 0.5, np.nan])
