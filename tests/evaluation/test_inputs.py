import numpy as np
import pandas as pd
import pytest
import torch

from classmargin.evaluation import audit
from classmargin.evaluation.input_checks import check_inputs, row_chunks, to_array


@pytest.mark.parametrize(
    "convert",
    [np.asarray, torch.as_tensor, lambda values: np.asarray(values).tolist(), pd.Series],
    ids=["numpy", "torch", "list", "pandas"],
)
def test_every_kind_of_column_gives_the_same_audit(convert):
    labels, predictions = [0, 1, 2, 2, 1], [0, 1, 2, 0, 2]
    result = audit(convert(labels), predictions=convert(predictions), num_classes=3, bootstrap=0)
    assert result.overall == pytest.approx(3 / 5)


class ForeignColumn:
    """What polars, cuDF and others offer."""

    def __init__(self, values):
        self.values = values

    def to_numpy(self):
        return np.array(self.values)


def test_any_column_with_to_numpy_is_accepted():
    result = audit(ForeignColumn([0, 1]), predictions=ForeignColumn([0, 0]), num_classes=2, bootstrap=0)
    assert result.overall == 0.5


def test_polars_columns_are_accepted():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    result = audit(polars.Series([0, 1]), predictions=polars.Series([0, 0]), num_classes=2, bootstrap=0)
    assert result.overall == 0.5


def test_tensors_with_gradients_and_half_precision_are_accepted(toy):
    logits = torch.from_numpy(toy.logits).to(torch.bfloat16).requires_grad_()
    expected = logits.detach().float().numpy().argmax(axis=1)
    result = audit(torch.from_numpy(toy.labels), logits=logits, bootstrap=0)
    np.testing.assert_array_equal(result.predictions, expected)


def test_large_arrays_are_not_copied():
    logits = np.zeros((4, 3), dtype=np.float32)
    inputs = check_inputs([0, 1, 2, 0], logits=logits)
    assert np.shares_memory(inputs.scores, logits)


def test_number_of_classes_comes_from_the_head_before_the_labels():
    assert check_inputs([0, 0], logits=np.zeros((2, 9))).num_classes == 9
    assert check_inputs([0, 0], predictions=[0, 0], class_names=["a", "b", "c"]).num_classes == 3


@pytest.mark.parametrize(
    ("labels", "predictions", "names"),
    [
        ([1, 2, 2], [1, 2, 5], ("1", "2", "5")),  # counted from 1, or from anywhere
        (["dog", "cat"], ["cat", "cow"], ("cat", "cow", "dog")),
    ],
)
def test_without_head_and_list_the_classes_are_those_seen_and_a_note_says_so(labels, predictions, names):
    inputs = check_inputs(labels, predictions=predictions)
    assert inputs.class_names == names
    assert [names[k] for k in inputs.labels] == [str(label) for label in labels]
    assert [names[k] for k in inputs.predictions] == [str(label) for label in predictions]
    assert f"The {len(names)} classes are those seen" in inputs.notes[0]


def test_labels_counted_from_one_and_missing_ones_get_a_hint():
    with pytest.raises(ValueError, match=r"counted from 1\? subtract 1"):
        check_inputs([1, 2, 3], logits=np.zeros((3, 3)))
    with pytest.raises(TypeError, match=r"nan in row 1 \(a missing label\?"):
        check_inputs([0.0, np.nan], logits=np.zeros((2, 2)))


def test_probabilities_rounded_to_two_decimals_are_taken_with_a_note():
    rows = np.random.default_rng(0).dirichlet(np.ones(20), size=200).round(2)
    labels = np.arange(200) % 20
    assert np.abs(rows.sum(axis=1) - 1).max() > 0.02  # more than is let pass without a reason
    inputs = check_inputs(labels, probabilities=rows)
    assert "2 decimals" in inputs.notes[0]
    assert audit(labels, probabilities=rows, bootstrap=0).overall == np.mean(rows.argmax(axis=1) == labels)
    with pytest.raises(ValueError, match="sum to 1"):
        audit(labels, probabilities=rows + 0.0123, bootstrap=0)


