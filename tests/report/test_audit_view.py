from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation.auditing import audit
from classmargin.report import audit_tables
from classmargin.report.audit_tables import audit_verdict
from classmargin.report.tables import to_markdown


def audit_of(labels, predictions, num_classes, **options):
    return audit(np.array(labels), predictions=np.array(predictions), num_classes=num_classes, bootstrap=200, **options)


def test_headlines_repeat_the_audit(small_audit):
    rows = {row["metric"]: row for row in audit_tables.headline_table(small_audit).rows}
    assert rows["hard third of classes"]["value"] == small_audit.hard
    assert rows["hard third of classes"]["interval"] == small_audit.interval("hard")
    assert len(rows) == 6


def test_lagging_classes_come_first(small_audit):
    frame = small_audit.by_class[small_audit.by_class["lags"]].sort_values("accuracy", kind="stable")
    table = audit_tables.failing_table(small_audit, 1)
    assert table.title == "Classes that lag behind"
    assert len(frame) == 1
    assert [row["class_name"] for row in table.rows] == frame["class_name"].tolist()[:1]
    assert table.note == ""


def test_the_worst_classes_are_shown_where_none_lags():
    table = audit_tables.failing_table(audit_of([0, 0, 1, 1, 2], [0, 1, 1, 1, 2], 3), 2)
    assert table.title == "Worst classes (none lags behind)"
    assert [row["class_name"] for row in table.rows] == ["0", "2"]  # one right sample says less than two
    assert table.note == "and 1 more class"


def test_a_narrow_table_has_the_leading_reason_and_its_step_in_one_column(small_audit):
    table = audit_tables.failing_table(small_audit, 1, narrow=True)
    row = table.rows[0]
    assert table.cells(row)[-1] == f"{row['reason']} → {row['next_step']}"


def test_class_table_holds_every_class_worst_first(small_audit):
    rows = audit_tables.class_table(small_audit).rows
    accuracy = [row["accuracy"] for row in rows]
    assert accuracy == sorted(accuracy)
    assert len(rows) == 6


def test_class_table_shows_only_columns_that_say_something():
    bare = audit_tables.class_table(audit_of([0, 0, 1, 1], [0, 1, 1, 1], 2))
    keys = {column.key for column in bare.columns}
    assert {"class_name", "n", "accuracy", "interval", "precision"} <= keys
    assert not keys & {"spread", "ece", "weight_norm", "output_margin"}


def test_absent_classes_are_last_and_never_worst():
    result = audit_of([0, 0, 2, 2], [0, 1, 2, 2], 3, class_names=["a", "absent one", "c"])
    assert [row["class_name"] for row in audit_tables.class_table(result).rows] == ["a", "c", "absent one"]
    assert "absent one" not in to_markdown(audit_tables.failing_table(result, 10))


@pytest.mark.parametrize(
    ("ranking", "words"), [("corrected", "lowest true accuracy"), ("own", "lowest observed accuracy")]
)
def test_the_worst_class_has_one_interval_on_a_page_that_of_its_row(ranking, words, make_audit):
    # The card said "worst class: NAME 61.5-72.0", the row of that class 52.2-77.6.
    found = make_audit(ranking=ranking)
    (row,) = (row for row in audit_tables.headline_table(found).rows if row["interval"] == found.interval("worst"))
    assert row["metric"] == words
    names = [str(row["metric"]) for row in audit_tables.headline_table(found).rows]
    assert not set(names) & set(found.class_names)
    limits = ("estimate_low", "estimate_high") if ranking == "corrected" else ("low", "high")
    of_class = found.by_class.set_index("class_name")
    for shown in audit_tables.class_rows(found):
        assert shown["interval"] == tuple(of_class.loc[shown["class_name"], name] for name in limits)


def test_verdict_names_the_thirds_and_the_worst_class(small_audit):
    words = audit_verdict(small_audit)
    assert f"the hard third reaches {100 * small_audit.hard:.1f}%" in words
    lowest = small_audit.by_class["estimate"].min()
    assert f"“{small_audit.disparity['worst_class']}” ({100 * lowest:.1f}%)" in words


