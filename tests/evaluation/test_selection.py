import numpy as np
import pytest

from classmargin.evaluation import audit, select
from classmargin.evaluation.selection import RULES

EPOCHS = [
    {
        "validation": {"overall": 0.7, "hard": 0.5, "worst": 0.2, "gap": 0.3},
        "test": {"overall": 0.9, "hard": 0.1, "worst": 0.1},
    },
    {
        "validation": {"overall": 0.8, "hard": 0.4, "worst": 0.3, "gap": 0.1},
        "test": {"overall": 0.6, "hard": 0.8, "worst": 0.1},
    },
    {
        "validation": {"overall": 0.8, "hard": 0.5, "worst": 0.1, "gap": 0.2},
        "test": {"overall": 0.7, "hard": 0.2, "worst": 0.4},
    },
]


@pytest.mark.parametrize(
    ("rule", "position"),
    [
        ("last", 2),
        ("best_overall_validation", 1),
        ("best_hard_validation", 0),
        ("best_worst_validation", 1),
        ("smallest_gap_validation", 1),
        ("oracle_best_overall_test", 0),
        ("oracle_best_hard_test", 1),
        ("oracle_best_worst_test", 2),
    ],
)
def test_rules_select_the_earliest_best(rule, position):
    assert select(EPOCHS, rule) == position


def test_rules_that_look_at_the_test_set_say_oracle():
    for name, rule in RULES.items():
        assert (rule is not None and rule[0] == "test") == ("oracle" in name), name


def test_rules_without_oracle_do_not_need_a_test_set():
    records = [{"validation": epoch["validation"]} for epoch in EPOCHS]
    for name in RULES:
        if "oracle" not in name:
            assert select(records, name) == select(EPOCHS, name)


def test_audits_are_records():
    good, bad = (audit([0, 1], predictions=p, num_classes=2, bootstrap=0) for p in ([0, 1], [0, 0]))
    assert select([{"validation": bad}, {"validation": good}], "best_worst_validation") == 1


@pytest.mark.parametrize(
    ("message", "records", "rule"),
    [
        ("did you mean 'best_hard_validation'", EPOCHS, "best_hard_validatoin"),
        ("at least one record", [], "last"),
        (
            r"records\[0\] must hold a number test.hard, got None",
            [{"validation": {}}],
            "oracle_best_hard_test",
        ),
        (
            r"records\[0\] must hold a number validation.hard",
            [{"validation": {"hard": float("nan")}}],
            "best_hard_validation",
        ),
    ],
)
def test_bad_records_are_refused(message, records, rule):
    with pytest.raises(ValueError, match=message):
        select(records, rule)


def test_numbers_of_numpy_are_numbers():
    records = [{"validation": {"hard": np.float32(value)}} for value in (0.5, 0.7, 0.6)]
    assert select(records, "best_hard_validation") == 1