BAD = {
    "labels must have 1 dimension": {"labels": [[0], [1]], "predictions": [0, 1], "num_classes": 2},
    "labels must hold at least one sample": {"labels": [], "predictions": [], "num_classes": 2},
    r"labels must lie in \[0, 2\), got values from 0 to 2": {
        "labels": [0, 2],
        "predictions": [0, 1],
        "num_classes": 2,
    },
    r"labels must lie in \[0, 2\), got values from -1": {
        "labels": [-1, 1],
        "predictions": [0, 1],
        "num_classes": 2,
    },
    "predictions must lie in": {"labels": [0, 1], "predictions": [0, 5], "num_classes": 2},
    r"logits must have 2 dimensions, got shape \(2,\)": {"labels": [0, 1], "logits": [0.0, 1.0]},
    "logits must have as many rows as labels": {"labels": [0, 1, 1], "logits": np.zeros((2, 2))},
    "predictions must have as many rows": {"labels": [0, 1], "predictions": [0], "num_classes": 2},
    "features must have as many rows": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "features": np.zeros((3, 4)),
    },
    "classifier_weight must have as many columns": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "features": np.zeros((2, 4)),
        "classifier_weight": np.zeros((2, 3)),
    },
    "the number of classes must be the same everywhere": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "num_classes": 3,
    },
    "either logits or probabilities": {
        "labels": [0],
        "logits": np.zeros((1, 2)),
        "probabilities": np.ones((1, 2)) / 2,
    },
    "one of logits, probabilities or predictions": {"labels": [0], "num_classes": 2},
    "got 2 from logits, 1 from class_names": {
        "labels": [0],
        "logits": np.zeros((1, 2)),
        "class_names": ["a"],
    },
    r"sample_id must have shape \(2,\)": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "sample_id": [1, 2, 3],
    },
    "sample_id must name every sample once": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "sample_id": [7, 7],
    },
    "rectangular": {"labels": [0, 1], "logits": [[0.0, 1.0], [0.0]]},
    "classifier_weight must be finite": {
        "labels": [0, 1],
        "logits": np.zeros((2, 2)),
        "classifier_weight": [[np.nan, 0.0], [1.0, 0.0]],
    },
    "num_classes must be at least 1": {"labels": [0], "predictions": [0], "num_classes": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_shapes_and_values_are_refused_by_name(message):
    arguments = dict(BAD[message])
    with pytest.raises(ValueError, match=message):
        check_inputs(arguments.pop("labels"), **arguments)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("labels must hold integer classes", {"labels": [0.5, 1.0], "predictions": [0, 1], "num_classes": 2}),
        ("labels must hold integer classes", {"labels": ["a", "b"], "predictions": [0, 1], "num_classes": 2}),
        ("must both be numbers or both be names", {"labels": [0, 1], "predictions": ["a", "a"]}),
        ("logits must hold real numbers", {"labels": [0, 1], "logits": np.zeros((2, 2), dtype=complex)}),
        ("class_names must be a sequence", {"labels": [0, 1], "predictions": [0, 1], "class_names": "ab"}),
        (
            "must hold numbers or text, got Python objects",
            {"labels": [0, None], "predictions": [0, 1], "num_classes": 2},
        ),
        (
            "sample_id must hold integers or text",
            {"labels": [0], "predictions": [0], "num_classes": 1, "sample_id": [0.5]},
        ),
    ],
)
def test_values_of_the_wrong_kind_are_type_errors(message, arguments):
    with pytest.raises(TypeError, match=message):
        check_inputs(arguments.pop("labels"), **arguments)


def test_whole_floats_are_classes_because_frames_make_them():
    inputs = check_inputs(np.array([0.0, 1.0]), predictions=[0, 1], num_classes=2)
    assert inputs.labels.dtype == np.int64


def test_equal_class_names_get_their_number():
    inputs = check_inputs([0], predictions=[0], class_names=["crane", "dog", "crane"])
    assert inputs.class_names == ("crane (0)", "dog", "crane (2)")


def test_chunks_cover_all_rows_once():
    rows = np.concatenate([np.arange(10)[part] for part in row_chunks(10, 4)])
    np.testing.assert_array_equal(rows, np.arange(10))


def test_text_columns_stay_text():
    assert to_array("names", np.array(["a", "b"], dtype=object)).dtype.kind == "U"


@pytest.mark.parametrize(
    ("message", "labels"),
    [
        (r"such as None \(position 1\)", ["cat", None, "dog"]),
        (r"such as None \(position 2\)", [0, 1, None]),
        ("nan in row 1", [0.0, np.nan, 1.0]),
        ("0.5 in row 2", [0.0, 1.0, 0.5]),
        ("text in UTF-8", np.array([b"caf\xe9", b"cat", b"dog"])),
    ],
)
def test_the_value_that_is_no_class_is_named(message, labels):
    with pytest.raises((TypeError, ValueError), match=message):
        audit(labels, predictions=[0, 1, 1], class_names=["cat", "dog"])


def test_bytes_are_text():
    found = audit(np.array([b"dog", b"cat"]), predictions=[1, 1], class_names=[b"cat", b"dog"], bootstrap=0)
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == [1, 0]


def test_a_level_may_be_a_number_of_numpy_and_a_norm_must_be_a_number():
    arrays = {"labels": [0, 1], "predictions": [0, 1], "num_classes": 2, "bootstrap": 0}
    assert audit(**arrays, confidence=np.float32(0.5)).confidence == 0.5
    with pytest.raises(TypeError, match="norm_order must be a number, got str"):
        audit(**arrays, norm_order="2")
