import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.theory import (
    rademacher,
    rademacher_bound,
    rademacher_bound_from_statistics,
    rademacher_monte_carlo,
)

SETTINGS = settings(max_examples=60)
ORDERS = [1.0, 1.5, 2.0, 3.0, 5.0, 9.0, math.inf]
KINDS = ["normal", "unit", "repeated", "single", "signs", "sparse", "heavy"]


@pytest.fixture
def seeded():
    return torch.Generator().manual_seed(0)


@st.composite
def samples(draw, most=8):
    """Features [N, d], labels [N] (a class may be empty), margins [K] and p; small, for exact values."""
    n, d, k = draw(st.integers(1, most)), draw(st.integers(1, 5)), draw(st.integers(2, 4))
    entry = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 100.0]), st.floats(-4, 4, width=16))
    values = draw(st.lists(entry, min_size=n * d, max_size=n * d))
    labels = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    gamma = draw(st.lists(st.floats(0.05, 20), min_size=k, max_size=k))
    p = draw(st.one_of(st.sampled_from(ORDERS), st.floats(1, 20)))
    features = torch.tensor(values, dtype=torch.float64).reshape(n, d)
    return features, torch.tensor(labels), torch.tensor(gamma, dtype=torch.float64), p


class TestMonteCarlo:
    @pytest.mark.parametrize("p", ORDERS)
    def test_enumeration_equals_the_definition_written_out(self, naive, make_features, p):
        features, labels = make_features("normal", 4, 3, 1), torch.tensor([0, 1, 1, 0])
        gamma = torch.tensor([0.5, 2.0])
        value = rademacher_monte_carlo(features, labels, gamma, weight_bound=1.7, norm_order=p)
        assert value.exact
        assert value.standard_error == 0.0
        assert value.mean == pytest.approx(naive.complexity(features, labels, gamma, 1.7, p), rel=1e-12)

    @pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
    def test_simulation_is_within_its_error_of_the_exact_value(self, make_features, seeded, p):
        features, labels = make_features("normal", 12, 4, 2), torch.arange(12) % 3
        gamma = torch.tensor([0.5, 1.0, 2.0])
        exact = rademacher_monte_carlo(features, labels, gamma, norm_order=p, draws=2**11)
        drawn = rademacher_monte_carlo(features, labels, gamma, norm_order=p, draws=2**11 - 1, generator=seeded)
        assert exact.exact
        assert not drawn.exact
        assert 0 < drawn.standard_error < 0.05 * drawn.mean
        assert abs(drawn.mean - exact.mean) < 4 * drawn.standard_error

    def test_standard_error_falls_with_the_root_of_the_draws(self, make_features):
        features, labels = make_features("normal", 40, 4, 2), torch.arange(40) % 2
        errors = [
            rademacher_monte_carlo(
                features, labels, torch.ones(2), draws=draws, generator=torch.Generator().manual_seed(3)
            ).standard_error
            for draws in (1000, 16_000)
        ]
        assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)

    def test_same_seed_gives_the_same_value_and_leaves_the_global_generator_alone(self, make_features):
        features, labels = make_features("normal", 40, 4, 2), torch.arange(40) % 2
        state = torch.random.get_rng_state()
        first, second, other = (
            rademacher_monte_carlo(
                features, labels, torch.ones(2), draws=64, generator=torch.Generator().manual_seed(s)
            )
            for s in (5, 5, 6)
        )
        assert first == second != other
        assert torch.equal(state, torch.random.get_rng_state())

    @pytest.mark.parametrize("draws", [300, 2**11])
    def test_pieces_change_nothing_and_bound_the_memory(self, make_features, monkeypatch, draws):
        features, labels = make_features("normal", 12, 4, 2), torch.arange(12) % 2
        args = features, labels, torch.ones(2)
        whole = rademacher_monte_carlo(*args, draws=draws, generator=torch.Generator().manual_seed(5))
        sizes = []
        monkeypatch.setattr(rademacher, "_CHUNK_ELEMENTS", 16 * 7)
        original = rademacher.squared_norm
        monkeypatch.setattr(rademacher, "squared_norm", lambda u, p: sizes.append(u.shape[0]) or original(u, p))
        pieces = rademacher_monte_carlo(*args, draws=draws, generator=torch.Generator().manual_seed(5))
        assert pieces.mean == pytest.approx(whole.mean, rel=1e-13)
        assert max(sizes) == 7
        assert sum(sizes) == whole.draws == (draws if draws == 300 else 2**11)

    @SETTINGS
    @given(samples(), st.floats(0.1, 10))
    def test_scales_with_weights_and_features_and_against_margins(self, case, factor):
        features, labels, gamma, p = case
        value = rademacher_monte_carlo(features, labels, gamma, norm_order=p).mean
        for scaled in (
            rademacher_monte_carlo(features, labels, gamma, norm_order=p, weight_bound=factor),
            rademacher_monte_carlo(features * factor, labels, gamma, norm_order=p),
            rademacher_monte_carlo(features, labels, gamma / factor, norm_order=p),
        ):
            assert scaled.mean == pytest.approx(value * factor, rel=1e-9, abs=1e-300)

    def test_does_not_depend_on_order_of_samples_or_names_of_classes(self, make_features):
        features, labels = make_features("heavy", 9, 3, 4), torch.arange(9) % 3
        gamma = torch.tensor([0.5, 1.0, 2.0])
        order, names = torch.randperm(9, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0, 1])
        value = rademacher_monte_carlo(features, labels, gamma)
        moved = rademacher_monte_carlo(features[order], names[labels][order], gamma[torch.argsort(names)])
        assert moved.mean == pytest.approx(value.mean, rel=1e-13)

    def test_takes_half_precision_arrays_and_high_orders(self):
        features = np.array([[3e4, 1.0], [2.0, 1.0]], dtype=np.float16)
        value = rademacher_monte_carlo(features, [0, 1], [1.0, 1.0], norm_order=200.0)
        assert value.mean == pytest.approx(3e4, rel=1e-3)


