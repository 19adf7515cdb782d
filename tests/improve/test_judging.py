"""What counts as an improvement: aims, guards, ensembles, offsets, and the three answers."""

from __future__ import annotations

import numpy as np
import pytest

from classmargin.evaluation.prediction_files import Predictions
from classmargin.recipes.improve.budget import Budget, Journal
from classmargin.recipes.improve.improvement import verdict_of
from classmargin.recipes.improve.judging import (
    Aim,
    Samples,
    answer_of,
    broken_guard,
    changes,
    fit_offsets,
    held_out_offsets,
    log_probabilities,
    make_aim,
    mean_scores,
    simultaneous,
    sure_gain,
)

UP, FLAT, DOWN = (0.02, 0.01, 0.03), (0.001, -0.01, 0.012), (-0.02, -0.03, -0.01)


def samples_of(count: int = 40, classes: int = 3) -> Samples:
    labels = np.repeat(np.arange(classes), count)
    return Samples(labels, np.arange(len(labels)), tuple("abcdefgh"[:classes]))


def scores_right(samples: Samples, rates) -> np.ndarray:
    """Return scores that are right for the first share of the samples of each class."""
    places = np.concatenate([np.arange((samples.labels == k).sum()) for k in range(len(rates))])
    right = places < np.asarray(rates)[samples.labels] * (samples.labels == 0).sum()
    target = np.where(right, samples.labels, (samples.labels + 1) % len(rates))
    return np.log(np.eye(len(rates))[target] * 0.8 + 0.2 / len(rates))


@pytest.mark.parametrize(
    ("objective", "keep", "words"),
    [
        ("hardest", "easy:0.5", "objective"),
        ("hard", "easy", "keep must be NAME:POINTS"),
        ("hard", "esy:1", "keep"),
        ("hard", "easy:-1", "between 0 and 100"),
        ("missing.csv", "none", "a CSV file of costs"),
    ],
)
def test_bad_aims_are_named(objective, keep, words):
    with pytest.raises(ValueError, match=words):
        make_aim(objective, keep)


