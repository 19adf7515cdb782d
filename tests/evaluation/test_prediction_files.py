from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from classmargin.evaluation import (
    PredictionFileError,
    audit,
    read_class_names,
    read_predictions,
    write_predictions,
)
from classmargin.evaluation.prediction_tables import _ClassColumn

NAMES = ("cat", "dog", "<b>fox</b>", "e,f", "g", "h", "i")


def test_npz_gives_the_audit_of_its_arrays(tmp_path, toy):
    np.savez(
        tmp_path / "a.npz",
        labels=toy.labels,
        logits=toy.logits,
        features=toy.features,
        classifier_weight=toy.weight,
        class_names=np.array(NAMES),
        sample_id=np.arange(600),
    )
    found = read_predictions(tmp_path / "a.npz")
    assert found.class_names == NAMES
    direct = audit(toy.labels, **toy.arrays, class_names=NAMES, sample_id=np.arange(600), bootstrap=50)
    assert found.audit(bootstrap=50).to_dict() == direct.to_dict()


def test_writing_and_reading_come_back(tmp_path, toy):
    file = write_predictions(tmp_path / "run" / "predictions.npz", toy.labels, logits=toy.logits, class_names=NAMES)
    found = read_predictions(file)
    np.testing.assert_array_equal(found.logits, toy.logits)
    assert found.class_names == NAMES
    assert found.features is None


def test_a_refused_write_leaves_no_file(tmp_path, toy):
    with pytest.raises(ValueError, match="labels must lie"):
        write_predictions(tmp_path / "a.npz", toy.labels + 1, logits=toy.logits)
    with pytest.raises(ValueError, match="got 'logit'"):
        write_predictions(tmp_path / "a.npz", toy.labels, logit=toy.logits)
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        write_predictions(tmp_path / "a.csv", toy.labels, logits=toy.logits)
    assert list(tmp_path.iterdir()) == []


def test_run_folders_hold_their_predictions(tmp_path, toy):
    np.savez(tmp_path / "predictions.npz", labels=toy.labels, probabilities=toy.probabilities)
    assert read_predictions(tmp_path).source.endswith("predictions.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PredictionFileError, match=r"is a folder without a predictions\.npz"):
        read_predictions(tmp_path / "empty")


def test_a_run_without_predictions_says_how_they_come_about(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "config.toml").touch()
    with pytest.raises(PredictionFileError, match=r"unfinished run.*classmargin train --out '.*my run' --resume"):
        read_predictions(folder)
    (folder / "done").touch()
    with pytest.raises(PredictionFileError, match=r"finished run without.*classmargin predict '.*my run' DATA"):
        read_predictions(folder)


def test_predictions_alone_take_a_number_of_classes_or_those_seen(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1, 1], predictions=[0, 1, 0])
    found = read_predictions(tmp_path / "a.npz")
    assert found.audit(num_classes=4, bootstrap=0).num_classes == 4
    assert found.audit(bootstrap=0).num_classes == 2
    assert read_predictions(tmp_path / "a.npz", class_names=["a", "b"]).audit(bootstrap=0).class_names == (
        "a",
        "b",
    )


def test_text_with_a_number_of_classes_asks_for_their_names_and_names_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", labels=["cat", "dog"], predictions=["cat", "cat"])
    with pytest.raises(PredictionFileError, match=r"a\.npz: labels .*got text.*: give class_names$"):
        read_predictions(tmp_path / "a.npz").audit(num_classes=3)
    assert read_predictions(tmp_path / "a.npz").audit(bootstrap=0).class_names == ("cat", "dog")
    found = read_predictions(tmp_path / "a.npz", class_names=["cat", "dog"])
    assert found.audit(bootstrap=0).overall == 0.5


def test_another_number_of_classes_names_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1], logits=np.eye(2))
    with pytest.raises(PredictionFileError, match=r"a\.npz: .*got 3 from num_classes, 2 from logits"):
        read_predictions(tmp_path / "a.npz").audit(num_classes=3)


