import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.mr2 import class_margins
from classmargin.theory import (
    margin_objective,
    minimise_margins,
    optimal_margins,
    rademacher_bound_from_statistics,
)

SETTINGS = settings(max_examples=60)
OBJECTIVES = st.sampled_from(["overall", "balanced"])
TOY = [3.0, 4.0, 10.0]


@st.composite
def problems(draw):
    """r² [K] over eight decades, c̄, class sizes [K] or None, and the objective."""
    k = draw(st.integers(1, 8))
    sqnorm = [10**x for x in draw(st.lists(st.floats(-4, 4), min_size=k, max_size=k))]
    sizes = st.lists(st.integers(1, 5000), min_size=k, max_size=k)
    return sqnorm, draw(st.floats(0.1, 5)), draw(st.one_of(st.none(), sizes)), draw(OBJECTIVES)


class TestClosedForm:
    @pytest.mark.parametrize(
        ("mean", "margins"), [(1.0, (0.834621, 0.918620, 1.246759)), (2.0, (1.669243, 1.837240, 2.493518))]
    )
    def test_hand_values_of_equation_14(self, mean, margins):
        np.testing.assert_allclose(optimal_margins(TOY, mean), margins, atol=5e-7)

    def test_hand_values_of_equation_17(self):
        margins = optimal_margins([2.663374, 4.0, 9.220873], 1.0)
        np.testing.assert_allclose(margins, (0.820125, 0.939195, 1.240680), atol=5e-7)

    @SETTINGS
    @given(problems())
    def test_margins_average_to_mean_margin(self, problem):
        sqnorm, mean, counts, objective = problem
        margins = optimal_margins(sqnorm, mean, class_counts=counts, objective=objective)
        assert float(margins.mean()) == pytest.approx(mean, rel=1e-12)
        assert margins.dtype == torch.float64

    def test_intermediate_line_of_the_printed_proof_misses_the_mean(self):
        alpha = torch.tensor(TOY, dtype=torch.float64)
        printed = 1.0 * 3 * (alpha / alpha.sum()) ** (1 / 3)  # (Σα)^(1/3) where Σα^(1/3) is meant
        assert float(printed.mean()) > 1.9

    def test_is_the_margin_of_training(self):
        torch.testing.assert_close(optimal_margins(TOY, 2.0), class_margins(torch.tensor(TOY).double(), 2.0))

    @SETTINGS
    @given(problems(), st.floats(0.001, 1000))
    def test_common_scale_of_features_or_sizes_does_not_matter(self, problem, factor):
        sqnorm, mean, counts, objective = problem
        margins = optimal_margins(sqnorm, mean, class_counts=counts, objective=objective)
        scaled = [factor * a for a in sqnorm]
        sizes = None if counts is None else [2 * n for n in counts]
        again = optimal_margins(scaled, mean, class_counts=sizes, objective=objective)
        torch.testing.assert_close(again, margins, rtol=1e-10, atol=0)

    def test_equal_sizes_are_the_default(self):
        torch.testing.assert_close(optimal_margins(TOY, 2.0, class_counts=[7, 7, 7]), optimal_margins(TOY, 2.0))

    def test_equal_classes_get_equal_margins(self):
        assert optimal_margins([5.0] * 4, 2.0).tolist() == pytest.approx([2.0] * 4)

    def test_frequent_classes_get_more_for_the_overall_risk_and_less_for_the_balanced_one(self):
        overall = optimal_margins([1.0, 1.0], 1.0, class_counts=[16, 1])
        balanced = optimal_margins([1.0, 1.0], 1.0, class_counts=[16, 1], objective="balanced")
        assert float(overall[0] / overall[1]) == pytest.approx(16 ** (1 / 3))
        assert float(balanced[0] / balanced[1]) == pytest.approx(16 ** (-1 / 4))

    @pytest.mark.parametrize(("objective", "power"), [("overall", 2 / 3), ("balanced", 1 / 2)])
    def test_grow_with_the_stated_power_of_the_norm(self, objective, power):
        margins = optimal_margins([1.0, 100.0], 1.0, objective=objective)  # r = 1 and 10
        assert float(margins[1] / margins[0]) == pytest.approx(10**power)


