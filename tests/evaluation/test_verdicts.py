import numpy as np
import pytest

from classmargin.evaluation.verdicts import ClassFacts, verdicts


def facts(**changes):
    """Eight unremarkable classes; the last two are the hard third."""
    base = {
        "n": np.full(8, 500.0),
        "accuracy": np.array([0.9] * 6 + [0.6] * 2),
        "low": np.array([0.87] * 6 + [0.55] * 2),
        "high": np.array([0.92] * 6 + [0.65] * 2),
        "tier": ["easy"] * 3 + ["medium"] * 3 + ["hard"] * 2,
        "spread": np.ones(8),
        "label_issues": np.full(8, 5.0),
        "confidently_wrong": np.full(8, 0.01),
        "confused_with": ["x"] * 8,
        "confusion_share": np.full(8, 0.02),
    }
    for name, values in changes.items():
        base[name] = base[name].copy()
        for k, value in values.items():
            base[name][k] = value
    return ClassFacts(**base)


def test_easy_classes_need_no_reason_and_hard_ones_get_one():
    found = verdicts(facts())
    assert found[:6] == [""] * 6
    assert found[6] == "errors go to many classes"


def test_a_wide_hard_class_is_called_spread():
    found = verdicts(facts(spread={6: 2.0, 0: 3.0}))
    assert found[6].startswith("spread: ")
    assert found[0] == ""  # wide but not hard


def test_one_dominant_mistake_is_a_confusion():
    assert verdicts(facts(confusion_share={7: 0.3}))[7] == "confused with x (30 % of its samples)"


def test_two_mistakes_are_no_confusion():
    few = {"n": {7: 10}, "accuracy": {7: 0.8}, "confusion_share": {7: 0.2}}
    assert "confused" not in verdicts(facts(**few))[7]


def test_doubted_labels_stand_out_or_are_not_named():
    noisy = {"label_issues": {2: 60.0}, "confidently_wrong": {2: 0.1}}
    assert verdicts(facts(**noisy))[2] == "label noise? (60 of 500 samples look mislabelled)"
    weak = {"label_issues": dict.fromkeys(range(8), 60.0), "confidently_wrong": dict.fromkeys(range(8), 0.1)}
    assert not any("label noise" in text for text in verdicts(facts(**weak)))


def test_wide_intervals_say_few_samples():
    found = verdicts(facts(n={1: 10}, low={1: 0.6}, high={1: 0.98}))
    assert found[1] == "few samples (n = 10, interval 38 points wide)"


def test_reasons_are_joined_and_absent_classes_have_their_own_word():
    found = verdicts(facts(spread={6: 2.0}, confusion_share={6: 0.3}, n={0: 0}))
    assert found[6].count(";") == 1
    assert found[0] == "absent: no samples"


@pytest.mark.parametrize("name", ["spread", "label_issues", "confidently_wrong"])
def test_unknown_numbers_give_no_reason(name):
    found = verdicts(facts(**{name: dict.fromkeys(range(8), np.nan)}))
    assert found[6] == "errors go to many classes"


def test_an_all_right_hard_third_has_nothing_to_explain():
    found = verdicts(
        facts(accuracy=dict.fromkeys(range(8), 1.0), confusion_share=dict.fromkeys(range(8), 0.0))
    )
    assert found == [""] * 8