def test_verdict_counts_classes_whose_whole_interval_lies_below_the_overall_accuracy():
    # Nine classes are always right, one is right once in ten: its interval ends far below 91 %.
    labels = np.repeat(np.arange(10), 100)
    predictions = np.where((labels == 4) & (np.arange(1000) % 10 != 0), 5, labels)
    words = audit_verdict(audit_of(labels, predictions, 10))
    assert words.startswith(
        "1 of 10 classes lags behind the overall accuracy of 91.0%: “4” (10.3%) (chance would give less than one)"
    )


def test_equal_classes_are_not_called_lagging():
    labels = np.repeat(np.arange(4), 50)
    predictions = np.where(np.arange(200) % 5 == 0, (labels + 1) % 4, labels)
    found = audit_of(labels, predictions, 4)
    assert audit_verdict(found).startswith("No evidence that classes differ: 4 classes")
    own = audit_of(labels, predictions, 4, ranking="own")
    assert audit_verdict(own).startswith("No more classes lag")


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
    assert audit_verdict(audit_of(labels, predictions, num_classes)) == words


def test_geometry_shows_what_is_known(small_audit):
    known = audit_tables.geometry_table(small_audit)
    assert "Mean of ‖ŝ‖ / ‖μ̂‖" in [row["measure"] for row in known.rows]
    assert audit_tables.geometry_table(audit_of([0, 1], [0, 0], 2)).rows == []


def test_every_known_measure_of_the_audit_has_words(small_audit):
    told = {key for key, value in small_audit.geometry.items() if value is not None}
    assert told <= {measure.key for measure in audit_tables.GEOMETRY}
    assert {measure.key for measure in audit_tables.DISPARITY} <= {*small_audit.disparity, "ece"}


def test_bounds_come_greatest_first(small_audit):
    bounds = {
        "terms": {"empirical": 0.25},
        "by_class": pd.DataFrame({"class_name": ["a", "b"], "bound": [1.5, 3.0]}),
        "statement": "…",
    }
    terms, classes = audit_tables.bound_tables(dataclasses.replace(small_audit, bounds=bounds))
    assert [row["term"] for row in terms.rows] == ["Empirical margin loss"]
    assert [row["class_name"] for row in classes.rows] == ["b", "a"]
    assert audit_tables.bound_tables(dataclasses.replace(small_audit, bounds=None)) == []


def test_short_report_has_headlines_first(small_audit):
    titles = [table.title for table in audit_tables.report_tables(small_audit, 3)]
    assert titles == ["Accuracy", "Classes that lag behind"]
    assert len(audit_tables.report_tables(small_audit, 3, full=True)) > 5


def test_printing_an_audit_names_the_lagging_classes_with_reason_and_step(small_audit):
    lagging = small_audit.by_class[small_audit.by_class["lags"]]
    words = str(small_audit)
    assert words.startswith(small_audit.verdict)
    for row in lagging.to_dict("records"):
        assert f"{row['class_name']} (n = {row['n']}): {row['verdict']} → {row['next_step']}" in words
    assert max(map(len, repr(small_audit).splitlines())) < 120


def test_a_notebook_shows_names_escaped(nasty_audit):
    shown = nasty_audit._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown
    assert "&lt;" in shown


def test_verdict_of_thirds_that_are_upside_down_has_no_negative_lead():
    labels = np.repeat(np.arange(3), 10)
    predictions = np.where(np.arange(30) % 10 < 2 + 3 * labels, labels, (labels + 1) % 3)
    words = audit_verdict(audit_of(labels, predictions, 3, ranking="reference", reference=[0.9, 0.5, 0.1]))
    assert "the hard third reaches 80.0%, 60.0 points more than the easy third" in words


def test_a_correlation_without_an_interval_shows_a_dash():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 10)
    predictions = np.where(np.arange(30) % 10 < 2 + 3 * labels, labels, (labels + 1) % 3)
    table = audit_tables.correlation_table(audit_of(labels, predictions, 3, features=rng.normal(size=(30, 4))))
    assert {row["range"] for row in table.rows} == {"–"}
