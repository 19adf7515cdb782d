from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation.auditing import audit
from classmargin.evaluation.prediction_files import read_groups, read_sample_table, read_texts
from classmargin.evaluation.samples import find_slices, group_accuracies, write_samples

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(4), 200)


def audit_with(wrong, **options):
    predictions = np.where(wrong, (LABELS + 1) % 4, LABELS)
    return audit(LABELS, predictions=predictions, class_names=list("abcd"), bootstrap=0, **options)


def test_a_dark_slice_of_one_class_is_found_with_its_numbers():
    light = np.where(RNG.random(800) < 0.3, "dark", "bright")
    wrong = (RNG.random(800) < 0.1) | ((LABELS == 2) & (light == "dark") & (RNG.random(800) < 0.5))
    found = find_slices(audit_with(wrong), pd.DataFrame({"light": light}))
    row = found[found["found"]].iloc[0]
    inside = (LABELS == 2) & (light == "dark")
    assert row[["class_name", "property", "value", "n"]].tolist() == ["c", "light", "dark", inside.sum()]
    assert row["accuracy"] == pytest.approx(1 - wrong[inside].mean())
    assert row["elsewhere"] == pytest.approx(1 - wrong[(LABELS == 2) & (light == "bright")].mean())
    assert row["low"] < row["accuracy"] < row["high"]


def test_a_slice_of_hard_classes_is_not_called_bad():
    wrong = (LABELS == 0) & (RNG.random(800) < 0.6)
    camera = np.where((LABELS == 0) | (RNG.random(800) < 0.1), "x", "y")  # nearly all of the hard class
    found = find_slices(audit_with(wrong), pd.DataFrame({"camera": camera}))
    assert not found["found"].any()


def test_a_slice_across_classes_is_found():
    camera = np.where(RNG.random(800) < 0.3, "old", "new")
    wrong = RNG.random(800) < np.where(camera == "old", 0.35, 0.1)
    found = find_slices(audit_with(wrong), pd.DataFrame({"camera": camera}))
    everywhere = found[(found["class_name"] == "") & found["found"]]
    assert everywhere["value"].tolist() == ["old"]


def test_chance_alone_is_rarely_called_a_slice():
    wrong = RNG.random(800) < 0.3
    noise = pd.DataFrame({f"p{k}": RNG.integers(0, 3, 800).astype(str) for k in range(20)})
    assert find_slices(audit_with(wrong), noise)["found"].sum() <= 1


def test_numbers_are_cut_into_thirds_and_free_text_is_left_out():
    brightness = RNG.random(800)
    wrong = RNG.random(800) < np.where(brightness < 1 / 3, 0.6, 0.05)
    frame = pd.DataFrame({"brightness": brightness, "name": [f"file {k}" for k in range(800)]})
    found = find_slices(audit_with(wrong), frame)
    assert set(found["property"]) == {"brightness"}
    assert found["value"].iloc[0].startswith("low (≤ 0.3")


def test_small_slices_are_not_tested():
    place = np.full(800, "usual")
    place[:10] = "rare"
    found = find_slices(audit_with(place == "rare"), pd.DataFrame({"place": place}))
    assert len(found) == 0


def test_groups_count_errors_that_stay_inside():
    predictions = LABELS.copy()
    predictions[:50] = 1  # inside the group of a and b
    predictions[200:210] = 3  # outside of it
    result = audit(LABELS, predictions=predictions, class_names=list("abcd"), bootstrap=0)
    row = group_accuracies(result, ["g", "g", "h", "h"]).set_index("group").loc["g"]
    assert row["accuracy"] == pytest.approx(340 / 400)
    assert row["group_accuracy"] == pytest.approx(390 / 400)
    assert row["inside"] == pytest.approx(50 / 60)


def test_tables_are_matched_by_identity_and_refused_when_they_do_not_fit(tmp_path):
    result = audit([0, 1, 1], predictions=[0, 1, 0], class_names=["a", "b"], sample_id=["x", "y", "z"], bootstrap=0)
    file = tmp_path / "m.csv"
    file.write_text("sample_id,camera\nz,3\nx,1\ny,2\nunused,9\n")
    assert read_sample_table(file, result)["camera"].tolist() == ["1", "2", "3"]
    for text, message in (
        ("sample_id,camera\nx,1\ny,2\n", "got none for sample_id 'z'"),
        ("sample_id,camera\nx,1\nx,2\ny,1\nz,1\n", "'x' more than once"),
        ("camera\n1\n2\n", r"one row per sample \(3\), got 2 rows"),
        ("", "must hold|not a readable"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_sample_table(file, result)
    groups = tmp_path / "g.csv"
    groups.write_text("class,group\na,one\nb,two\n")
    assert read_groups(groups, result) == ("one", "two")
    groups.write_text("class,group\na,one\n")
    with pytest.raises(ValueError, match="got none for 'b'"):
        read_groups(groups, result)
    groups.write_text("class,group\na,one\nc,one\n")
    with pytest.raises(ValueError, match="'c', which is none of them"):
        read_groups(groups, result)


def test_texts_come_by_line_list_or_table(tmp_path):
    result = audit([0, 1], predictions=[0, 1], class_names=["a", "b"], sample_id=[7, 8], bootstrap=0)
    for name, content in (
        ("t.txt", "one\ntwo\n"),
        ("t.json", '["one", "two"]'),
        ("t.csv", "sample_id,text\n8,two\n7,one\n"),
    ):
        (tmp_path / name).write_text(content)
        assert read_texts(tmp_path / name, result) == ["one", "two"]
    (tmp_path / "t.txt").write_text("one\n")
    with pytest.raises(ValueError, match=r"one text per sample \(2\), got 1"):
        read_texts(tmp_path / "t.txt", result)


def test_no_cell_of_a_written_table_is_a_formula(tmp_path):
    hostile = ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "safe"]
    write_samples(tmp_path / "s.csv", pd.DataFrame({"sample_id": hostile, "probability": [-0.5] * 6}))
    back = pd.read_csv(tmp_path / "s.csv")
    assert not back["sample_id"].str.match(r"^[=+\-@\t]").any()
    assert back["probability"].tolist() == [-0.5] * 6
