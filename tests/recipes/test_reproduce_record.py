"""Records: what is kept, what is refused, and the page that is made of them alone."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from classmargin.recipes.existing_runs import settings_difference, settings_of
from classmargin.recipes.record import (
    BlockResult,
    Change,
    Record,
    RowResult,
    RunScore,
    change_table,
    cost_table,
    default_tables,
    own_change_table,
    read_record,
    write_record,
)
from classmargin.recipes.record_pages import notes_of, record_markdown, render_records, verdict_of
from classmargin.recipes.run_options import gather_config
from classmargin.recipes.run_recipe import seconds_per_step
from classmargin.training.run_folder import RunFolder

METRICS = ("overall", "easy", "medium", "hard", "worst", "gap")


def row(key, title, value, *, change=None, paper=None, seconds=10.0):
    runs = tuple(RunScore(seed, f"hash{seed}", {"overall": value}, 100, seconds, seconds / 100) for seed in range(2))
    estimates = dict.fromkeys(METRICS, (value, value - 0.05, value + 0.05))
    return RowResult(key, title, key, {}, runs, estimates, estimates, {}, (value, math.nan), 1.2, change, paper)


@pytest.fixture
def record():
    deltas = dict.fromkeys(METRICS, (0.1, 0.02, 0.18))
    change = Change(deltas, {**deltas, "hard": (-0.01, -0.05, 0.03)}, "MR² is better.", 3, 1, (2, 2))
    printed = {"overall": 70.9, "easy": 84.5, "medium": 71.0, "hard": 56.7}
    rows = (
        row("erm", "ERM", 0.5, paper=printed),
        row(
            "mr2",
            "MR²",
            0.6,
            change=change,
            paper={**printed, "hard": 61.9, "doubt": "it equals another row"},
        ),
    )
    settings = {"loop": {"epochs": 3}}
    block = BlockResult("b", "CIFAR-100, small", settings, ("cat", "dog|x"), 20, rows, "CIFAR-100, ResNet-32")
    session = {
        "started": "2026-01-02T03:04:05",
        "versions": {"classmargin": "0.1", "torch": "2.5"},
        "git": None,
    }
    return Record("table3-components", "Table 3", "Which?", "laptop", "a note.", "classmargin x", session, (block,))


def test_a_record_comes_back_from_its_file_as_it_was(record, tmp_path):
    path = write_record(record, tmp_path / "record.json")
    again = read_record(tmp_path)
    assert again.to_dict() == record.to_dict()
    assert again.blocks[0].rows[1].change == record.blocks[0].rows[1].change
    assert math.isnan(again.blocks[0].rows[0].by_class[1])
    assert path.stat().st_size < 10_000
    assert "NaN" not in path.read_text()
    assert '"class_names": ["cat", "dog|x"]' in path.read_text(), "lists of plain values take one line"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "is not a record"),
        ("[]", "no format"),
        ('{"format": "other"}', "no format"),
        ('{"format": "classmargin-record", "version": 99}', "version 99"),
        ('{"format": "classmargin-record", "version": 1}', "is damaged"),
        ('{"format": "classmargin-record", "version": 1, "blocks": [{"rows": 3}]}', "is damaged"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text, words):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_record(tmp_path / "record.json")


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no record at .*record\.json"):
        read_record(tmp_path)


def test_the_page_shows_ours_beside_the_printed_values_with_doubts(record, tmp_path):
    write_record(record, tmp_path / "record.json")
    page = render_records([tmp_path], title="Evidence")
    assert page.startswith("# Evidence\n\n## table3-components: Table 3")
    assert "60.0 (55.0–65.0)" in page
    assert "61.9 ?" in page
    assert "it equals another row" in page
    assert "`classmargin x`" in page
    assert "those of CIFAR-100, ResNet-32" in page
    assert record_markdown(record) in page


def test_a_comparison_that_the_paper_does_not_have_is_headed_by_its_data(record):
    custom = dataclasses.replace(record, recipe="custom")
    assert record_markdown(custom).startswith(f"## {record.blocks[0].title}\n")


def test_changes_show_whether_their_interval_excludes_zero(record):
    (line,) = change_table(record).rows
    assert line["hard"] == "+10.0* (+2.0 to +18.0)"
    assert line["classes"] == "3 / 1"
    (line,) = own_change_table(record).rows
    assert line["hard"] == "-1.0 (-5.0 to +3.0)"
    assert line["paper_hard"] == "+5.2 ?"
    assert verdict_of(record) == "MR² is better."


def test_a_table_says_in_its_title_whether_its_methods_had_an_equal_footing(record):
    (block,) = record.blocks
    assert [table.title for table in default_tables(record)] == [
        "Accuracy on the test set, not on equal footing",
        "Change against the first row, not on equal footing",
        "Change against the first row, own-ranked thirds, not on equal footing",
        "Cross-fitted thirds, not on equal footing",
        "Cost",
    ]
    lacking = dataclasses.replace(record, blocks=(dataclasses.replace(block, lacks=("a null row",)),))
    assert any("lacks a null row (--equal-footing N" in note for note in notes_of(lacking))
    fair = dataclasses.replace(record, blocks=(dataclasses.replace(block, lacks=()),))
    assert "Accuracy on the test set" in [table.title for table in default_tables(fair)]
    assert not [note for note in notes_of(fair) if "footing" in note]


def test_a_page_of_many_rows_opens_with_one_sentence_and_its_table(record):
    (block,) = record.blocks
    moved = dataclasses.replace(block.rows[1].change, verdict="MR² is worse.")
    moved = dataclasses.replace(moved, crossfit=dict.fromkeys(METRICS, (-0.1, -0.2, -0.05)))
    others = [row(f"m{n}", f"M{n}", 0.5, change=moved if n == 0 else block.rows[1].change) for n in range(5)]
    many = dataclasses.replace(record, blocks=(dataclasses.replace(block, rows=(block.rows[0], *others)),))
    expected = "5 rows against the first, accuracy of the hard third: higher for M1, M2, M3, M4; lower for M0."
    assert verdict_of(many) == expected
    page = record_markdown(many)
    assert page.index("| ERM |") < page.index("MR² is worse.")


def test_cost_is_a_step_and_a_whole_run_relative_to_the_first_row(record):
    line = cost_table(record).rows[1]
    assert (line["steps"], line["milliseconds"], line["relative"]) == (100, "100.0", "1.20")


def test_several_blocks_are_told_apart_by_a_column(record):
    two = dataclasses.replace(record, blocks=(record.blocks[0], record.blocks[0]))
    for table in default_tables(two):
        assert table.columns[0].title == "Setting"
    assert "CIFAR-100, small: MR² is better." in verdict_of(two)


def test_what_was_left_out_or_failed_is_said(record):
    said = " ".join(
        notes_of(dataclasses.replace(record, left_out={"WRN": "needs a GPU"}, failed={"ERM seed 1": "it diverged"}))
    )
    assert "Left out: WRN (needs a GPU)" in said
    assert "Failed: ERM seed 1 (it diverged)" in said


def test_a_resumed_run_is_timed_by_its_last_session(tmp_path):
    folder = RunFolder(tmp_path)
    done = {"seconds": 30.0, "steps": 400}
    assert seconds_per_step(folder, done) == pytest.approx(0.075)
    folder.record_file.write_text(json.dumps({"sessions": [{"resumed_from_step": None}, {"resumed_from_step": 300}]}))
    assert seconds_per_step(folder, done) == pytest.approx(0.3)
    folder.record_file.write_text(json.dumps({"sessions": [{"resumed_from_step": 400}]}))
    assert seconds_per_step(folder, done) is None


def test_settings_are_differences_that_matter_for_the_result():
    base = gather_config(flags={"data": {"root": "somewhere"}, "loop": {"seed": 3}, "machine": {"threads": 4}})
    assert settings_of(base) == {}
    other = gather_config(flags={"loop": {"epochs": 3}, "method": {"name": "mr2", "mean_margin": 2.0}})
    assert settings_difference(other, base) == {"loop": {"epochs": 3}, "method": {"mean_margin": 2.0}}
