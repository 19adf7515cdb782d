import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.theory import (
    class_risk_bounds,
    margin_loss,
    norm_constant,
    optimal_margins,
    prediction_margin,
    rademacher_bound,
    rademacher_monte_carlo,
    risk_bound,
    zero_one_loss,
)

SETTINGS = settings(max_examples=40)
ORDERS = [1.0, 1.5, 2.0, 3.0, math.inf]


@pytest.fixture
def case(make_features):
    """Logits, labels, features and margins of 12 samples of 3 classes with 6, 4 and 2 samples."""
    features = make_features("normal", 12, 5, 0)
    labels = torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1])
    logits = features @ make_features("normal", 5, 3, 1)
    return logits, labels, features, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


class TestRiskBound:
    @pytest.mark.parametrize("empirical_loss", ["margin", "cross_entropy"])
    def test_terms_equal_the_loop_and_add_up(self, naive, case, empirical_loss):
        logits, labels, features, gamma = case
        bound = risk_bound(*case, weight_bound=3.0, delta=0.1, empirical_loss=empirical_loss)
        losses = [
            naive.ramp(naive.prediction_margin(row, y), float(gamma[y]))
            if empirical_loss == "margin"
            else naive.cross_entropy(row, y, float(gamma[y])) / math.log(2)
            for row, y in zip(logits.tolist(), labels.tolist())
        ]
        squares = sum(naive.lp_norm(x, 2.0) ** 2 / float(gamma[y]) ** 2 for x, y in zip(features.tolist(), labels))
        assert bound.empirical == pytest.approx(sum(losses) / 12, rel=1e-12)
        assert bound.complexity == pytest.approx(4 * 3 * 3.0 / 12 * math.sqrt(squares), rel=1e-12)
        assert bound.confidence == pytest.approx(3 * math.sqrt(math.log(20) / 24), rel=1e-12)
        assert bound.total == pytest.approx(bound.empirical + bound.complexity + bound.confidence, rel=1e-15)

    def test_printed_complexity_term_for_equal_classes(self, case):
        logits, _, features, gamma = case
        labels = torch.arange(12) % 3
        sqnorm = torch.stack([features[labels == k].square().sum(1).mean() for k in range(3)])
        root = math.sqrt(float((sqnorm / gamma**2).sum()))
        printed = risk_bound(logits, labels, features, gamma, weight_bound=3.0, constants="paper")
        assert printed.complexity == pytest.approx(4 * math.sqrt(2) * 3.0 * 3 / math.sqrt(12) * root, rel=1e-12)

    @pytest.mark.parametrize("p", ORDERS)
    def test_complexity_term_is_the_factor_times_the_rademacher_bound(self, case, p):
        for constants, factor in (("correct", 4.0), ("paper", 4 * math.sqrt(6))):
            bound = risk_bound(*case, weight_bound=3.0, norm_order=p, constants=constants)
            complexity = rademacher_bound(*_without_logits(case), weight_bound=3.0, norm_order=p, constants=constants)
            assert bound.complexity == pytest.approx(factor * complexity, rel=1e-12)

    def test_proposition_1_is_above_lemma_1(self, case):
        lemma = risk_bound(*case, weight_bound=3.0, empirical_loss="margin")
        assert lemma.total < risk_bound(*case, weight_bound=3.0).total

    def test_simulated_complexity_gives_a_smaller_bound(self, case):
        value = rademacher_monte_carlo(*_without_logits(case), weight_bound=3.0)
        bound = risk_bound(*case, weight_bound=3.0, complexity=value.mean)
        assert bound.complexity == pytest.approx(4 * value.mean)
        assert bound.total < risk_bound(*case, weight_bound=3.0).total

    def test_takes_tensors_that_require_gradients_and_arrays(self, case):
        expected = risk_bound(*case, weight_bound=3.0)
        logits, labels, features, gamma = case
        needs = risk_bound(
            logits.clone().requires_grad_(),
            labels,
            features.clone().requires_grad_(),
            gamma,
            weight_bound=3.0,
        )
        arrays = risk_bound(logits.numpy(), labels.numpy(), features.numpy(), gamma.tolist(), weight_bound=3.0)
        assert needs == arrays == expected

    def test_holds_and_says_something_on_simulated_data(self):
        # Two noisy classes on a line: a head is a single number, so that a few values stand for all heads.
        generator = torch.Generator().manual_seed(0)

        def draw(n):
            labels = torch.randint(0, 2, (n,), generator=generator)
            centre = 1.0 - 2.0 * labels.double()[:, None]
            return 0.7 * centre + 0.5 * torch.randn(n, 1, generator=generator, dtype=torch.float64), labels

        test_features, test_labels = draw(50_000)
        gamma = torch.tensor([0.5, 0.5])
        for _ in range(20):
            features, labels = draw(6000)
            for weight in (-1.0, -0.3, 0.1, 0.5, 1.0):
                head = torch.tensor([[weight, -weight]], dtype=torch.float64)
                bound = risk_bound(features @ head, labels, features, gamma, weight_bound=1.0, empirical_loss="margin")
                assert float(zero_one_loss(test_features @ head, test_labels).mean()) <= bound.total
            assert bound.total < 0.6  # the best head; the bound is not vacuous here