class TestBound:
    @settings(max_examples=250)
    @given(samples())
    def test_is_above_the_exact_complexity(self, case):
        features, labels, gamma, p = case
        exact = rademacher_monte_carlo(features, labels, gamma, norm_order=p)
        assert exact.exact
        assert exact.mean <= rademacher_bound(features, labels, gamma, norm_order=p) * (1 + 1e-12)

    @pytest.mark.parametrize("p", ORDERS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_above_monte_carlo_on_larger_samples(self, make_features, seeded, p, kind):
        gamma = torch.tensor([0.7, 1.0, 1.3])
        for n, d in ((90, 1), (90, 30), (30, 90)):
            features, labels = make_features(kind, n, d, 7), (torch.arange(n) % 5).clamp(max=2)
            value = rademacher_monte_carlo(features, labels, gamma, norm_order=p, draws=1500, generator=seeded)
            bound = rademacher_bound(features, labels, gamma, norm_order=p)
            # The simulated mean scatters around the true one. Where the bound is reached exactly (unit
            # vectors, p <= 2) there is no scatter at all, hence the tolerance of rounding.
            assert value.mean - 4 * value.standard_error <= bound * (1 + 1e-12)

    @pytest.mark.parametrize(("p", "slack"), [(2.0, 1.02), (3.0, 1.05), (5.0, 1.1), (9.0, 1.25), (math.inf, 1.5)])
    def test_is_not_far_above_it_on_sign_features(self, make_features, seeded, p, slack):
        features, labels = make_features("signs", 200, 20, 7), torch.arange(200) % 2
        value = rademacher_monte_carlo(features, labels, torch.ones(2), norm_order=p, generator=seeded)
        assert rademacher_bound(features, labels, torch.ones(2), norm_order=p) < slack * value.mean

    def test_lemma_2_by_hand(self):
        # Three classes of two samples with ‖μ‖² + ‖s‖² = r² = (3, 4, 10) and γ = (1, 2, 1): Σ r²/γ² = 14.
        bound = rademacher_bound_from_statistics(
            [3.0, 4.0, 10.0], [2, 2, 2], [1.0, 2.0, 1.0], feature_dim=2, weight_bound=5.0
        )
        assert bound == pytest.approx(5 * math.sqrt(3 / 6) * math.sqrt(14))

    @pytest.mark.parametrize("p", ORDERS)
    def test_equal_sizes_give_the_printed_form(self, make_features, p):
        features, labels = make_features("normal", 12, 6, 3), torch.arange(12) % 3
        gamma = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        sqnorm = torch.stack(
            [torch.linalg.vector_norm(features[labels == k], p, dim=1).square().mean() for k in range(3)]
        )
        root = math.sqrt(3 / 12) * math.sqrt(float((sqnorm / gamma**2).sum()))
        for constants in ("paper", "correct"):
            constant = rademacher.norm_constant(p, 6, constants=constants)
            bound = rademacher_bound(features, labels, gamma, norm_order=p, constants=constants)
            assert bound == pytest.approx(constant * root, rel=1e-12)

    @SETTINGS
    @given(samples())
    def test_unequal_sizes_weigh_classes_by_their_share(self, naive, case):
        features, labels, gamma, p = case
        n, k = len(labels), len(gamma)
        total = sum(naive.lp_norm(row, p) ** 2 / float(gamma[y]) ** 2 for row, y in zip(features.tolist(), labels))
        constant = rademacher.norm_constant(p, features.shape[1], num_samples=n)
        expected = constant * k / n * math.sqrt(total)
        assert rademacher_bound(features, labels, gamma, norm_order=p) == pytest.approx(expected, rel=1e-12)

    def test_mean_and_spread_add_up_to_the_statistic_for_p_2(self, make_features):
        features, labels = make_features("normal", 9, 4, 3), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1])
        parts = [features[labels == k] for k in (0, 1)]
        sqnorm = [float(x.mean(0).square().sum() + (x - x.mean(0)).square().sum(1).mean()) for x in parts]
        bound = rademacher_bound_from_statistics(sqnorm, [5, 4], [1.0, 2.0], feature_dim=4)
        assert bound == pytest.approx(rademacher_bound(features, labels, [1.0, 2.0]), rel=1e-12)

    def test_class_without_samples_adds_no_spread_but_a_weight_vector(self):
        features, labels = torch.eye(3), torch.zeros(3, dtype=torch.long)
        two, three = (rademacher_bound(features, labels, torch.ones(k)) for k in (2, 3))
        assert three / two == pytest.approx(3 / 2)


