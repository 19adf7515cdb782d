from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from classmargin.evaluation.comparison import compare, compare_many
from classmargin.evaluation.release_gate import gate
from classmargin.report import comparison_tables


def test_pair_summary_has_one_row_a_headline(comparison):
    table = comparison_tables.summary_table(comparison)
    rows = {row["metric"]: row for row in table.rows}
    assert set(rows) == {"overall", "easy", "medium", "hard", "worst", "gap"}
    difference, low, high = comparison.delta("hard")
    assert rows["hard"]["difference"] == difference
    assert rows["hard"]["interval"] == (low, high)
    assert [column.title for column in table.columns][1:3] == ["<i>old</i>", "new & improved"]


def test_changes_come_greatest_loss_first(comparison):
    difference = [row["difference"] for row in comparison_tables.change_table(comparison).rows]
    assert difference == sorted(difference)
    assert len(difference) == len(comparison.class_names)


def test_strongest_changes_are_the_best_supported(comparison):
    table = comparison_tables.change_table(comparison, 2)
    smallest = np.sort(comparison.by_class["q_value"].to_numpy())[:2]
    np.testing.assert_array_equal([row["q_value"] for row in table.rows], smallest)
    assert table.note == "and 4 more classes"


def test_several_models_get_a_table_each(make_audit):
    models = {name: make_audit(noise=noise) for name, noise in (("a", 3.0), ("b", 1.0), ("c", 0.1))}
    tables = comparison_tables.report_tables(compare_many(models, bootstrap=200), 3)
    assert [table.title for table in tables] == [
        "Candidates by overall change",
        "Summary",
        "Strongest changes, b against a",
        "Strongest changes, c against a",
    ]
    changes = [row["overall"] for row in tables[0].rows]
    assert changes == sorted(changes, reverse=True)
    assert [row["model"] for row in tables[1].rows] == ["b"] * 6 + ["c"] * 6
    for row in tables[1].rows:
        assert row["candidate"] - row["baseline"] == pytest.approx(row["difference"])


def test_gate_lists_failed_classes_first(make_audit):
    worse, better = (make_audit(per_class=60, noise=noise) for noise in (4.0, 0.1))
    failed = gate(worse, better, max_drop=0.02)
    classes = comparison_tables.gate_tables(failed, 3)[0]
    assert failed.by_class["failed"].any()
    assert f"({int(failed.by_class['failed'].sum())})" in classes.title
    assert classes.rows[0]["failed"]
    passed = comparison_tables.gate_tables(gate(better, better), 3)[0]
    assert passed.title == "Classes nearest to failing"
    assert len(passed.rows) == 3


def test_gate_shows_the_p_value_of_the_minimum_where_there_is_one(make_audit):
    worse, better = (make_audit(per_class=60, noise=noise) for noise in (4.0, 0.1))
    plain = comparison_tables.gate_tables(gate(worse, better), 99)[0]
    titles = [column.title for column in plain.columns]
    assert titles[5:] == ["p", "Adjusted p", "Reason"]
    result = gate(worse, worse, max_drop=1.0, min_worst=float(worse.by_class["accuracy"].min()) + 0.06)
    table = comparison_tables.gate_tables(result, 99)[0]
    assert [column.title for column in table.columns][5:] == [
        "p",
        "Adjusted p",
        "Adjusted p, minimum",
        "Reason",
    ]
    assert result.verdict == "CANNOT TELL"  # a limit of everything sees nothing
    assert table.rows[0]["candidate"] == worse.by_class["accuracy"].min()


def test_tiny_probabilities_of_the_gate_are_shown_without_powers_of_ten(make_audit):
    model = make_audit(per_class=60)
    power = comparison_tables.gate_tables(gate(model, model, max_drop=0.5), 3)[1]
    shown = [power.cells(row)[2] for row in power.rows]
    assert shown[0] == "<0.001"
    assert not any("e-" in text for text in shown)


def test_absent_classes_are_not_in_the_gate_table(make_audit):
    result = gate(make_audit(), make_audit())
    frame = result.by_class.copy()
    frame.loc[0, "n"] = 0
    tables = comparison_tables.gate_tables(dataclasses.replace(result, by_class=frame), 99)
    assert len(tables[0].rows) == 5


def test_the_test_is_called_by_its_name(make_audit):
    one, other = make_audit(bootstrap=0), make_audit(seed=1, bootstrap=0)
    for candidate, words in ((other, "Exact McNemar test"), ([other, one], "t-test with the variance")):
        pair = compare(one, candidate, bootstrap=10)
        for table in (comparison_tables.change_table(pair), comparison_tables.change_table(pair, 3)):
            (hint,) = (column.hint for column in table.columns if column.key == "p_value")
            assert hint.startswith(words)


def test_a_page_of_several_models_repeats_no_note(make_audit):
    one, other = make_audit(bootstrap=0), make_audit(seed=1, bootstrap=0)
    found = compare_many({"A": one, "B": other, "C": [one, other]}, bootstrap=10)
    notes = found.notes
    assert sum("One run of each model" in note for note in notes) == 1
    assert any(note.startswith("B: One run of each model") for note in notes)