class TestContraction:
    """The steps of the proofs, exactly, on finite sets of functions and all sign vectors."""

    @SETTINGS
    @given(st.sampled_from([(3, 3), (4, 2), (2, 4)]), st.integers(1, 6), st.integers(0, 10**6))
    def test_margin_losses_have_at_most_twice_the_margin_complexity(self, naive, shape, members, seed):
        (n, k), generator = shape, torch.Generator().manual_seed(seed)
        scores = 2 * torch.randn(members, n, k, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, k, (n,), generator=generator)
        gamma = 0.2 + 2 * torch.rand(k, generator=generator, dtype=torch.float64)
        losses = torch.stack([margin_loss(prediction_margin(f, labels), gamma[labels]) for f in scores])
        scaled = (scores / gamma[labels][:, None]).reshape(members, n * k)
        assert _complexity(naive, losses) <= 2 * _complexity(naive, scaled) + 1e-12

    @SETTINGS
    @given(st.integers(2, 4), st.integers(0, 10**6))
    def test_margin_losses_of_one_class_have_at_most_the_sum_over_the_heads(self, naive, k, seed):
        n, generator = 4, torch.Generator().manual_seed(seed)
        heads = 2 * torch.randn(k, 3, n, generator=generator, dtype=torch.float64)  # three functions for each class
        gamma = 0.2 + 2 * float(torch.rand(1, generator=generator))
        labels = torch.zeros(n, dtype=torch.long)
        choices = [
            torch.stack([heads[y, c] for y, c in enumerate(pick)], dim=1)
            for pick in itertools.product(range(3), repeat=k)
        ]
        losses = torch.stack([margin_loss(prediction_margin(f, labels), gamma) for f in choices])
        assert _complexity(naive, losses) <= sum(_complexity(naive, h) for h in heads) / gamma + 1e-12


class TestClassRiskBounds:
    @pytest.mark.parametrize("p", ORDERS)
    def test_terms_equal_the_loop_and_add_up(self, naive, case, p):
        logits, labels, features, gamma = case
        bounds = class_risk_bounds(*case, weight_bound=3.0, norm_order=p, delta=0.1, empirical_loss="margin")
        for k in range(3):
            rows = [i for i in range(12) if labels[i] == k]
            n = len(rows)
            loss = sum(naive.ramp(naive.prediction_margin(logits[i].tolist(), k), float(gamma[k])) for i in rows) / n
            r = math.sqrt(sum(naive.lp_norm(features[i].tolist(), p) ** 2 for i in rows) / n)
            constant = norm_constant(p, 5, num_samples=n)
            assert float(bounds.empirical[k]) == pytest.approx(loss, rel=1e-12)
            assert float(bounds.complexity[k]) == pytest.approx(6 / float(gamma[k]) * constant * 3.0 * r / math.sqrt(n))
            assert float(bounds.confidence[k]) == pytest.approx(3 * math.sqrt(math.log(20) / (2 * n)))
        torch.testing.assert_close(bounds.total, bounds.empirical + bounds.complexity + bounds.confidence)

    @pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
    def test_printed_term_lacks_the_root_of_the_class_size(self, case, p):
        _, labels, features, gamma = case
        printed = class_risk_bounds(*case, weight_bound=3.0, norm_order=p, constants="paper").complexity
        norms = torch.linalg.vector_norm(features, p, dim=1).square()
        r = torch.stack([norms[labels == k].mean().sqrt() for k in range(3)])
        torch.testing.assert_close(printed, 4 / gamma * norm_constant(p, 5, constants="paper") * 3.0 * r)

    def test_more_data_helps_the_correct_bound_and_not_the_printed_one(self, case):
        more = [x.repeat(100, *[1] * (x.dim() - 1)) for x in case[:3]]
        for constants, ratio in (("correct", 10.0), ("paper", 1.0)):
            few = class_risk_bounds(*case, weight_bound=3.0, constants=constants).complexity
            many = class_risk_bounds(*more, case[3], weight_bound=3.0, constants=constants).complexity
            torch.testing.assert_close(few / many, torch.full((3,), ratio, dtype=torch.float64))

    def test_two_classes_need_the_printed_coefficient(self, make_features):
        features, labels = make_features("normal", 18, 3, 0), torch.arange(18) % 2
        args = features[:, :2], labels, features, torch.ones(2)
        correct, printed = (
            class_risk_bounds(*args, weight_bound=1.0, constants=c).complexity for c in ("correct", "paper")
        )
        torch.testing.assert_close(correct * math.sqrt(9), printed)

    def test_printed_coefficient_is_false_for_many_classes(self):
        # Class 0 is uniform on 1200 points φ_j = (1, e_j)/√2. The head has w_0 = (1, 0) and w_j = (0, e_j)
        # for every point j outside the sample: the sample is right by γ, all other points are wrong.
        support, n, shrink = 1200, 400, 0.999
        points = torch.cat([torch.ones(support, 1), torch.eye(support)], dim=1).double() / math.sqrt(2)
        sample = torch.randint(0, support, (n,), generator=torch.Generator().manual_seed(0))
        unseen = torch.ones(support).index_fill(0, sample, 0.0).double()
        weights = torch.zeros(support + 1, support + 1, dtype=torch.float64)
        weights[0, 0] = shrink
        weights[1:, 1:] = torch.diag(unseen)
        logits, labels = points @ weights.T, torch.zeros(support, dtype=torch.long)
        gamma = torch.full((support + 1,), shrink / math.sqrt(2), dtype=torch.float64)
        true_risk = float(zero_one_loss(logits, labels).mean())
        bounds = class_risk_bounds(
            logits[sample], labels[sample], points[sample], gamma, weight_bound=1.0, empirical_loss="margin"
        )
        empirical, complexity, confidence = (float(term[0]) for term in bounds[1:])
        with_root = empirical + complexity * 4 / (2 * (support + 1)) + confidence
        assert empirical < 1e-9
        assert true_risk > 2 / 3
        assert with_root < 0.5  # the printed bound, even with its 1/√N_k restored, is violated
        assert float(bounds.total[0]) > true_risk

    def test_simultaneous_divides_delta_by_the_classes(self, case):
        together = class_risk_bounds(*case, weight_bound=3.0, delta=0.3, simultaneous=True)
        torch.testing.assert_close(together, class_risk_bounds(*case, weight_bound=3.0, delta=0.1))

    @pytest.mark.parametrize("constants", ["correct", "paper"])
    def test_class_without_samples_is_unknown(self, case, constants):
        logits, labels, features, gamma = case
        bounds = class_risk_bounds(
            logits[labels != 2],
            labels[labels != 2],
            features[labels != 2],
            gamma,
            weight_bound=3.0,
            constants=constants,
        )
        for term in bounds:
            assert term.isnan().tolist() == [False, False, True]

    def test_optimal_margins_make_the_terms_less_unequal_but_not_equal(self):
        # If r² differs by 1 : 1000, the terms differ by the sixth root of it, as r/γ ∝ r^(1/3).
        features = torch.cat([torch.ones(50, 1), torch.full((50, 1), math.sqrt(1000))])
        labels, logits = torch.arange(100) // 50, torch.zeros(100, 2)
        margins = {
            1000 ** (1 / 2): torch.ones(2),
            1000 ** (1 / 6): optimal_margins([1.0, 1000.0], 1.0),
            1.0: torch.tensor([1.0, math.sqrt(1000)]),
        }
        for ratio, gamma in margins.items():
            terms = class_risk_bounds(logits, labels, features, gamma, weight_bound=1.0).complexity
            assert float(terms[1] / terms[0]) == pytest.approx(ratio, rel=1e-6)


