import numpy as np
import pytest

from classmargin.evaluation.evidence import score_samples
from classmargin.evaluation.input_checks import row_chunks


def test_hand_values():
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]]))
    scores = score_samples(logits, np.array([0, 1]), are_logits=True)
    np.testing.assert_array_equal(scores.predictions, [0, 2])
    np.testing.assert_allclose(scores.confidence, [0.7, 0.5])
    np.testing.assert_allclose(scores.true_probability, [0.7, 0.25])
    np.testing.assert_allclose(scores.output_margin, [0.5, -0.25])
    np.testing.assert_array_equal(scores.candidates, [[0, 1, 2], [2, 0, 1]])


def test_probabilities_and_logits_tell_the_same(toy):
    one = score_samples(toy.logits, toy.labels, are_logits=True)
    two = score_samples(toy.probabilities, toy.labels, are_logits=False)
    for name in ("predictions", "candidates"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for name in ("confidence", "true_probability", "output_margin", "candidate_probabilities"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-12)


def test_scores_do_not_depend_on_chunks_or_an_added_constant(toy):
    whole = score_samples(toy.logits, toy.labels, are_logits=True)
    shifted = score_samples(toy.logits + 1e4, toy.labels, are_logits=True)
    parts = [score_samples(toy.logits[rows], toy.labels[rows], are_logits=True) for rows in row_chunks(600, 77)]
    together = np.concatenate([part.output_margin for part in parts])
    np.testing.assert_array_equal(together, whole.output_margin)
    np.testing.assert_allclose(shifted.output_margin, whole.output_margin, atol=1e-9)


def test_inputs_are_left_as_they_are(toy):
    before = toy.logits.copy()
    score_samples(toy.logits, toy.labels, are_logits=True)
    np.testing.assert_array_equal(toy.logits, before)


def test_candidates_are_the_most_likely_classes_in_order():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 40))
    scores = score_samples(logits, np.zeros(50, dtype=np.int64), are_logits=True)
    np.testing.assert_array_equal(scores.candidates, np.argsort(-logits, axis=1)[:, :8])


def test_ties_go_to_the_lower_class():
    scores = score_samples(np.zeros((1, 12)), np.array([3]), are_logits=True)
    assert scores.predictions[0] == 0
    assert scores.candidates[0, 0] == 0 or scores.candidate_probabilities[0, 0] == pytest.approx(1 / 12)


def test_extreme_logits_stay_finite():
    scores = score_samples(np.array([[1e30, -1e30, -np.inf]]), np.array([1]), are_logits=True)
    assert scores.confidence[0] == 1.0
    assert scores.output_margin[0] == -1.0


def test_one_class_has_no_margin():
    scores = score_samples(np.zeros((2, 1)), np.zeros(2, dtype=np.int64), are_logits=True)
    np.testing.assert_array_equal(scores.output_margin, [0, 0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused_with_their_row(value):
    logits = np.zeros((5, 3))
    logits[3, 1] = value
    with pytest.raises(ValueError, match=r"logits must be finite.*row 13, column 1"):
        score_samples(logits, np.zeros(5, dtype=np.int64), are_logits=True, first_row=10)


@pytest.mark.parametrize("row", [[0.5, 0.4], [0.6, 0.6], [1.5, -0.5], [np.nan, 1.0]])
def test_probabilities_that_are_none_are_refused(row):
    with pytest.raises(ValueError, match=r"probabilities must lie in \[0, 1\] and sum to 1.*row 0"):
        score_samples(np.array([row]), np.array([0]), are_logits=False)


def test_half_precision_probabilities_are_accepted():
    probabilities = np.full((2, 1000), 1e-3, dtype=np.float16)
    scores = score_samples(probabilities, np.array([0, 1]), are_logits=False)
    np.testing.assert_allclose(scores.confidence, 1e-3, rtol=1e-6)
