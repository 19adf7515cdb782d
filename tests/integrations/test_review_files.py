"""Doubted labels for FiftyOne and Label Studio, in the formats that they document."""

import json

import numpy as np
import pytest

from classmargin import audit
from classmargin.integrations.review_files import write_fiftyone, write_label_studio

NAMES = ["cat", "dog", "owl"]
WRONG = {"images/003.jpg": ("cat", "dog"), "images/050.jpg": ("dog", "owl"), "images/090.jpg": ("owl", "cat")}


def audited(sample_id):
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    truth = labels.copy()
    truth[[3, 50, 90]] = [1, 2, 0]  # wrong labels
    logits = 4.0 * np.eye(3)[truth] + random.normal(size=(120, 3))
    return audit(labels, logits=logits, class_names=NAMES, sample_id=sample_id, bootstrap=0)


@pytest.fixture
def result():
    return audited([f"images/{number:03d}.jpg" for number in range(120)])


def test_fiftyone_file_has_the_documented_form(result, tmp_path):
    content = json.loads(write_fiftyone(result, tmp_path / "labels.json").read_text(encoding="utf-8"))
    assert set(content) == {"classes", "labels"}
    assert content["classes"] == NAMES
    assert len(content["labels"]) == result.by_class["label_issues"].sum()
    for key, entry in content["labels"].items():
        assert "/" not in key
        assert set(entry) == {"label", "confidence", "attributes"}
        assert entry["label"] in NAMES
        assert 0.0 <= entry["confidence"] <= 1.0
    found = {
        entry["attributes"]["sample_id"]: (entry["label"], entry["attributes"]["suggestion"])
        for entry in content["labels"].values()
    }
    assert {file: found[file] for file in WRONG} == WRONG


def test_label_studio_file_has_the_documented_form(result, tmp_path):
    file = write_label_studio(result, tmp_path / "tasks.json", url="/data/local-files/?d={sample_id}")
    tasks = json.loads(file.read_text(encoding="utf-8"))
    doubted = result.samples_of(kind="doubted label")
    numbers = []
    for task, sample in zip(tasks, doubted.itertuples(), strict=True):
        assert set(task) == {"data", "annotations", "predictions"}
        assert task["data"]["image"] == f"/data/local-files/?d={sample.sample_id}"
        taken_for = sample.predicted if sample.predicted != sample.class_name else sample.second_choice
        for part, name in ((task["annotations"], sample.class_name), (task["predictions"], taken_for)):
            ((choice,),) = [entry["result"] for entry in part]
            numbers.append(choice.pop("id"))
            assert choice == {
                "from_name": "choice",
                "to_name": "image",
                "type": "choices",
                "value": {"choices": [name]},
            }
        assert 0.0 <= task["predictions"][0]["score"] <= 1.0
    assert len(set(numbers)) == 2 * len(tasks)


def test_suggestion_differs_from_the_label(tmp_path):
    """A label may be doubted although it is the prediction: then the suggestion is the class after it."""
    probabilities = [[0.95, 0.05], [0.95, 0.05], [0.55, 0.45], [0.4, 0.6], [0.7, 0.3]]
    result = audit([0, 0, 0, 1, 1], probabilities=probabilities, class_names=["a", "b"], bootstrap=0)
    content = json.loads(write_fiftyone(result, tmp_path / "labels.json").read_text(encoding="utf-8"))
    assert content["labels"]["2"]["label"] == "a"
    assert content["labels"]["2"]["attributes"]["suggestion"] == "b"
    assert content["labels"]["2"]["attributes"]["suggestion_probability"] == pytest.approx(0.45)


def test_files_of_one_name_in_two_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="different names, got 'image' twice"):
        write_fiftyone(audited([f"{number}/image.jpg" for number in range(120)]), tmp_path / "x.json")


@pytest.mark.parametrize("write", [write_fiftyone, write_label_studio])
def test_audit_without_scores_is_refused(write, tmp_path):
    with pytest.raises(ValueError, match="got one of predictions alone"):
        write(audit([0, 1], predictions=[0, 0], bootstrap=0), tmp_path / "x.json")
