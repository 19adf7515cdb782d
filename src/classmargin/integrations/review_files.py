"""The doubted labels of an audit, as files for the tools where people look at them: FiftyOne and Label Studio.

    result = classmargin.audit(labels, probabilities=probabilities, class_names=names, sample_id=files)
    write_fiftyone(result, "review/labels.json")
    write_label_studio(result, "review/tasks.json", url="/data/local-files/?d=images/{sample_id}")

Plain JSON; nothing of either tool is needed to write it. The samples are those of ``result.samples_of(kind="doubted label")``, the least
believed label first. The suggestion is the predicted class, or the next likely one where the prediction is the label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from classmargin._atomic import atomic_path
from classmargin.evaluation.audit_result import Audit


def write_fiftyone(result: Audit, path: str | Path) -> Path:
    """Write ``labels.json`` of FiftyOne's format ``FiftyOneImageClassificationDataset``, from an audit of scores.

    Load it with ``fo.Dataset.from_dir(data_path=IMAGES, labels_path=FILE,
    dataset_type=fo.types.FiftyOneImageClassificationDataset)``, which finds samples by the names of their files (``sample_id``) without
    folder and ending; two of one name are an error. The given label is the classification, the suggestion an attribute.
    """
    entries: dict[str, Any] = {}
    for sample in _doubted(result):
        key = PurePosixPath(sample["sample_id"].replace("\\", "/")).stem
        if key in entries:
            raise ValueError(f"sample_id must be files of different names, got {key!r} twice")
        attributes = {name: sample[name] for name in ("sample_id", "suggestion", "suggestion_probability")}
        given = {"label": sample["label"], "confidence": sample["label_probability"]}
        entries[key] = {**given, "attributes": attributes}
    return _write({"classes": list(result.class_names), "labels": entries}, path)


def write_label_studio(result: Audit, path: str | Path, *, url: str = "{sample_id}", data_key: str = "image") -> Path:
    """Write tasks for Label Studio's import: the given label as an annotation, the suggestion as a prediction.

    They fit a labelling interface with ``<Image name="image" value="$image"/>`` and ``<Choices name="choice" toName="image">``.

    ``url`` is where Label Studio finds a sample, ``data_key`` the object and its variable in the interface (``image``,
    ``text``).
    """

    def choice(sample: dict[str, Any], name: str) -> dict[str, Any]:
        value = {"choices": [sample[name]]}
        place = {"from_name": "choice", "to_name": data_key, "type": "choices"}
        return {"result": [{"id": f"{name}-{sample['position']}", **place, "value": value}]}

    tasks = []
    for sample in _doubted(result):
        name = sample["sample_id"]
        data = {data_key: url.replace("{sample_id}", name), "sample_id": name}
        model = {"model_version": "classmargin", "score": sample["suggestion_probability"]}
        suggested = [{**model, **choice(sample, "suggestion")}]
        tasks.append({"data": data, "annotations": [choice(sample, "label")], "predictions": suggested})
    return _write(tasks, path)


def _doubted(result: Audit) -> Iterator[dict[str, Any]]:
    if result.scores is None:
        raise ValueError("result must be an audit of logits or probabilities, got one of predictions alone")
    for row in result.samples_of(kind="doubted label").to_dict("records"):
        wrong = row["predicted"] != row["class_name"]
        yield {
            "sample_id": str(row["sample_id"]),
            "position": int(row["position"]),
            "label": row["class_name"],
            "label_probability": float(row["true_probability"]),
            "suggestion": row["predicted" if wrong else "second_choice"],
            "suggestion_probability": float(row["probability" if wrong else "second_probability"]),
        }


def _write(content: Any, path: str | Path) -> Path:
    with atomic_path(path) as file:
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Path(path)