class TestPrintedBound:
    """Where Proposition 2 as printed is no upper bound."""

    @pytest.mark.parametrize("d", [2, 4, 9])
    def test_is_false_for_unit_vectors_at_p_1(self, d):
        case = torch.eye(d), torch.arange(d) % 2, torch.ones(2)
        value = rademacher_monte_carlo(*case, norm_order=1.0).mean / (2 / d)  # E‖u‖_1
        printed = rademacher_bound(*case, norm_order=1.0, constants="paper") / (2 / d)
        assert value == pytest.approx(d)
        assert printed == pytest.approx(math.sqrt(d))
        assert rademacher_bound(*case, norm_order=1.0) / (2 / d) == pytest.approx(d)

    def test_is_zero_at_infinity_in_one_dimension(self):
        case = torch.ones(4, 1), torch.arange(4) % 2, torch.ones(2)
        assert rademacher_bound(*case, norm_order=math.inf, constants="paper") == 0.0
        assert (
            0.0
            < rademacher_monte_carlo(*case, norm_order=math.inf).mean
            <= rademacher_bound(*case, norm_order=math.inf)
        )

    @pytest.mark.parametrize("p", [2.0, 3.0, 5.0, 9.0])
    def test_holds_from_two_to_infinity(self, make_features, p):
        case = make_features("signs", 10, 8, 1), torch.arange(10) % 2, torch.ones(2)
        assert rademacher_monte_carlo(*case, norm_order=p).mean <= rademacher_bound(
            *case, norm_order=p, constants="paper"
        )


FEATURES, LABELS, GAMMA = torch.ones(3, 2), torch.tensor([0, 1, 1]), torch.ones(2)


@pytest.mark.parametrize("function", [rademacher_monte_carlo, rademacher_bound])
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"features": FEATURES.long()}, TypeError, "features must be floating point"),
        ({"features": FEATURES[0]}, ValueError, "features must have 2 dimensions"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, ValueError, "at least one row"),
        ({"features": FEATURES / 0}, ValueError, "features must be finite"),
        ({"labels": LABELS[:2]}, ValueError, r"labels must have shape \(3,\)"),
        ({"labels": LABELS + 1}, ValueError, r"labels must lie in \[0, 2\)"),
        ({"class_margins": 0 * GAMMA}, ValueError, "class_margins must be > 0"),
        ({"class_margins": GAMMA[:1]}, ValueError, "at least 2 classes"),
        ({"norm_order": 0.9}, ValueError, "norm_order must be >= 1"),
        ({"weight_bound": 0.0}, ValueError, "weight_bound must be > 0"),
    ],
)
def test_bad_input_is_refused_by_name(function, changes, error, words):
    arguments = {"features": FEATURES, "labels": LABELS, "class_margins": GAMMA} | changes
    with pytest.raises(error, match=words):
        function(**arguments)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rademacher_monte_carlo(FEATURES, LABELS, GAMMA, draws=1), "draws must be at least 2"),
        (lambda: rademacher_bound(FEATURES, LABELS, GAMMA, constants="right"), "constants must be one of"),
        (
            lambda: rademacher_bound_from_statistics([1.0], [1, 1], GAMMA, feature_dim=2),
            "class_sqnorm must be 2 values",
        ),
        (
            lambda: rademacher_bound_from_statistics([1.0, -1.0], [1, 1], GAMMA, feature_dim=2),
            "class_sqnorm must be 2 values",
        ),
        (
            lambda: rademacher_bound_from_statistics([1.0, 1.0], [1], GAMMA, feature_dim=2),
            "class_counts must have shape",
        ),
        (lambda: rademacher_bound_from_statistics([1.0, 1.0], [0, 0], GAMMA, feature_dim=2), "not all zero"),
    ],
)
def test_bad_options_are_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("change", ["read-only", "reversed", "byte order"])
def test_arrays_that_torch_does_not_take_as_they_are_give_the_same_bound(change):
    features = np.random.default_rng(0).normal(size=(10, 3))
    labels, counts = np.arange(10) % 2, np.array([5, 5])

    def changed(array):
        if change == "reversed":
            return array[::-1].copy()[::-1]
        array = array.astype(array.dtype.newbyteorder()) if change == "byte order" else array.copy()
        array.setflags(write=change != "read-only")
        return array

    expected = rademacher_bound(features, labels, np.ones(2))
    assert rademacher_bound(changed(features), changed(labels), changed(np.ones(2))) == expected
    given = {"class_counts": counts, "class_margins": np.ones(2), "feature_dim": 3}
    with_changed = {**given, "class_counts": changed(counts), "class_margins": changed(np.ones(2))}
    assert rademacher_bound_from_statistics(np.ones(2), **with_changed) == rademacher_bound_from_statistics(
        np.ones(2), **given
    )
