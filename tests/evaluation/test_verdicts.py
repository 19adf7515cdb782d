import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation import class_reasons
from classmargin.evaluation.class_reasons import STEPS, samples_to_see


def verdicts(known):
    return [verdict.words for verdict in class_reasons.verdicts(*known)]


def facts(**changes):
    """Eight unremarkable classes; the last two are the hard third."""
    base = {
        "n": np.full(8, 500.0),
        "accuracy": np.array([0.9] * 6 + [0.6] * 2),
        "low": np.array([0.87] * 6 + [0.55] * 2),
        "high": np.array([0.92] * 6 + [0.65] * 2),
        "lags": np.array([False] * 6 + [True] * 2),
        "explained": np.array([False] * 6 + [True] * 2),
        "spread": np.ones(8),
        "label_issues": np.full(8, 5.0),
        "confidently_wrong": np.full(8, 0.01),
        "confused_with": [["x", "y", "z"]] * 8,
        "confused_samples": np.array([[10, 10, 10]] * 8),
        "train_accuracy": np.full(8, np.nan),
        "separability": np.full(8, np.nan),
    }
    for name, values in changes.items():
        base[name] = base[name].copy()
        for k, value in values.items():
            base[name][k] = value
    confused = base.pop("confused_with"), base.pop("confused_samples")
    return pd.DataFrame(base), *confused


def test_easy_classes_need_no_reason_and_hard_ones_get_one():
    found = verdicts(facts())
    assert found[:6] == [""] * 6
    assert found[6] == "errors go to many classes (30 of 200 to the 3 most frequent)"


def test_a_few_classes_that_take_most_errors_are_named():
    found = verdicts(facts(confused_samples={7: [70, 60, 50]}))
    assert found[7] == "confused with x, y and z (180 of 200 errors)"


def test_a_wide_hard_class_is_called_spread():
    found = verdicts(facts(spread={6: 2.0, 0: 3.0}))
    assert found[6].startswith("spread: ")
    assert found[0] == ""  # wide but not hard


def test_one_dominant_mistake_is_a_confusion():
    assert verdicts(facts(confused_samples={7: [150, 2, 1]}))[7] == "confused with x (30 % of its samples)"


def test_two_mistakes_are_no_confusion():
    few = {"n": {7: 10}, "accuracy": {7: 0.8}, "confused_samples": {7: [2, 0, 0]}}
    assert class_reasons.verdicts(*facts(**few))[7].reason != "confusion"


def test_doubted_labels_stand_out_or_are_not_named():
    noisy = {"label_issues": {2: 60.0}, "confidently_wrong": {2: 0.1}}
    assert verdicts(facts(**noisy))[2] == "label noise? (60 of 500 samples look mislabelled)"
    weak = {"label_issues": dict.fromkeys(range(8), 60.0), "confidently_wrong": dict.fromkeys(range(8), 0.1)}
    assert not any("label noise" in text for text in verdicts(facts(**weak)))


def test_wide_intervals_say_few_samples():
    found = verdicts(facts(n={1: 10}, low={1: 0.6}, high={1: 0.98}))
    assert found[1] == "too few test samples to tell (n = 10, interval 38 points wide)"


def test_reasons_are_joined_and_absent_classes_have_their_own_word():
    found = verdicts(facts(spread={6: 2.0}, confused_samples={6: [150, 2, 1]}, n={0: 0}))
    assert found[6].count(";") == 1
    assert found[0] == "absent: no samples"


@pytest.mark.parametrize("name", ["spread", "label_issues", "confidently_wrong"])
def test_unknown_numbers_give_no_reason(name):
    found = verdicts(facts(**{name: dict.fromkeys(range(8), np.nan)}))
    assert found[6].startswith("errors go to many classes")


def test_training_accuracy_tells_not_fitted_from_not_generalised():
    found = class_reasons.verdicts(*facts(train_accuracy={6: 0.62, 7: 0.99}))
    assert found[6].reason == "not fitted"
    assert "not fitted (62 % right on its training samples)" in found[6].words
    assert found[6].next_step == "train longer or use a larger model"
    assert found[7].reason == "not generalised"
    assert "99 % right on its training samples" in found[7].words


@pytest.mark.parametrize(("apart", "reason"), [(0.55, "overlap"), (0.9, "confusion"), (np.nan, "confusion")])
def test_a_confused_pair_that_cannot_be_told_apart_overlaps(apart, reason):
    found = class_reasons.verdicts(*facts(confused_samples={7: [150, 2, 1]}, separability={7: apart}))[7]
    assert found.reason == reason
    assert "x" in found.next_step


def test_few_samples_lead_only_where_the_class_does_not_lag_for_certain():
    wide = {"low": {5: 0.4, 7: 0.4}, "high": {5: 0.9, 7: 0.8}}
    found = class_reasons.verdicts(*facts(explained={5: True}, **wide))
    assert found[5].reason == "few samples"
    assert found[7].reason == "scattered"


def test_few_samples_are_the_first_reason_and_a_number_of_samples_that_statsmodels_confirms():
    power = pytest.importorskip("statsmodels.stats.power")
    assert next(iter(STEPS)) == "few samples"
    effect = 0.03 / np.sqrt(0.6 * 0.4)
    needed = power.NormalIndPower(ddof=0).solve_power(effect, alpha=0.05, power=0.8, ratio=0)
    assert samples_to_see(0.6) == pytest.approx(needed, rel=0.05)


def test_an_all_right_hard_third_has_nothing_to_explain():
    found = verdicts(
        facts(
            accuracy=dict.fromkeys(range(8), 1.0),
            lags=dict.fromkeys(range(8), False),
            explained=dict.fromkeys(range(8), False),
        )
    )
    assert found == [""] * 8