def test_costs_are_read_for_the_classes_of_the_data(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text(",a,b\na,0,1\nb,5,0\n")
    aim = make_aim(str(file), "none", ["a", "b"])
    assert aim.objective == "cost"
    assert aim.costs.tolist() == [[0, 1], [5, 0]]
    assert aim.keep == {}


def test_a_guard_breaks_only_beyond_its_points_and_beyond_noise():
    aim = make_aim("hard", "easy:0.5")
    assert broken_guard(aim, {"easy": DOWN}) == "easy -2.0"
    assert broken_guard(aim, {"easy": (-0.02, -0.05, 0.01)}) == ""  # within noise
    assert broken_guard(aim, {"easy": (-0.004, -0.005, -0.003)}) == ""  # within the points


@pytest.mark.parametrize(
    ("objective", "overall", "easy", "trade", "answer"),
    [
        (UP, FLAT, FLAT, False, "better"),
        (UP, FLAT, DOWN, False, "a trade"),
        (UP, DOWN, FLAT, False, "a trade"),
        (UP, FLAT, FLAT, True, "a trade"),
        (FLAT, UP, UP, False, "no clear gain"),
        (DOWN, FLAT, FLAT, False, "no clear gain"),
    ],
)
def test_the_three_answers(objective, overall, easy, trade, answer):
    deltas = {"objective": objective, "overall": overall, "easy": easy}
    assert answer_of(Aim(), deltas, trade=trade) == answer


def test_the_verdict_has_the_gain_of_the_test_set_first_and_that_of_validation_beside_it():
    test = {"objective": UP, "overall": FLAT, "easy": FLAT, "hard": UP, "worst": FLAT}
    validation = dict.fromkeys(test, (0.04, 0.0, 0.1))
    answer, words = verdict_of(Aim(), "MR²", validation, test, 5)
    assert answer == "better"
    assert words.startswith("Better: MR² gives +2.0 points on the hard third of the test set")
    assert "+1.0 to +3.0; +4.0 on validation" in words


def test_a_clear_gain_beside_the_objective_is_said():
    test = {"objective": FLAT, "overall": UP, "easy": UP, "hard": FLAT, "worst": FLAT}
    answer, words = verdict_of(Aim(), "MR²", test, test, 5)
    assert answer == "no clear gain"
    assert words.endswith("What is clear is the gain in overall and easy accuracy.")


def test_no_choice_is_an_answer():
    answer, words = verdict_of(Aim(), None, {}, {}, 7)
    assert answer == "no clear gain"
    assert "none of 7 candidates" in words


def test_equal_models_differ_by_nothing_and_better_ones_gain():
    samples = samples_of()
    worse = samples.lean_audit(scores_right(samples, (0.9, 0.8, 0.4)))
    better = samples.lean_audit(scores_right(samples, (0.9, 0.8, 0.7)))
    same, _ = changes(Aim(), [worse], [worse], bootstrap=100)
    assert same["objective"][0] == 0
    found, pair = changes(Aim(), [worse, worse], [better], bootstrap=100)
    assert found["hard"][0] == pytest.approx(0.3, abs=0.01)
    assert found["hard"][1] > 0
    assert pair.gained == ("c",)
    assert sure_gain(found) < found["hard"][0]


def test_a_saving_of_costs_is_counted_per_sample():
    samples = samples_of(10, 2)
    aim = Aim("cost", {}, np.array([[0.0, 1.0], [5.0, 0.0]]))
    before = samples.lean_audit(scores_right(samples, (1.0, 0.6)))
    after = samples.lean_audit(scores_right(samples, (1.0, 1.0)))
    found, _ = changes(aim, [before], [after], bootstrap=100)
    assert found["objective"][0] == pytest.approx(4 * 5 / 20)


def test_intervals_for_many_candidates_are_wider_around_the_same_value():
    found = simultaneous({"hard": UP}, 10)["hard"]
    assert found[0] == UP[0]
    assert found[1] < UP[1]
    assert found[2] > UP[2]


def test_probabilities_are_averaged_and_not_logits():
    scores = mean_scores([np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])])
    np.testing.assert_allclose(np.exp(scores), [[0.7, 0.3]])


def test_predictions_without_scores_are_refused():
    bare = Predictions("bare.npz", labels=np.array([0, 1]), predictions=np.array([0, 1]))
    with pytest.raises(ValueError, match=r"bare\.npz holds neither probabilities nor logits"):
        log_probabilities(bare)


def test_offsets_lift_a_class_that_is_hidden_behind_another():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 200)
    scores = np.eye(3)[labels] * 2 + rng.normal(size=(600, 3)) - np.array([0, 0, 2.0])
    before = (scores.argmax(1) == labels)[labels == 2].mean()
    shift = fit_offsets(scores, labels, Aim("worst"))
    after = ((scores + shift).argmax(1) == labels)[labels == 2].mean()
    assert shift[2] == max(shift)
    assert after > before + 0.2
    held_out = held_out_offsets(scores, labels, Aim("worst"))
    assert (held_out.argmax(1) == labels)[labels == 2].mean() > before + 0.2


@pytest.mark.parametrize("words", ["", "soon", "2 runs", "0m", "30", "-5m"])
def test_bad_budgets_are_refused(words):
    with pytest.raises(ValueError, match="budget must be"):
        Budget.parse(words)


def test_a_journal_keeps_decisions_until_another_budget_is_given(tmp_path):
    journal = Journal(tmp_path, Budget.parse("10 runs"), 1)
    assert journal.decide("seeds", lambda: 3) == 3
    journal.note_run("baseline", 8.0, 1.0)
    again = Journal(tmp_path, Budget.parse("10 runs"), 1)
    assert again.decide("seeds", lambda: 5) == 3
    longer = Journal(tmp_path, Budget.parse("1h"), 2)
    assert longer.decide("seeds", lambda: 5) == 5
    assert longer.seconds_per_run == 8.0
    assert 600 < longer.left < 3600 * 2 / 8