def _without_logits(case):
    _, labels, features, gamma = case
    return features, labels, gamma


def _complexity(naive, values):
    """(1/N)-free Rademacher complexity E max_f Σ_i ε_i values[f, i] of a finite set of functions."""
    signs = torch.tensor(list(naive.sign_vectors(values.shape[1])), dtype=torch.float64)
    return float((signs @ values.T).amax(dim=1).mean())


LOGITS, LABELS, FEATURES, GAMMA = torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.ones(3, 2), torch.ones(2)


@pytest.mark.parametrize("function", [risk_bound, class_risk_bounds])
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"delta": 0.0}, ValueError, "delta must be > 0 and < 1"),
        ({"delta": 1.0}, ValueError, "delta must be > 0 and < 1"),
        ({"weight_bound": -1.0}, ValueError, "weight_bound must be > 0"),
        ({"weight_bound": np.ones(2)}, TypeError, "weight_bound must be a number"),
        ({"class_margins": -GAMMA}, ValueError, "class_margins must be > 0"),
        ({"class_margins": torch.ones(3)}, ValueError, r"class_margins must have shape \(2,\)"),
        ({"features": FEATURES.int()}, TypeError, "features must be floating point"),
        ({"features": FEATURES[:2]}, ValueError, r"labels must have shape \(2,\)"),
        ({"logits": LOGITS[:2]}, ValueError, r"labels must have shape \(2,\)"),
        ({"logits": LOGITS[0]}, ValueError, "logits must have 2 dimensions"),
        ({"norm_order": 0.0}, ValueError, "norm_order must be >= 1"),
        ({"constants": "printed"}, ValueError, "constants must be one of correct, paper"),
        ({"empirical_loss": "ramp"}, ValueError, "empirical_loss must be one of cross_entropy, margin"),
    ],
)
def test_bad_input_is_refused_by_name(function, changes, error, words):
    arguments = {
        "logits": LOGITS,
        "labels": LABELS,
        "features": FEATURES,
        "class_margins": GAMMA,
        "weight_bound": 1.0,
    }
    with pytest.raises(error, match=words):
        function(**(arguments | changes))


def test_negative_complexity_is_refused():
    with pytest.raises(ValueError, match="complexity must be >= 0"):
        risk_bound(LOGITS, LABELS, FEATURES, GAMMA, weight_bound=1.0, complexity=-1.0)
