"""Doubted samples for FiftyOne and Label Studio, in the formats that they document."""

import json

import numpy as np
import pytest

from classmargin import audit
from classmargin.integrations.review_files import doubted_samples, write_fiftyone, write_label_studio

NAMES = ["cat", "dog", "owl"]


@pytest.fixture
def scored():
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    truth = labels.copy()
    truth[[3, 50, 90]] = [1, 2, 0]  # wrong labels
    logits = 4.0 * np.eye(3)[truth] + random.normal(size=(120, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return labels, probabilities, [f"images/{number:03d}.jpg" for number in range(120)]


@pytest.fixture
def doubted(scored):
    labels, probabilities, files = scored
    return doubted_samples(labels, probabilities, class_names=NAMES, sample_id=files)


def test_wrong_labels_are_doubted_with_the_right_suggestion(doubted):
    found = {sample.sample_id: (sample.label, sample.suggestion) for sample in doubted}
    assert found["images/003.jpg"] == ("cat", "dog")
    assert found["images/050.jpg"] == ("dog", "owl")
    assert found["images/090.jpg"] == ("owl", "cat")
    values = [sample.label_probability for sample in doubted]
    assert values == sorted(values)


def test_they_are_those_that_the_audit_counts(scored, doubted):
    labels, probabilities, _ = scored
    counted = audit(labels, probabilities=probabilities, class_names=NAMES, bootstrap=0).by_class[
        "label_issues"
    ]
    assert [sum(sample.label == name for sample in doubted) for name in NAMES] == counted.tolist()


def test_fiftyone_file_has_the_documented_form(doubted, tmp_path):
    content = json.loads(write_fiftyone(doubted, tmp_path / "labels.json", NAMES).read_text(encoding="utf-8"))
    assert set(content) == {"classes", "labels"}
    assert content["classes"] == NAMES
    assert len(content["labels"]) == len(doubted)
    for key, entry in content["labels"].items():
        assert "/" not in key
        assert set(entry) == {"label", "confidence", "attributes"}
        assert entry["label"] in NAMES
        assert 0.0 <= entry["confidence"] <= 1.0
        assert entry["attributes"]["suggestion"] in NAMES


def test_label_studio_file_has_the_documented_form(doubted, tmp_path):
    file = write_label_studio(doubted, tmp_path / "tasks.json", url="/data/local-files/?d={sample_id}")
    tasks = json.loads(file.read_text(encoding="utf-8"))
    assert tasks[0]["data"]["image"].startswith("/data/local-files/?d=images/")
    numbers = []
    for task, sample in zip(tasks, doubted, strict=True):
        assert set(task) == {"data", "annotations", "predictions"}
        for part, name in ((task["annotations"], sample.label), (task["predictions"], sample.suggestion)):
            ((result,),) = [entry["result"] for entry in part]
            numbers.append(result.pop("id"))
            assert result == {
                "from_name": "choice",
                "to_name": "image",
                "type": "choices",
                "value": {"choices": [name]},
            }
        assert 0.0 <= task["predictions"][0]["score"] <= 1.0
    assert len(set(numbers)) == 2 * len(tasks)


def test_files_of_one_name_in_two_folders_are_refused(scored, tmp_path):
    labels, probabilities, _ = scored
    files = [f"{number}/image.jpg" for number in range(120)]
    with pytest.raises(ValueError, match="different file names, got 'image' twice"):
        write_fiftyone(doubted_samples(labels, probabilities, sample_id=files), tmp_path / "x.json", "012")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probabilities": np.ones((120, 3))}, "rows >= 0 that sum to 1"),
        ({"probabilities": np.ones((5, 3)) / 3}, "one row per label"),
        ({"labels": np.full(120, 3)}, "from 0 to 2"),
        ({"class_names": ["a", "a", "b"]}, "class_names must be 3 different names"),
        ({"sample_id": ["x"]}, "sample_id must be 120 different names, got 1"),
    ],
)
def test_bad_input_is_named(scored, change, message):
    labels, probabilities, _ = scored
    given = {"labels": labels, "probabilities": probabilities, **change}
    with pytest.raises(ValueError, match=message):
        doubted_samples(given.pop("labels"), given.pop("probabilities"), **given)
