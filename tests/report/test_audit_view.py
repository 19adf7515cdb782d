from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation.audit import audit
from classmargin.report import audit_view
from classmargin.report.tables import to_markdown


def audit_of(labels, predictions, num_classes, **options):
    return audit(
        np.array(labels), predictions=np.array(predictions), num_classes=num_classes, bootstrap=200, **options
    )


def test_headlines_repeat_the_audit(small_audit):
    rows = {row["metric"]: row for row in audit_view.headline_table(small_audit).rows}
    assert rows["hard third of classes"]["value"] == small_audit.hard
    assert rows["hard third of classes"]["interval"] == small_audit.interval("hard")
    assert len(rows) == 6


def test_worst_classes_come_worst_first_with_a_count_of_the_rest(small_audit):
    table = audit_view.worst_table(small_audit, 2)
    lowest = small_audit.by_class.sort_values("accuracy", kind="stable")["class_name"].tolist()
    assert [row["class_name"] for row in table.rows] == lowest[:2]
    assert table.note == "and 4 more classes"
    assert audit_view.worst_table(small_audit, 5).note == "and 1 more class"
    assert audit_view.worst_table(small_audit, 99).note == ""


def test_class_table_holds_every_class_worst_first(small_audit):
    rows = audit_view.class_table(small_audit).rows
    accuracy = [row["accuracy"] for row in rows]
    assert accuracy == sorted(accuracy)
    assert len(rows) == 6


def test_class_table_shows_only_columns_that_say_something():
    bare = audit_view.class_table(audit_of([0, 0, 1, 1], [0, 1, 1, 1], 2))
    keys = {column.key for column in bare.columns}
    assert {"class_name", "n", "accuracy", "interval", "precision"} <= keys
    assert not keys & {"spread", "ece", "weight_norm", "output_margin"}


def test_absent_classes_are_last_and_never_worst():
    result = audit_of([0, 0, 2, 2], [0, 1, 2, 2], 3, class_names=["a", "absent one", "c"])
    assert [row["class_name"] for row in audit_view.class_table(result).rows] == ["a", "c", "absent one"]
    assert "absent one" not in to_markdown(audit_view.worst_table(result, 10))


def test_verdict_names_the_thirds_and_the_worst_class(small_audit):
    words = audit_view.audit_verdict(small_audit)
    assert f"the hard third reaches {100 * small_audit.hard:.1f}%" in words
    assert f"“{small_audit.disparity['worst_class']}”, {100 * small_audit.worst:.1f}%" in words


def test_verdict_counts_classes_whose_whole_interval_lies_below_the_overall_accuracy():
    # Nine classes are always right, one is right once in ten: its interval ends far below 91 %.
    labels = np.repeat(np.arange(10), 100)
    predictions = np.where((labels == 4) & (np.arange(1000) % 10 != 0), 5, labels)
    words = audit_view.audit_verdict(audit_of(labels, predictions, 10))
    assert words.startswith(
        "1 of 10 classes lags behind the overall accuracy of 91.0% (chance would give less than one)"
    )


def test_equal_classes_are_not_called_lagging():
    labels = np.repeat(np.arange(4), 50)
    predictions = np.where(np.arange(200) % 5 == 0, (labels + 1) % 4, labels)
    assert audit_view.audit_verdict(audit_of(labels, predictions, 4)).startswith("No more classes lag")


@pytest.mark.parametrize(
    ("labels", "predictions", "num_classes", "words"),
    [
        ([0, 0], [0, 0], 1, "The only class with samples is right 100.0% of the time (n = 2)."),
        ([1], [0], 3, "The only class with samples is right 0.0% of the time (n = 1)."),
        ([0, 1, 2], [0, 1, 2], 3, "All 3 classes are classified without an error on 3 samples."),
        ([0, 1, 2], [1, 2, 0], 3, "Not one of 3 samples of 3 classes is classified right."),
    ],
)
def test_verdict_of_degenerate_test_sets(labels, predictions, num_classes, words):
    assert audit_view.audit_verdict(audit_of(labels, predictions, num_classes)) == words


def test_geometry_shows_what_is_known(small_audit):
    known = audit_view.geometry_table(small_audit)
    assert "Mean of ‖ŝ‖ / ‖μ̂‖" in [row["measure"] for row in known.rows]
    assert audit_view.geometry_table(audit_of([0, 1], [0, 0], 2)).rows == []


def test_every_known_measure_of_the_audit_has_words(small_audit):
    told = {key for key, value in small_audit.geometry.items() if value is not None}
    assert told <= set(audit_view.GEOMETRY)
    assert set(audit_view.DISPARITY) <= set(small_audit.disparity)


def test_bounds_come_greatest_first_and_terms_only_as_numbers(small_audit):
    bounds = {
        "terms": {"empirical": 0.25, "kind": "correct"},
        "by_class": pd.DataFrame({"class_name": ["a", "b"], "bound": [1.5, 3.0]}),
        "statement": "…",
    }
    terms, classes = audit_view.bound_tables(dataclasses.replace(small_audit, bounds=bounds))
    assert [row["term"] for row in terms.rows] == ["Empirical margin loss"]
    assert [row["class_name"] for row in classes.rows] == ["b", "a"]
    assert audit_view.bound_tables(dataclasses.replace(small_audit, bounds=None)) == []


def test_short_report_has_headlines_first(small_audit):
    titles = [table.title for table in audit_view.report_tables(small_audit, 3)]
    assert titles[:2] == ["Accuracy", "Worst classes"]


def test_verdict_of_thirds_that_are_upside_down_has_no_negative_lead():
    labels = np.repeat(np.arange(3), 10)
    predictions = np.where(np.arange(30) % 10 < 2 + 3 * labels, labels, (labels + 1) % 3)
    words = audit_view.audit_verdict(
        audit_of(labels, predictions, 3, ranking="reference", reference=[0.9, 0.5, 0.1])
    )
    assert "the hard third reaches 80.0%, 60.0 points more than the easy third" in words


def test_a_correlation_without_an_interval_shows_a_dash():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 10)
    predictions = np.where(np.arange(30) % 10 < 2 + 3 * labels, labels, (labels + 1) % 3)
    table = audit_view.correlation_table(audit_of(labels, predictions, 3, features=rng.normal(size=(30, 4))))
    assert {row["range"] for row in table.rows} == {"–"}
