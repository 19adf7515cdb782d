"""Small functions against values worked by hand."""

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation import audit, gate
from classmargin.evaluation.class_diagnosis import margins_of, most_confused
from classmargin.evaluation.comparison import judgement
from classmargin.evaluation.headline_intervals import with_few_in_parts
from classmargin.evaluation.input_checks import column_names, shared_names
from classmargin.evaluation.json_values import to_plain
from classmargin.evaluation.paired_tests import chance_of_few_gains
from classmargin.evaluation.samples import places_in_groups
from classmargin.report.comparison_tables import github_annotations


def test_margins_go_with_the_cube_root_and_an_absent_class_gets_the_mean():
    margins = margins_of(np.array([3.0, 4.0, np.nan, 10.0]), 1.0)
    assert margins.round(4).tolist() == [0.8346, 0.9186, 1.0, 1.2468]


def test_the_most_frequent_mistake_is_named_first():
    counts = np.array([[5, 1, 2], [0, 8, 0], [0, 3, 5]])
    assert most_confused(counts, 1)[0].tolist() == [[2], [0], [1]]


def test_a_difference_is_judged_by_its_interval_and_not_near_its_end():
    assert judgement((0.02, 0.01, 0.03)) == "better than"
    assert judgement((0.005, 0.0001, 0.01)) == "possibly better (near the noise) than"


def test_only_columns_with_names_name_classes():
    assert column_names(pd.DataFrame({"cat": [0.1], "dog": [0.9]})) == ("cat", "dog")
    assert column_names(np.zeros((1, 2))) is None


def test_a_model_with_numbered_classes_adopts_the_names_of_the_others():
    assert shared_names([("0", "1"), ("cat", "dog")]) == ("cat", "dog")


def test_a_difference_reaches_as_far_as_the_limits_of_its_parts():
    low, high = with_few_in_parts((1.0, 1.0), (1.0, 0.97, 1.0), (0.0, 0.0, 0.04))
    assert (low, high) == (pytest.approx(0.95), 1.0)


def test_plain_values_have_no_nan_and_no_arrays():
    assert to_plain({"a": float("nan"), "b": np.array([1, 2])}) == {"a": None, "b": [1, 2]}


def test_chance_of_at_least_five_losses_without_a_gain():
    assert chance_of_few_gains(np.arange(101) - 5, 0.0, 0.02) == pytest.approx(0.051, abs=5e-4)


def test_places_are_counted_within_each_group():
    assert places_in_groups(np.array([7, 3, 7])).tolist() == [0, 0, 1]


def test_a_blind_gate_is_a_warning_beside_the_run():
    old = audit([0, 1] * 3, predictions=[0, 1] * 3, num_classes=2, bootstrap=0)
    assert github_annotations(gate(old, old))[0].startswith("::warning title=classmargin gate::a")