@pytest.mark.parametrize(
    ("message", "arrays"),
    [
        ("must hold an array 'labels'", {"logits": np.zeros((2, 2))}),
        ("must hold logits, probabilities or predictions", {"labels": [0, 1]}),
        ("logits must have as many rows as labels", {"labels": [0, 1], "logits": np.zeros((3, 2))}),
        (r"labels must lie in \[0, 2\)", {"labels": [0, 2], "logits": np.zeros((2, 2))}),
        (
            "class_names must be a list of texts",
            {"labels": [0], "logits": np.zeros((1, 2)), "class_names": [1, 2]},
        ),
        ("labels must hold integer classes", {"labels": ["a"], "logits": np.zeros((1, 2))}),
    ],
)
def test_incomplete_files_are_refused_with_their_name(tmp_path, message, arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(PredictionFileError, match=rf"bad\.npz.*{message}"):
        read_predictions(tmp_path / "bad.npz")


def test_bad_values_inside_large_arrays_name_their_file_and_bad_options_do_not(tmp_path):
    np.savez(tmp_path / "nan.npz", labels=[0, 1], logits=[[1.0, np.nan], [0.0, 1.0]])
    read = read_predictions(tmp_path / "nan.npz")
    with pytest.raises(PredictionFileError, match=r"nan\.npz: logits must be finite"):
        read.audit()
    with pytest.raises(ValueError, match=r"^confidence"):
        read.audit(confidence=2.0)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(PredictionFileError, match="does not exist"):
        read_predictions(tmp_path / "none.npz")
    (tmp_path / "a.pkl").write_bytes(b"x")
    with pytest.raises(PredictionFileError, match=r"must end in \.npz, \.parquet, \.csv"):
        read_predictions(tmp_path / "a.pkl")
    for name in ("a.npz", "a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(b"\x00\xff\xfe garbage \x80")
        with pytest.raises(PredictionFileError, match=name):
            read_predictions(tmp_path / name)


def test_byte_names_are_decoded(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0], logits=np.zeros((1, 2)), class_names=np.array([b"cat", b"dog"]))
    assert read_predictions(tmp_path / "a.npz").class_names == ("cat", "dog")


def frame_of(toy, prefix, values, names=NAMES):
    columns = {
        "label": [names[k] for k in toy.labels],
        "sample_id": [f"s{i}" for i in range(len(toy.labels))],
    }
    columns["prediction"] = [names[k] for k in toy.logits.argmax(axis=1)]
    return pd.DataFrame({**columns, **{f"{prefix}{name}": values[:, k] for k, name in enumerate(names)}})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("prefix", ["p_", "logit_"])
def test_tables_give_the_audit_of_their_columns(tmp_path, toy, suffix, prefix):
    values = toy.probabilities if prefix == "p_" else toy.logits
    frame = frame_of(toy, prefix, values)
    file = tmp_path / f"a{suffix}"
    frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    found = read_predictions(file)
    assert found.class_names == NAMES
    kind = {"p_": "probabilities", "logit_": "logits"}[prefix]
    direct = audit(toy.labels, **{kind: values.astype(np.float32)}, class_names=NAMES, bootstrap=0)
    result = found.audit(bootstrap=0)
    np.testing.assert_array_equal(result.labels, toy.labels)
    assert result.overall == direct.overall
    assert result.ece == pytest.approx(direct.ece, abs=1e-6)
    assert result.sample_id[3] == "s3"


def test_class_numbers_are_ordered_by_number(tmp_path):
    names = [str(k) for k in range(12)]
    frame = pd.DataFrame({"label": [2, 10], **{f"p_{name}": [float(name == "10")] * 2 for name in sorted(names)}})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = read_predictions(tmp_path / "a.csv")
    assert found.class_names == tuple(names)
    assert found.audit(bootstrap=0).by_class["accuracy"].dropna().tolist() == [0.0, 1.0]


def test_numbers_stand_for_named_classes_too(tmp_path):
    pd.DataFrame({"label": [0, 1], "p_cat": [0.9, 0.2], "p_dog": [0.1, 0.8]}).to_csv(tmp_path / "a.csv", index=False)
    assert read_predictions(tmp_path / "a.csv").audit(bootstrap=0).overall == 1.0


def test_labels_and_predictions_take_names_a_number_or_what_is_seen(tmp_path):
    pd.DataFrame({"label": ["cat", "dog"], "prediction": ["cat", "cat"]}).to_csv(tmp_path / "a.csv", index=False)
    seen = read_predictions(tmp_path / "a.csv").audit(bootstrap=0)
    assert seen.class_names == ("cat", "dog")
    assert "those seen in labels and predictions" in seen.notes[0]
    found = read_predictions(tmp_path / "a.csv", class_names=["cow", "dog", "cat"])
    np.testing.assert_array_equal(found.labels, [2, 1])
    pd.DataFrame({"label": [0, 1], "prediction": [0, 0]}).to_csv(tmp_path / "b.csv", index=False)
    assert read_predictions(tmp_path / "b.csv").audit(num_classes=3, bootstrap=0).overall == 0.5


def test_a_class_called_nan_stays_a_name(tmp_path):
    pd.DataFrame({"label": ["nan", "NA"], "p_nan": [0.9, 0.1], "p_NA": [0.1, 0.9]}).to_csv(
        tmp_path / "a.csv", index=False
    )
    assert read_predictions(tmp_path / "a.csv").audit(bootstrap=0).overall == 1.0


@pytest.mark.parametrize(
    ("message", "columns", "names"),
    [
        ("must have a column 'label'", {"prediction": [0]}, ["a"]),
        ("must have a column 'prediction' or one p_", {"label": [0]}, ["a"]),
        ("must hold at least one sample", {"label": [], "prediction": []}, ["a"]),
        (
            r"column 'label' holds 'owl' in row 1 .*not among the classes a \(from the p_<class> columns\)",
            {"label": ["owl"], "p_a": [1.0]},
            None,
        ),
        (
            r"column 'labels' holds 'cat' in row 2 .*not among the classes 0, 1, 2, 3 \(from the logit_<class>",
            {"labels": [3, "cat"], **{f"logit_{k}": [1.0, 0.5] for k in (3, 1, 0, 2)}},
            None,
        ),
        (
            r"column 'prediction' holds 'owl' .*not among the classes a, b \(from class_names\)",
            {"label": ["a"], "prediction": ["owl"]},
            ["a", "b"],
        ),
        (
            "column 'label' holds '5' in row 2 .*not among the classes a, b",
            {"label": ["a", 5], "p_a": [1.0, 0.5], "p_b": [0.0, 0.5]},
            None,
        ),
        (
            "must have one column 'label', got 'label' and 'labels'",
            {"label": [0], "labels": [0], "p_a": [1.0]},
            None,
        ),
        (
            "must have one column 'prediction', got 'prediction' and 'predictions'",
            {"label": [0], "prediction": [0], "predictions": [0]},
            ["a"],
        ),
        ("must agree, 'b' is only in one", {"label": ["a"], "p_a": [1.0]}, ["a", "b"]),
        ("numbers its p_<class> columns", {"label": [0], "p_0": [0.5], "p_1": [0.5]}, ["a", "b"]),
        ("column 'p_a' must hold numbers, got 'high' in row 1", {"label": ["a"], "p_a": ["high"]}, None),
        ("column 'p_a' must hold numbers, got 'nan' in row 2", {"label": [0, 0], "p_a": [1.0, "nan"]}, None),
        (
            "column 'p_a' must hold numbers, got an empty cell in row 2",
            {"label": [0, 0], "p_a": [1.0, ""]},
            None,
        ),
        ("labels must lie", {"label": [5], "p_a": [1.0]}, None),
    ],
)
def test_bad_tables_are_refused_with_their_name(tmp_path, message, columns, names):
    pd.DataFrame(columns).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(PredictionFileError, match=rf"bad\.csv.*{message}"):
        read_predictions(tmp_path / "bad.csv", class_names=names)


@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_missing_labels_in_a_table_are_refused_with_their_row(tmp_path, names):
    (tmp_path / "a.csv").write_text("label,p_a,p_b\na,0.5,0.5\n,0.5,0.5\n")
    (tmp_path / "b.csv").write_text("label,prediction\n0,0\n1,0\n,1\n")
    pd.DataFrame({"label": ["a", None], "p_a": [0.5, 0.5], "p_b": [0.5, 0.5]}).to_parquet(tmp_path / "c.parquet")
    pd.DataFrame({"label": [0, None], "prediction": [0, 1]}).to_parquet(tmp_path / "d.parquet")
    for name, row in (("a.csv", 2), ("b.csv", 3), ("c.parquet", 2), ("d.parquet", 2)):
        message = rf"{name}: column 'label' must hold classes, got an empty cell in row {row} \(counted from 1\)"
        with pytest.raises(PredictionFileError, match=message):
            read_predictions(tmp_path / name, class_names=names)


def test_missing_scores_in_parquet_are_refused_with_their_row(tmp_path):
    pd.DataFrame({"label": [0, 1], "p_a": [0.5, None], "p_b": [0.5, 1.0]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(PredictionFileError, match="column 'p_a' must hold numbers, got nan in row 2"):
        read_predictions(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_plural_column_names_are_the_same_as_singular_ones(tmp_path, suffix):
    frame = pd.DataFrame({"labels": ["b", "a", "a"], "predictions": ["b", "a", "b"], "sample_id": [7, 8, 9]})
    file = tmp_path / f"a{suffix}"
    frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    found = read_predictions(file, class_names=["a", "b"])
    np.testing.assert_array_equal(found.labels, [1, 0, 0])
    np.testing.assert_array_equal(found.predictions, [1, 0, 1])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_without_labels_names_all_its_columns(tmp_path, suffix):
    frame = pd.DataFrame({"answer": [0], "p_a": [1.0], "comment": ["x"]})
    file = tmp_path / f"a{suffix}"
    frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    with pytest.raises(PredictionFileError, match=r"must have a column 'label', got answer, p_a, comment$"):
        read_predictions(file)


def test_long_lists_of_columns_are_cut(tmp_path):
    pd.DataFrame({f"p_{k}": [0.0] for k in range(100)}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(PredictionFileError, match=r"p_28, p_29 and 70 more$"):
        read_predictions(tmp_path / "a.csv")


def test_tables_above_the_limit_are_refused(tmp_path, toy):
    frame = frame_of(toy, "p_", toy.probabilities)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(PredictionFileError, match="more than the limit of 1000"):
            read_predictions(tmp_path / name, max_bytes=1000)


def test_truncated_parquet_is_refused(tmp_path, toy):
    frame_of(toy, "p_", toy.probabilities).to_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    for kept in (0, 10, len(content) // 2, len(content) - 3):
        (tmp_path / "a.parquet").write_bytes(content[:kept])
        with pytest.raises(PredictionFileError, match=r"not a readable \.parquet table"):
            read_predictions(tmp_path / "a.parquet")


def test_class_names_from_text_and_json(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffcat\n dog \nfox", encoding="utf-8")
    (tmp_path / "a.json").write_text('["cat", "dog", 3]')
    assert read_class_names(tmp_path / "a.txt") == ("cat", "dog", "fox")
    assert read_class_names(tmp_path / "a.json") == ("cat", "dog", "3")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "empty line or no name"),
        ("a.txt", b"cat\n\ndog\n", "empty line or no name"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
        ("a.json", b'{"cat": 0}', "JSON list of names"),
        ("a.json", b'["cat"', "cannot be read"),
        ("a.json", b"[" * 100_000, "cannot be read"),
    ],
)
def test_bad_name_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PredictionFileError, match=message):
        read_class_names(tmp_path / name)


def test_missing_name_files_are_refused(tmp_path):
    with pytest.raises(PredictionFileError, match="cannot be read"):
        read_class_names(tmp_path / "none.txt")


def classes_in(tmp_path, text):
    file = tmp_path / "table.csv"
    file.write_text(text)
    found = read_predictions(file)
    return found.class_names, found.labels.tolist(), found.predictions.tolist()


@pytest.mark.parametrize(
    ("text", "names", "labels", "predictions"),
    [
        ("label,prediction,p_001,p_002,p_003\n001,002,0,1,0\n2,1,1,0,0\n", ("001", "002", "003"), [0, 1], [1, 0]),
        # A single 0 tells that both columns are counted from 0.
        ("label,prediction,p_1,p_2,p_3\n1,0,1,0,0\n2,2,0,0,1\n", ("1", "2", "3"), [1, 2], [0, 2]),
        ("label,prediction,p_1,p_2,p_3\n1,3,0,0,1\n2,2,0,1,0\n", ("1", "2", "3"), [0, 1], [2, 1]),
        ("label,prediction,p_1.0,p_1.5\n1.0,1.5,0,1\n1.5,1.5,0,1\n", ("1.0", "1.5"), [0, 1], [1, 1]),
        ("label,prediction,p_false,p_true\ntrue,false,1,0\nfalse,false,1,0\n", ("false", "true"), [1, 0], [0, 0]),
        ("label, prediction, p_cat, p_dog\ncat, 1, 0, 1\ndog , 0, 1, 0\n", ("cat", "dog"), [0, 1], [1, 0]),
        ("label,prediction,p_0,p_1\n1.0,0.0,1,0\n0.0,0.0,1,0\n", ("0", "1"), [1, 0], [0, 0]),
    ],
)  # fmt: skip
def test_classes_of_a_csv_are_what_is_written_there(tmp_path, text, names, labels, predictions):
    assert classes_in(tmp_path, text) == (names, labels, predictions)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["007", "7"], ["007", "7"]),
        (["12e5", "1200000"], ["12e5", "1200000"]),
        (["3.10", "3.1"], ["3.10", "3.1"]),
        (["9" * 30, "8" * 30], ["9" * 30, "8" * 30]),
        (["10", "9"], [10, 9]),
    ],
)
def test_identities_of_a_csv_are_what_is_written_there(tmp_path, cells, found):
    file = tmp_path / "table.csv"
    file.write_text("label,prediction,sample_id\n" + "".join(f"0,1,{cell}\n" for cell in cells))
    assert read_predictions(file).sample_id.tolist() == found


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    with pytest.raises(PredictionFileError, match="'p_a' more than once"):
        classes_in(tmp_path, "label,p_a,p_b,p_a\na,0.5,0.5,0\n")


def test_names_in_other_bytes_than_utf_8_name_the_file(tmp_path):
    np.savez(tmp_path / "x.npz", labels=[0, 1], predictions=[0, 1], class_names=np.array([b"caf\xe9", b"dog"]))
    with pytest.raises(PredictionFileError, match=r"x\.npz: class_names must hold text in UTF-8"):
        read_predictions(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_usual_names_of_columns_and_arrays_are_understood_with_a_note(tmp_path, suffix):
    file = tmp_path / f"a{suffix}"
    frame = pd.DataFrame({"y_true": [0, 1, 1], "y_pred": [0, 0, 1]})
    if suffix == ".npz":
        np.savez(file, y_true=frame["y_true"], y_pred=frame["y_pred"])
    else:
        frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    found = read_predictions(file).audit(bootstrap=0)
    assert found.overall == pytest.approx(2 / 3)
    assert [note.split(": ")[1].split(" was")[0].split()[-1] for note in found.notes[:2]] == [
        "'y_true'",
        "'y_pred'",
    ]


def test_the_own_name_of_a_column_wins_over_its_aliases(tmp_path):
    pd.DataFrame({"target": [1, 1], "label": [0, 1], "pred": [0, 1]}).to_csv(tmp_path / "a.csv", index=False)
    assert read_predictions(tmp_path / "a.csv").audit(bootstrap=0).overall == 1.0


def test_an_npz_without_labels_names_the_arrays_that_it_holds(tmp_path):
    np.savez(tmp_path / "a.npz", output=np.eye(2), ids=[0, 1])
    with pytest.raises(PredictionFileError, match=r"must hold an array 'labels'.*got the arrays output, ids$"):
        read_predictions(tmp_path / "a.npz")


def test_pictures_and_texts_are_read_beside_the_predictions(tmp_path):
    frame = pd.DataFrame({"label": [0, 1], "prediction": [0, 1], "text": ["a", "b"], "image_path": ["x.png", "y.png"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = read_predictions(tmp_path / "a.csv")
    assert found.text.tolist() == ["a", "b"]
    assert found.image_path.tolist() == ["x.png", "y.png"]
    np.savez(tmp_path / "a.npz", labels=[0, 1], predictions=[0, 1], images=np.zeros((3, 4, 4)))
    with pytest.raises(PredictionFileError, match="images must have as many rows as labels"):
        read_predictions(tmp_path / "a.npz")


@pytest.fixture
def everything_is_large(monkeypatch):
    from classmargin import _array_files
    from classmargin.evaluation import prediction_tables

    monkeypatch.setattr(_array_files, "MAPPED_FROM", 0)
    monkeypatch.setattr(prediction_tables, "MAPPED_FROM", 0)
    monkeypatch.setattr(prediction_tables, "GROUP_VALUES", 1)


def scores_of(rows=50, classes=3):
    scores = np.random.default_rng(0).dirichlet(np.ones(classes), rows)
    return np.arange(rows) % classes, scores.astype(np.float32)


def write_npz(folder, labels, scores):
    np.savez(folder / "a.npz", labels=labels, probabilities=scores)
    return folder / "a.npz"


def write_packed(folder, labels, scores):
    np.savez_compressed(folder / "a.npz", labels=labels, probabilities=scores)
    return folder / "a.npz"


def write_folder(folder, labels, scores):
    np.save(folder / "labels.npy", labels)
    np.save(folder / "probabilities.npy", scores)
    return folder


def write_parquet(folder, labels, scores):
    pytest.importorskip("pyarrow")
    columns = {f"p_{k}": scores[:, k] for k in reversed(range(scores.shape[1]))}
    pd.DataFrame({"label": labels, **columns}).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


@pytest.mark.parametrize("write", [write_npz, write_packed, write_folder, write_parquet])
def test_large_scores_are_mapped_and_give_the_same_audit(write, tmp_path, everything_is_large):
    labels, scores = scores_of()
    found = read_predictions(write(tmp_path, labels, scores))
    assert isinstance(found.probabilities, np.memmap)
    np.testing.assert_array_equal(found.probabilities, scores)
    expected = audit(labels, probabilities=scores, bootstrap=100)
    assert found.audit(bootstrap=100).to_dict() == expected.to_dict()


def test_only_scores_that_stay_in_their_file_do_not_count_as_memory(tmp_path, everything_is_large):
    labels, scores = scores_of(1000)
    read_predictions(write_npz(tmp_path, labels, scores), max_bytes=9000)
    with pytest.raises(PredictionFileError, match="9000"):
        read_predictions(write_packed(tmp_path, labels, scores), max_bytes=9000)


def test_a_mapped_array_cut_short_is_refused(tmp_path, everything_is_large):
    path = write_folder(tmp_path, *scores_of())
    content = (path / "probabilities.npy").read_bytes()
    (path / "probabilities.npy").write_bytes(content[:-8])
    with pytest.raises(PredictionFileError, match="more than its"):
        read_predictions(path)


def test_usual_names_of_arrays_and_columns_are_read_with_a_note(tmp_path):
    labels, scores = scores_of()
    np.savez(tmp_path / "a.npz", y_true=labels, probs=scores, sample_ids=labels + 3 * np.arange(50))
    found = read_predictions(tmp_path / "a.npz")
    assert [note.split(": ")[1] for note in found.notes] == [
        "the array 'y_true' was read as 'labels'.",
        "the array 'probs' was read as 'probabilities'.",
        "the array 'sample_ids' was read as 'sample_id'.",
    ]
    pd.DataFrame({"Actual": ["a", "b"], "Predicted": ["b", "b"], "Sample_ID": [7, 8]}).to_csv(
        tmp_path / "b.csv", index=False
    )
    table = read_predictions(tmp_path / "b.csv")
    assert table.labels.tolist() == [0, 1]
    assert table.predictions.tolist() == [1, 1]
    assert table.sample_id.tolist() == [7, 8]


def test_arrays_without_scores_are_listed(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0], embeddings=np.zeros((1, 2)))
    with pytest.raises(PredictionFileError, match="got the arrays labels, embeddings"):
        read_predictions(tmp_path / "a.npz")


class Counted(str):
    """A text that counts how often it is compared."""

    __hash__ = str.__hash__
    comparisons = 0

    def __eq__(self, other):
        type(self).comparisons += 1
        return str.__eq__(self, other)


def test_many_cells_that_are_no_class_are_refused_without_comparing_them_with_one_another():
    column = _ClassColumn(Path("a.csv"), "label", np.array([f"w{k}" for k in range(2000)], dtype=object))
    column.different = [Counted(text) for text in column.different]
    with pytest.raises(PredictionFileError, match="'w0' in row 1"):
        column.numbers(("a", "b"), "class_names")
    assert Counted.comparisons < 20_000


@pytest.mark.parametrize("odd", ["1.5", "-1", "nan", ".5e1", "infinity", "1e3"])
def test_other_numbers_among_class_numbers_are_no_names(tmp_path, odd):
    (tmp_path / "a.csv").write_text(f"label,prediction\n{odd},1\n2,2\n")
    with pytest.raises(PredictionFileError, match="among numbers"):
        read_predictions(tmp_path / "a.csv").audit(bootstrap=0)


def test_class_numbers_may_have_64_bits(tmp_path):
    (tmp_path / "a.csv").write_text("label,prediction\n9223372036854775807,2\n2,2\n")
    assert read_predictions(tmp_path / "a.csv").audit(bootstrap=0).class_names == ("2", "9223372036854775807")
    (tmp_path / "a.csv").write_text("label,prediction\n9223372036854775808,2\n2,2\n")
    with pytest.raises(PredictionFileError, match="class numbers, got one of 19 digits"):
        read_predictions(tmp_path / "a.csv")


def test_class_names_in_another_encoding_are_told_once(tmp_path):
    np.savez(tmp_path / "a.npz", labels=[0, 1], predictions=[0, 1], class_names=np.array([b"\xff", b"b"]))
    with pytest.raises(PredictionFileError, match=r"a\.npz") as refused:
        read_predictions(tmp_path / "a.npz")
    assert str(refused.value).count("UTF-8") == 1
