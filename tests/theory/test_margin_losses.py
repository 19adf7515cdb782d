import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classmargin.theory import (
    class_margin_loss,
    margin_loss,
    prediction_margin,
    surrogate_loss,
    zero_one_loss,
)

SETTINGS = settings(max_examples=60)
score = st.floats(-60, 60, allow_nan=False)
gamma_value = st.floats(0.01, 50)


@st.composite
def predictions(draw):
    """Logits [N, K], labels [N] and margins [K]; scores often coincide, so that ties are met."""
    n, k = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    scores = st.one_of(score, st.sampled_from([0.0, 1.0, -1.0]))
    logits = torch.tensor(draw(st.lists(scores, min_size=n * k, max_size=n * k)), dtype=torch.float64)
    labels = torch.tensor(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)))
    gamma = torch.tensor(draw(st.lists(gamma_value, min_size=k, max_size=k)), dtype=torch.float64)
    return logits.reshape(n, k), labels, gamma


class TestPredictionMargin:
    def test_hand_values(self):
        logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0], [2.0, 2.0, 0.0]])
        assert prediction_margin(logits, torch.tensor([0, 2, 1])).tolist() == [1.0, -3.0, 0.0]

    @SETTINGS
    @given(predictions())
    def test_equals_the_loop(self, naive, case):
        logits, labels, _ = case
        expected = [naive.prediction_margin(row, int(y)) for row, y in zip(logits.tolist(), labels)]
        assert prediction_margin(logits, labels).tolist() == expected

    @SETTINGS
    @given(predictions(), st.floats(-5, 5))
    def test_does_not_change_when_all_logits_shift(self, case, shift):
        logits, labels, _ = case
        torch.testing.assert_close(
            prediction_margin(logits + shift, labels), prediction_margin(logits, labels), atol=1e-12, rtol=0
        )

    def test_follows_relabelled_classes_and_sample_order(self):
        generator = torch.Generator().manual_seed(0)
        logits, labels = torch.randn(8, 4, generator=generator), torch.arange(8) % 4
        classes, samples = torch.tensor([2, 0, 3, 1]), torch.randperm(8, generator=generator)
        relabelled = prediction_margin(logits[:, classes][samples], torch.argsort(classes)[labels][samples])
        assert torch.equal(relabelled, prediction_margin(logits, labels)[samples])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_is_float64_for_every_float_type(self, dtype):
        margin = prediction_margin(torch.tensor([[1.5, 0.25]], dtype=dtype), torch.tensor([0]))
        assert margin.dtype == torch.float64
        assert margin.tolist() == [1.25]

    def test_takes_arrays_and_lists(self):
        logits = [[1.5, 0.25], [0.0, 1.0]]
        for given_logits, labels in ((logits, [0, 1]), (np.array(logits, np.float32), np.array([0, 1]))):
            assert prediction_margin(given_logits, labels).tolist() == [1.25, 1.0]

    def test_gradient_is_plus_one_for_the_true_class_and_minus_one_for_the_runner_up(self):
        logits = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
        prediction_margin(logits, torch.tensor([0])).sum().backward()
        assert logits.grad.tolist() == [[1.0, 0.0, -1.0]]


class TestMarginLoss:
    def test_hand_values(self):
        assert margin_loss(torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]), 2.0).tolist() == [
            1,
            1,
            0.75,
            0.5,
            0,
            0,
        ]

    @SETTINGS
    @given(score, score, gamma_value)
    def test_is_falling_bounded_and_lipschitz(self, u, v, gamma):
        low, high = sorted((u, v))
        at_low, at_high = margin_loss(torch.tensor([low, high], dtype=torch.float64), gamma).tolist()
        assert 0.0 <= at_high <= at_low <= 1.0
        assert at_low - at_high <= (high - low) / gamma + 1e-12

    @SETTINGS
    @given(score, gamma_value, gamma_value)
    def test_never_falls_when_gamma_grows(self, u, first, second):
        small, large = sorted((first, second))
        assert float(margin_loss(u, small)) <= float(margin_loss(u, large))

    @SETTINGS
    @given(st.one_of(st.just(0.0), st.floats(1e-6, 60), st.floats(-60, -1e-6)))
    def test_is_the_zero_one_loss_as_gamma_goes_to_zero(self, u):
        assert float(margin_loss(u, 1e-9)) == float(u <= 0)

    @SETTINGS
    @given(predictions())
    def test_class_margin_loss_equals_the_loop(self, naive, case):
        logits, labels, gamma = case
        expected = [
            naive.ramp(naive.prediction_margin(row, y), float(gamma[y]))
            for row, y in zip(logits.tolist(), labels.tolist())
        ]
        np.testing.assert_allclose(class_margin_loss(logits, labels, gamma), expected, rtol=1e-14)


def test_zero_one_loss_counts_a_tie_as_an_error():
    logits = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert zero_one_loss(logits, torch.tensor([0, 0, 0])).tolist() == [0.0, 1.0, 1.0]