class TestMinimiser:
    @settings(max_examples=120)
    @given(problems())
    def test_finds_the_closed_form(self, problem):
        sqnorm, mean, counts, objective = problem
        formula = optimal_margins(sqnorm, mean, class_counts=counts, objective=objective)
        found = minimise_margins(sqnorm, mean, class_counts=counts, objective=objective)
        torch.testing.assert_close(found, formula, rtol=1e-9, atol=0)
        value = margin_objective(sqnorm, found, class_counts=counts, objective=objective)
        assert value == pytest.approx(
            margin_objective(sqnorm, formula, class_counts=counts, objective=objective), rel=1e-9
        )

    def test_works_for_hundreds_of_classes_of_unequal_size(self):
        generator = torch.Generator().manual_seed(0)
        sqnorm = torch.exp(torch.randn(300, generator=generator, dtype=torch.float64))
        counts = torch.randint(1, 1000, (300,), generator=generator)
        found = minimise_margins(sqnorm, 2.0, class_counts=counts)
        torch.testing.assert_close(found, optimal_margins(sqnorm, 2.0, class_counts=counts), rtol=1e-9, atol=0)

    @settings(max_examples=100)
    @given(problems(), st.integers(0, 10**6))
    def test_no_other_margins_with_this_mean_do_better(self, problem, seed):
        sqnorm, mean, counts, objective = problem
        best = optimal_margins(sqnorm, mean, class_counts=counts, objective=objective)
        generator = torch.Generator().manual_seed(seed)
        for scale in (1e-3, 0.1, 1.0, 3.0):
            noise = torch.randn(len(sqnorm), generator=generator, dtype=torch.float64)
            other = best * torch.exp(scale * noise)
            other = other / other.mean() * mean
            assert margin_objective(sqnorm, best, class_counts=counts, objective=objective) <= margin_objective(
                sqnorm, other, class_counts=counts, objective=objective
            ) * (1 + 1e-12)

    @SETTINGS
    @given(problems())
    def test_least_value_is_the_one_of_the_proof(self, problem):
        sqnorm, mean, counts, _ = problem
        k, sizes = len(sqnorm), counts or [1] * len(sqnorm)
        alpha = [n / sum(sizes) * a for n, a in zip(sizes, sqnorm)]
        least = sum(a ** (1 / 3) for a in alpha) ** 3 / (mean * k) ** 2
        assert margin_objective(
            sqnorm, optimal_margins(sqnorm, mean, class_counts=counts), class_counts=counts
        ) == pytest.approx(least, rel=1e-9)

    @SETTINGS
    @given(problems(), st.sampled_from([1.0, 2.0, 3.0, math.inf]))
    def test_objective_is_what_the_complexity_bound_depends_on(self, problem, p):
        sqnorm, mean, counts, _ = problem
        sqnorm, k = [*sqnorm, 1.0], len(sqnorm) + 1
        counts = [*(counts or [1] * (k - 1)), 1]
        uniform, best = torch.full((k,), mean), optimal_margins(sqnorm, mean, class_counts=counts)
        bounds = [
            rademacher_bound_from_statistics(sqnorm, counts, g, feature_dim=7, norm_order=p) for g in (uniform, best)
        ]
        values = [margin_objective(sqnorm, g, class_counts=counts) for g in (uniform, best)]
        assert bounds[0] / bounds[1] == pytest.approx(math.sqrt(values[0] / values[1]), rel=1e-6)
        assert bounds[1] <= bounds[0] * (1 + 1e-6)


@pytest.mark.parametrize("function", [optimal_margins, minimise_margins])
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"mean_margin": 0.0}, ValueError, "mean_margin must be > 0"),
        ({"mean_margin": math.inf}, ValueError, "mean_margin must be finite"),
        ({"class_sqnorm": [1.0, 0.0]}, ValueError, "class_sqnorm must be > 0"),
        ({"class_sqnorm": []}, ValueError, "at least one class"),
        ({"class_sqnorm": torch.ones(2, 2)}, ValueError, "class_sqnorm must have 1 dimensions"),
        ({"class_sqnorm": torch.ones(2).long()}, TypeError, "class_sqnorm must be floating point"),
        ({"class_counts": [1]}, ValueError, r"class_counts must have shape \(2,\)"),
        ({"class_counts": [1, 0]}, ValueError, "class_counts must be > 0"),
        ({"class_counts": [1, -1]}, ValueError, "class_counts must be finite, >= 0"),
        ({"objective": "mean"}, ValueError, "objective must be one of overall, balanced"),
    ],
)
def test_bad_input_is_refused_by_name(function, changes, error, words):
    with pytest.raises(error, match=words):
        function(**({"class_sqnorm": [1.0, 2.0], "mean_margin": 1.0} | changes))


def test_objective_refuses_margins_of_another_length():
    with pytest.raises(ValueError, match=r"class_margins must have shape \(2,\)"):
        margin_objective([1.0, 2.0], [1.0])
