import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.theory import khintchine_constant, norm_constant

SETTINGS = settings(max_examples=60)
ORDERS = [1.0, 1.5, 2.0, 3.0, 5.0, 9.0, math.inf]
KINDS = ["normal", "unit", "repeated", "single", "signs", "sparse", "heavy"]
any_order = st.one_of(st.floats(1.0, 40.0), st.just(math.inf), st.just(1e6))


def ratio(naive, vectors, p):
    """E‖Σ ε_i v_i‖_p / (Σ ‖v_i‖_p²)^½, exactly: what a valid constant must not be below."""
    reach = math.sqrt(sum(naive.lp_norm(row, p) ** 2 for row in vectors.tolist()))
    return naive.expected_norm(vectors, p) / reach if reach > 0 else 0.0


class TestKhintchineConstant:
    @pytest.mark.parametrize(("p", "moment"), [(4, 3), (6, 15), (8, 105), (3, 2 * math.sqrt(2 / math.pi))])
    def test_is_the_root_of_the_normal_moment(self, p, moment):
        assert khintchine_constant(float(p)) ** p == pytest.approx(moment, rel=1e-12)

    def test_is_one_up_to_two_and_continuous_there(self):
        assert khintchine_constant(1.0) == khintchine_constant(2.0) == 1.0
        assert khintchine_constant(2.0 + 1e-9) == pytest.approx(1.0, abs=1e-8)

    @SETTINGS
    @given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.floats(2.0, 12.0))
    def test_bounds_every_rademacher_sum(self, naive, coefficients, p):
        moment = naive.mean_over_signs(
            len(coefficients), lambda signs: abs(sum(s * a for s, a in zip(signs, coefficients))) ** p
        )
        assert moment ** (1 / p) <= khintchine_constant(p) * math.hypot(*coefficients) * (1 + 1e-12)

    @pytest.mark.parametrize("p", [2.5, 3.0, 5.0, 9.0])
    def test_is_approached_by_many_equal_coefficients(self, p):
        # The sum of n signs is binomial, so its moments are known exactly.
        n = 400
        moment = sum(math.comb(n, k) * abs(2 * k - n) ** p for k in range(n + 1)) / 2**n
        reached = moment ** (1 / p) / math.sqrt(n)
        assert 0.99 * khintchine_constant(p) < reached <= khintchine_constant(p)


class TestCorrectConstant:
    @pytest.mark.parametrize("p", ORDERS)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("n", "d"), [(7, 1), (6, 2), (7, 4), (4, 7)])
    def test_is_above_the_exact_ratio(self, naive, make_features, p, kind, n, d):
        for seed in range(3):
            exact = ratio(naive, make_features(kind, n, d, seed), p)
            assert exact <= norm_constant(p, d) * (1 + 1e-12)
            assert exact <= norm_constant(p, d, num_samples=n) * (1 + 1e-12)

    @SETTINGS
    @given(st.integers(1, 6), st.integers(1, 4), any_order, st.data())
    def test_is_above_the_exact_ratio_for_anything(self, naive, n, d, p, data):
        entry = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-4, 4, width=16))
        values = data.draw(st.lists(entry, min_size=n * d, max_size=n * d))
        vectors = torch.tensor(values, dtype=torch.float64).reshape(n, d)
        assert ratio(naive, vectors, p) <= norm_constant(p, d, num_samples=n) * (1 + 1e-12)

    @pytest.mark.parametrize("p", [1.0, 1.25, 1.5, 1.9, 2.0])
    def test_is_reached_by_unit_vectors_up_to_two(self, naive, p):
        assert ratio(naive, torch.eye(6, dtype=torch.float64), p) == pytest.approx(norm_constant(p, 6), rel=1e-12)

    @pytest.mark.parametrize("p", [2.0, 3.0, 9.0, 1e4, math.inf])
    def test_is_reached_by_two_sign_vectors_from_two_on(self, naive, p):
        vectors = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        assert ratio(naive, vectors, p) == pytest.approx(norm_constant(p, 2), rel=1e-12)

    @SETTINGS
    @given(any_order, st.integers(1, 10**6))
    def test_is_never_above_the_three_textbook_constants(self, p, d):
        if p <= 2:
            assert norm_constant(p, d) == pytest.approx(d ** (1 / p - 1 / 2))
        elif p < math.inf:
            assert 1.0 <= norm_constant(p, d) <= khintchine_constant(p)
        else:
            assert 1.0 <= norm_constant(p, d) <= math.sqrt(2 * math.log(2 * d))

    @SETTINGS
    @given(any_order)
    def test_is_one_in_one_dimension(self, p):
        assert norm_constant(p, 1) == 1.0

    @pytest.mark.parametrize("p", ORDERS)
    def test_never_falls_with_the_dimension(self, p):
        values = [norm_constant(p, d) for d in (1, 2, 3, 5, 10, 100, 1000)]
        assert values == sorted(values)

    def test_high_orders_approach_the_constant_at_infinity(self):
        assert norm_constant(1e9, 50) == pytest.approx(norm_constant(math.inf, 50), rel=1e-6)

    def test_knows_that_few_samples_cannot_fill_many_dimensions(self):
        assert norm_constant(1.0, 10_000, num_samples=16) == 4.0
        assert norm_constant(1.0, 16, num_samples=10_000) == 4.0