class TestSurrogateInequality:
    """Lemma 3."""

    @settings(max_examples=300)
    @given(predictions())
    def test_zero_one_below_margin_below_surrogate(self, case):
        logits, labels, gamma = case
        margin = class_margin_loss(logits, labels, gamma)
        assert bool((zero_one_loss(logits, labels) <= margin).all())
        assert bool((margin <= surrogate_loss(logits, labels, gamma) * (1 + 1e-14)).all())

    @SETTINGS
    @given(predictions())
    def test_surrogate_equals_the_loop(self, naive, case):
        logits, labels, gamma = case
        expected = [
            naive.cross_entropy(row, y, float(gamma[y])) / math.log(2)
            for row, y in zip(logits.tolist(), labels.tolist())
        ]
        np.testing.assert_allclose(surrogate_loss(logits, labels, gamma), expected, rtol=1e-10, atol=1e-300)

    def test_holds_on_a_fine_grid_of_margins(self):
        u = torch.linspace(-5, 5, 100_001, dtype=torch.float64)
        logits = torch.stack([u, torch.zeros_like(u)], dim=1)
        labels, gamma = torch.zeros(len(u), dtype=torch.long), torch.tensor([1.7, 1.0])
        gap = surrogate_loss(logits, labels, gamma) - class_margin_loss(logits, labels, gamma)
        assert float(gap.min()) >= -1e-15

    def test_constant_is_the_smallest_possible(self):
        tie = torch.zeros(1, 2), torch.tensor([0]), torch.ones(2)
        assert float(class_margin_loss(*tie)) == pytest.approx(float(surrogate_loss(*tie)), abs=1e-15) == 1.0

    @pytest.mark.parametrize(("gamma", "loss"), [(1.0, 1.313262), (2.0, 0.974077)])
    def test_does_not_always_grow_with_gamma_as_the_paper_says(self, gamma, loss):
        value = surrogate_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([0]), torch.tensor([gamma, 1.0]))
        assert float(value) * math.log(2) == pytest.approx(loss, abs=5e-7)

    @SETTINGS
    @given(predictions(), st.floats(1.01, 5))
    def test_grows_with_gamma_where_the_true_class_scores_highest(self, case, factor):
        logits, _, gamma = case
        labels = logits.argmax(dim=1)
        grown = surrogate_loss(logits, labels, gamma * factor)
        assert bool((grown >= surrogate_loss(logits, labels, gamma) * (1 - 1e-12)).all())

    @SETTINGS
    @given(predictions())
    def test_slope_in_gamma_is_true_logit_minus_tempered_mean(self, case):
        logits, labels, gamma = case
        logits, gamma = logits / 20, gamma.clamp(0.5, 5)
        own = gamma[labels][:, None]
        tempered_mean = (torch.softmax(logits / own, dim=1) * logits).sum(1)
        slope = (logits.gather(1, labels[:, None]).squeeze(1) - tempered_mean) / own.squeeze(1) ** 2
        step = 1e-6
        rise = surrogate_loss(logits, labels, gamma + step) - surrogate_loss(logits, labels, gamma - step)
        torch.testing.assert_close(rise / (2 * step) * math.log(2), slope, atol=1e-7, rtol=1e-6)

    def test_stays_finite_for_extreme_logits(self):
        value = surrogate_loss(torch.tensor([[-1e6, 1e6]]), torch.tensor([0]), torch.tensor([1e-3, 1.0]))
        assert float(value) == pytest.approx(2e9 / math.log(2))


LOGITS, LABELS, GAMMA = torch.zeros(2, 3), torch.tensor([0, 2]), torch.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: prediction_margin(LOGITS.long(), LABELS), TypeError, "logits must be floating point"),
        (lambda: prediction_margin(LOGITS[0], LABELS), ValueError, "logits must have 2 dimensions"),
        (lambda: prediction_margin(LOGITS[:, :1], LABELS * 0), ValueError, "at least 2 classes"),
        (lambda: prediction_margin(LOGITS, LABELS + 1), ValueError, r"labels must lie in \[0, 3\)"),
        (lambda: prediction_margin(LOGITS, LABELS[:1]), ValueError, r"labels must have shape \(2,\)"),
        (lambda: prediction_margin(LOGITS, LABELS.float()), TypeError, "labels must hold integer classes"),
        (lambda: prediction_margin(LOGITS * math.nan, LABELS), ValueError, "logits must be finite"),
        (lambda: margin_loss(1.0, 0.0), ValueError, "gamma must be > 0"),
        (lambda: margin_loss(math.inf, 1.0), ValueError, "margins must be finite"),
        (lambda: class_margin_loss(LOGITS, LABELS, -GAMMA), ValueError, "class_margins must be > 0"),
        (
            lambda: class_margin_loss(LOGITS, LABELS, GAMMA[:2]),
            ValueError,
            r"class_margins must have shape \(3,\)",
        ),
        (lambda: surrogate_loss(LOGITS, LABELS, 0 * GAMMA), ValueError, "class_margins must be > 0"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()