class TestPrintedConstant:
    def test_is_what_proposition_2_says(self):
        assert norm_constant(1.3, 50, constants="paper") == 1.0
        assert norm_constant(math.inf, 50, constants="paper") == pytest.approx(math.sqrt(2 * math.log(50)))
        for p in (2.5, 3.0, 5.0, 9.0):
            printed = 2 ** (p / 2) * math.gamma((p + 1) / 2) / math.sqrt(math.pi)
            assert norm_constant(p, 50, constants="paper") == pytest.approx(printed, rel=1e-12)

    @pytest.mark.parametrize("p", [1.0, 1.25, 1.5, 1.9])
    def test_is_false_below_two(self, naive, p):
        assert ratio(naive, torch.eye(6, dtype=torch.float64), p) > norm_constant(p, 6, constants="paper")

    @pytest.mark.parametrize("vectors", [[[1.0]], [[1.0, 1.0], [1.0, -1.0]]])
    def test_is_false_at_infinity_in_one_and_two_dimensions(self, naive, vectors):
        features = torch.tensor(vectors, dtype=torch.float64)
        printed = norm_constant(math.inf, features.shape[1], constants="paper")
        assert ratio(naive, features, math.inf) > printed * 1.2

    @SETTINGS
    @given(st.floats(2.01, 30), st.integers(1, 1000))
    def test_is_valid_but_loose_in_between(self, p, d):
        assert norm_constant(p, d) <= norm_constant(p, d, constants="paper") * (1 + 1e-12)

    def test_is_larger_by_far_for_high_orders(self):
        assert norm_constant(9.0, 64, constants="paper") > 100 * norm_constant(9.0, 64)
        assert norm_constant(1e5, 64, constants="paper") == math.inf


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: norm_constant(0.5, 3), ValueError, "norm_order must be >= 1"),
        (lambda: norm_constant(math.nan, 3), ValueError, "norm_order must be >= 1"),
        (lambda: norm_constant("2", 3), TypeError, "norm_order must be a number"),
        (lambda: norm_constant(2.0, 0), ValueError, "feature_dim must be at least 1"),
        (lambda: norm_constant(2.0, 3, num_samples=0), ValueError, "num_samples must be at least 1"),
        (lambda: norm_constant(2.0, 3, constants="papr"), ValueError, "did you mean 'paper'"),
        (lambda: khintchine_constant(0.0), ValueError, "norm_order must be >= 1"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()
